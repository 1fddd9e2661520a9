"""Drill: faults of a group of devices while it answers, and the seconds until the answer goes on.

    python bench/group_faults.py [MODEL]

It runs on the test device `remote`, which has a fault for each row; the bundled model where none is given.
A row's seconds are the longest time between two tokens of the answer, less that of an answer without a fault:
most of it is the load of the model on what is left. For a plan that is refused, memory that others cannot
write, and sums that differ, they are the time from the load to the end. `same`: the tokens are those of an
answer without the fault.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MEMBERS = 3
DEADLINE_MS = 1000
TOKENS = 24
PROMPT = "Once upon a time"

os.environ |= {"SATCHEL_REMOTE_DEVICES": str(MEMBERS), "SATCHEL_REMOTE_LATE_US": "0"}
os.environ["SATCHEL_GROUP_TIMEOUT_MS"] = str(DEADLINE_MS)

from satchel.errors import SatchelError  # noqa: E402
from satchel.runtime.api.model import Model  # noqa: E402

DEVICES = "+".join(f"remote:{i}" for i in range(MEMBERS))


class Drill(NamedTuple):
    """What an answer was like under a fault."""

    seconds: float  # the longest time between two tokens, or of the load
    ids: tuple[int, ...]
    end: str  # on which devices it ended, or with which error


def load(path: str | None) -> Model:
    return Model.load(path, device=DEVICES, threads=1, context=256, activations=16, worker="thread")


def answer(model: Model, before: Callable[[int], None] = lambda n: None) -> Drill:
    """An answer; before(n) is called when n tokens have come."""
    ids, longest, last = list[int](), 0.0, time.perf_counter()
    handle = model.generate(PROMPT, max_tokens=TOKENS, temperature=0.0)
    for _ in handle:
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        before(len(handle.ids))
    ids += handle.ids
    return Drill(longest, tuple(ids), model.device.name)


@contextmanager
def setting(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def lost(path: str | None) -> Drill:
    """A member fails in the middle of an answer; the others leave at once."""
    with setting("SATCHEL_REMOTE_LOST", f"1:{TOKENS // 2}"), load(path) as model:
        return answer(model)


def late(path: str | None) -> Drill:
    """A member does not come to a collective, and never would: the others' deadline ends it."""
    with tempfile.TemporaryDirectory() as folder:
        hold = Path(folder, "hold")
        with setting("SATCHEL_REMOTE_HOLD", str(hold)), load(path) as model:
            held = Path(f"{hold}.2")

            def release() -> None:  # a device's thread can only end when its run does
                while not model.placement_options.lost:
                    time.sleep(0.01)
                held.unlink()

            def begin(n: int) -> None:
                if n == TOKENS // 2:
                    held.touch()
                    threading.Thread(target=release).start()

            return answer(model, begin)


def failing(path: str | None, missed: str) -> Drill:
    """A load and an answer of which one must fail. AssertionError: missed, where neither does."""
    began = time.perf_counter()
    try:
        with load(path) as model:
            answer(model)
    except SatchelError as error:
        return Drill(time.perf_counter() - began, (), str(error))
    raise AssertionError(missed)


def refused(path: str | None) -> Drill:
    """A member refuses its plan: nothing is started, and the error names it."""
    with setting("SATCHEL_REMOTE_REFUSES", "1"):
        return failing(path, "the plan was not refused")


def unread(path: str | None) -> Drill:
    """Members claim to reach another one's memory and do not: they meet in host memory."""
    with setting("SATCHEL_REMOTE_UNREAD", "1"):
        began = time.perf_counter()
        with load(path) as model:
            seconds = time.perf_counter() - began
            return answer(model)._replace(seconds=seconds, end=model.notes[-1])


def differ(path: str | None) -> Drill:
    """A member's sums have other bits: with SATCHEL_GROUP_CHECK=1 the first op that differs is named."""
    with setting("SATCHEL_REMOTE_DRIFT", "1:4"), setting("SATCHEL_GROUP_CHECK", "1"):
        return failing(path, "the difference was not found")


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else None
    with load(path) as model:
        answer(model)
        usual = answer(model)
    print(
        f"{DEVICES}, deadline {DEADLINE_MS} ms; without a fault: {1e3 * usual.seconds:.0f} ms between tokens"
    )
    print("| fault | seconds | same | then |\n|---|--:|---|---|")
    for drill in (lost, late, refused, unread, differ):
        found = drill(path)
        goes_on = drill in (lost, late)
        seconds = found.seconds - usual.seconds * goes_on
        same = "-" if not found.ids else "yes" if found.ids == usual.ids else "no"
        print(f"| {drill.__name__} | {seconds:.2f} | {same} | {found.end} |", flush=True)


if __name__ == "__main__":
    main()
