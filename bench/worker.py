"""Overhead and recovery time of a worker process: tokens per second of 16 streams and of one, with the engine
in a thread and in a process, in turns; the same with empty steps, to isolate the cost of host and pipe; and
seconds from a kill to the next answer. `python bench/worker.py -m MODEL`.

Processor time, of both processes, hardly depends on what else runs on the machine; wall time does.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from satchel import Model
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.engine.program import Program
from satchel.runtime.sampling import Sampling
from satchel.runtime.worker import child, process

ROUNDS = 5


def idle(self: Program, between: object = None) -> None:
    """A step that computes nothing; its tokens are those already in the buffers."""


def main_idle() -> None:
    """The worker process with such steps."""
    Program.run = idle  # type: ignore[method-assign]
    child.main()


def spent(model: Model) -> float:
    """Processor time in seconds of this process and its worker."""
    there = 0.0
    if isinstance(model, WorkerModel):
        fields = Path(f"/proc/{model.worker.pid}/stat").read_text().rpartition(")")[2].split()
        there = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.process_time() + there


def rate(model: Model, streams: int, tokens: int) -> tuple[float, float]:
    """Wall and processor seconds per token with so many streams, each with its own reader."""
    replies = [
        model.generate([5, 6, 7, 8 + i], max_tokens=tokens, sampling=Sampling(seed=i), ignore_eos=True)
        for i in range(streams)
    ]
    readers = [threading.Thread(target=reply.read) for reply in replies]
    started, before = time.perf_counter(), spent(model)
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return (time.perf_counter() - started) / (streams * tokens), (spent(model) - before) / (streams * tokens)


def compare(path: Path, tokens: int, what: str) -> None:
    """Both kinds in turns; the best run of each counts."""
    kinds = ("thread", "process")
    models = [Model.load(path, slots=16, context=1024, worker=kind) for kind in kinds]
    for streams in (16, 1):
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, model in zip(kinds, models, strict=True):
                found[kind].append(rate(model, streams, tokens))
        for kind in kinds:
            wall, busy = (min(column) for column in zip(*found[kind], strict=True))
            print(
                f"{what}, {streams} streams, {kind}: {1 / wall:.0f} tokens/s, {1e6 * wall:.1f} us a token,"
                f" {1e6 * busy:.1f} us of processors"
            )
    for model in models:
        model.close()


def back(path: Path) -> None:
    """Seconds from a kill to the first token of a request made right after it."""
    with Model.load(path, worker="process") as model:
        assert isinstance(model, WorkerModel)
        model.generate("Once", max_tokens=8).read()
        for _ in range(3):
            os.kill(model.worker.pid, signal.SIGKILL)
            started = time.perf_counter()
            reply = model.generate("Once", max_tokens=1, ignore_eos=True)
            reply.read()
            print(f"a killed worker: the next answer after {time.perf_counter() - started:.2f} s")
            time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-n", "--tokens", type=int, default=150)
    parser.add_argument("--only", choices=("computing", "back", "idle"))
    args = parser.parse_args()
    if args.only in (None, "computing"):
        compare(args.model, args.tokens, "computing")
    if args.only in (None, "back"):
        back(args.model)
    if args.only in (None, "idle"):
        idling(args.model, args.tokens)


def idling(path: Path, tokens: int) -> None:
    """The comparison with empty steps, in this process and in the worker."""
    start = process.START.replace("import main; main()", "import main_idle; main_idle()")
    compute, process.MODULE, process.START = Program.run, "worker", start
    Program.run = idle  # type: ignore[method-assign]
    compare(path, tokens, "not computing")
    Program.run = compute  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
