"""Random users of one engine, threads and tasks, for so many seconds: answers read, abandoned and cancelled,
invalid requests, states saved, damaged and restored, in a pool that is too small for all.

`python tests/soak.py [SECONDS] [SEED]` checks the pool before each step, that every request ends, that greedy
answers never change, and that memory stays flat once it has settled, for which a slow machine may not have
the time; it prints one line, and exits with 1 where it found a fault.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from satchel import Model
from satchel.errors import ModelError, RequestError
from satchel.runtime.api.async_model import AsyncModel
from satchel.runtime.engine.service import Service
from satchel.runtime.placement import settle as faces
from satchel.runtime.sampling import GREEDY, Sampling

sys.path.append(str(Path(__file__).parent / "support"))
from waiting import until

THREADS, TASKS, STUCK = 5, 5, 120.0
SLOTS, CONTEXT, BLOCKS, TIER = 4, 384, 24, 60  # blocks of the pool, and of the tier
GROWTH, SLACK = 1.05, 24 << 20  # by which memory may grow after it has settled
SETTLED = 400  # answers until then: the tier is full, and the allocator has what users hold at once
SALTS = ("", "", "a", "b")


@dataclass
class Soak:
    """State that the users share."""

    model: Model
    folder: Path
    stems: list[list[int]]
    known: list[list[int]]
    end: float  # time from which users may leave
    least: dict[str, int] = field(default_factory=dict)  # what must have happened before
    counts: Counter[str] = field(default_factory=Counter)
    begun: dict[str, float] = field(default_factory=dict)  # when each user began its current action
    wrong: list[str] = field(default_factory=list)  # errors found

    def going(self) -> bool:
        """Whether users continue: until the time is over and the least counts are reached."""
        short = any(self.counts[name] < least for name, least in self.least.items())
        return not self.wrong and (short or time.monotonic() < self.end)

    def check(self) -> None:
        """Checks the pool; runs on the engine's thread before a step."""
        self.counts["checked steps"] += 1
        try:
            self.model.engine.pages.check()
            assert self.model.engine.tier is not None
            self.model.engine.tier.check()
        except (ValueError, AssertionError) as error:
            self.wrong.append(f"before step {self.counts['checked steps']}: {error!r}")


def resident() -> int:
    """Anonymous resident memory of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def of_plans(model: Model) -> int:
    """Bytes of the plans' buffers. There is one per size of a step, compiled when it first occurs, so memory
    grows by them for a long time but not for ever.
    """
    programs = list(model.engine._programs.values())
    return sum(buffer.size for program in programs for buffer in program._own.values())


def prompt(s: Soak, rand: random.Random) -> list[int]:
    stem = rand.choice(s.stems)
    tail = [rand.randrange(3, s.model.arch.vocab) for _ in range(rand.choice([0, 1, 20, 100]))]
    return [*stem[: rand.randint(1, len(stem))], *tail]


def asked(rand: random.Random) -> dict[str, object]:
    """Options of a request, most of them common ones."""
    return {
        "max_tokens": rand.choice([1, 5, 20, 80]),
        "sampling": rand.choice([GREEDY, Sampling(temperature=0.9, seed=rand.randrange(1 << 30))]),
        "salt": rand.choice(SALTS),
        "user": rand.choice("xyz"),
        "priority": rand.choice([0, 0, 0, -1, 2]),
        "timeout": rand.choice([0.0, 0.0, 0.0, 0.05, 1.0]),
        "ignore_eos": rand.random() < 0.5,
        "on_overflow": rand.choice(["error", "error", "shift"]),
    }


def same_again(s: Soak, rand: random.Random) -> None:
    """A greedy answer that is known, whatever is cached or runs beside it."""
    i = rand.randrange(len(s.known))
    reply = s.model.generate(s.stems[i], max_tokens=12, sampling=GREEDY, ignore_eos=True)
    reply.read()
    if reply.ids != s.known[i]:
        s.wrong.append(f"stem {i}: expected {s.known[i]}, got {reply.ids}")
    s.counts["answers"] += 1


def reads(s: Soak, rand: random.Random) -> None:
    """An answer read to its end, or abandoned in one of four ways."""
    reply = s.model.generate(prompt(s, rand), **asked(rand))  # type: ignore[arg-type]
    most, how = rand.choice([1000, 1000, 3, 1]), rand.randrange(3)
    for n, _ in enumerate(reply, 1):
        if n >= most:
            s.counts["left"] += 1
            if how == 0:
                reply.cancel()
            elif how == 1:
                reply.close()
                return
            else:
                return  # dropping the reference must be enough
    s.counts["answers"] += 1


def bad(s: Soak, rand: random.Random) -> None:
    """Requests that must be refused."""
    context, vocab = s.model.context, s.model.arch.vocab
    ids: Sequence[int] = rand.choice([[], [5] * (context + 1), [vocab], [3, -1]])
    try:
        s.model.generate(ids, max_tokens=3)
    except RequestError:
        s.counts["refused"] += 1
    else:
        s.wrong.append(f"a prompt of {len(ids)} tokens, {list(ids[:2])}..., was not refused")


def saves(s: Soak, rand: random.Random) -> None:
    """Saves, possibly damages, and restores a state while others use the same files."""
    path, salt = s.folder / f"{rand.randrange(4)}.kv", rand.choice(SALTS)
    try:
        s.model.save_state(path, rand.choice(s.stems), salt=salt)
        s.counts["saved"] += 1
    except RequestError as error:
        if "nothing to save" not in str(error):
            raise
    if not path.exists():
        return
    damaged = rand.random() < 0.3
    if damaged:
        data = bytearray(path.read_bytes())
        data[rand.randrange(len(data))] ^= 1 << rand.randrange(8)
        path = s.folder / f"bad-{threading.get_ident()}.kv"
        path.write_bytes(data)
    try:
        s.model.restore_state(path, salt=salt)
        s.counts["restored"] += 1
    except (ModelError, RequestError):
        if not damaged:
            raise
        s.counts["restores refused"] += 1


def several(s: Soak, rand: random.Random) -> None:
    s.model.answers(prompt(s, rand)[:100], 3, max_tokens=6, sampling=Sampling(temperature=1.0, seed=1))
    s.counts["answers"] += 3


ACTS = (same_again, same_again, reads, reads, reads, bad, saves, several)


def thread(s: Soak, name: str, seed: int) -> None:
    rand = random.Random(seed)
    while s.going():
        act = rand.choice(ACTS)
        s.begun[name] = time.monotonic()
        try:
            act(s, rand)
        except RequestError as error:
            s.counts["refused"] += 1
            if "tokens" not in str(error) and "KV cache" not in str(error):
                s.wrong.append(f"{name}: {act.__name__}: {error}")
        except Exception as error:
            s.wrong.append(f"{name}: {act.__name__}: {error!r}")
        if rand.random() < 0.2:
            time.sleep(rand.random() * 0.05)
    s.begun.pop(name, None)


async def task(s: Soak, name: str, seed: int) -> None:
    """Answers by `async for`; some tasks are cancelled."""
    rand, model = random.Random(seed), AsyncModel(s.model)

    async def run() -> None:
        reply = await model.generate(prompt(s, rand), **asked(rand))  # type: ignore[arg-type]
        async with reply:
            async for _ in reply:
                pass
        s.counts["answers"] += 1

    while s.going():
        s.begun[name] = time.monotonic()
        try:
            await asyncio.wait_for(run(), rand.choice([STUCK, STUCK, 0.01, 0.1]))
        except TimeoutError:
            s.counts["left"] += 1
        except RequestError:
            s.counts["refused"] += 1
        except Exception as error:
            s.wrong.append(f"{name}: {error!r}")
        await asyncio.sleep(rand.random() * 0.02)
    s.begun.pop(name, None)


@contextmanager
def opened(path: Path) -> Iterator[Model]:
    """The model with a pool and a host tier that are too small."""
    usual = faces.cache_of
    with mock.patch.object(faces, "cache_of", lambda o: replace(usual(o), blocks=BLOCKS)):
        made = Model.load(path, slots=SLOTS, context=CONTEXT, host_cache=1 << 40)
    with made as model:
        tier = model.engine.tier
        assert tier is not None
        tier.limit = TIER * model.engine.states.block_bytes[0]
        yield model


def prepared(model: Model, folder: Path, seconds: float, seed: int) -> Soak:
    """Shared prefixes, and the greedy answers to them, generated one at a time."""
    rand, vocab = random.Random(seed), model.arch.vocab
    stems = [[rand.randrange(3, vocab) for _ in range(rand.choice([40, 100, 200, 300]))] for _ in range(6)]
    replies = [model.generate(stem, max_tokens=12, sampling=GREEDY, ignore_eos=True) for stem in stems]
    for reply in replies:
        reply.read()
    return Soak(model, folder, stems, [r.ids for r in replies], time.monotonic() + seconds)


def watched(s: Soak, users: Sequence[threading.Thread], seconds: float) -> tuple[int, int]:
    """Waits for the users; measures memory after a third of the time, and SETTLED answers, and at the end.
    The first is 0 where there were fewer answers: then its growth is not judged.
    """
    started, first = time.monotonic(), 0

    def over() -> bool:
        nonlocal first
        now = time.monotonic()
        if not first and now - started > seconds / 3 and s.counts["answers"] >= SETTLED:
            first = resident() - of_plans(s.model)
        stuck = [name for name, begun in s.begun.items() if now - begun > STUCK]
        if stuck:
            s.wrong.append(f"stuck for {STUCK:.0f} seconds: {', '.join(sorted(stuck))}")
        return bool(stuck) or not any(u.is_alive() for u in users)

    until(over, "the users leave", float("inf"))
    last = resident() - of_plans(s.model)
    if first and last > first * GROWTH + SLACK:
        s.wrong.append(f"memory grew from {first >> 20} to {last >> 20} MiB")
    return first, last


def settled(s: Soak) -> None:
    """Waits until no request runs, and checks that no block is lost."""
    service = s.model.service
    assert isinstance(service, Service)
    scheduler = service.scheduler
    try:
        until(lambda: not (scheduler.running or scheduler.waiting), "no request is under way", STUCK)
    except AssertionError as error:
        s.wrong.append(str(error))

    def check() -> None:
        s.check()
        s.model.engine.pages.tree.clear()
        for group in s.model.engine.pages.groups:
            if group.pool.free != group.pool.size:
                s.wrong.append(f"{group.pool.size - group.pool.free} blocks are lost")
        if service.scheduler.free_slots != SLOTS:
            s.wrong.append(f"{SLOTS - service.scheduler.free_slots} slots are lost")

    service.call(check)


def soak(path: Path, seconds: float, seed: int = 0, least: dict[str, int] | None = None) -> Soak:
    """The whole soak; errors are in the result. least: counts that must be reached, however late."""
    with tempfile.TemporaryDirectory() as folder, opened(path) as model:
        s = prepared(model, Path(folder), seconds, seed)
        s.least = least or {}
        service = model.service
        assert isinstance(service, Service)
        service.watch = lambda work: s.check()

        async def tasks() -> None:
            async with asyncio.TaskGroup() as group:
                for i in range(TASKS):
                    group.create_task(task(s, f"task {i}", seed + 100 + i))

        users = [threading.Thread(target=asyncio.run, args=(tasks(),), daemon=True)]
        for i in range(THREADS):
            args = (s, f"thread {i}", seed + i)
            users.append(threading.Thread(target=thread, args=args, daemon=True))
        for user in users:
            user.start()
        first, last = watched(s, users, seconds)
        stats = model.stats()
        settled(s)
        s.counts |= Counter(
            tokens=stats.generated_tokens, preempted=stats.preemptions, steps=stats.steps,
            moved_out=stats.host_moved_out, moved_back=stats.host_moved_back,
            MiB_first=first >> 20, MiB_last=last >> 20,
        )  # fmt: skip
    return s


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 180.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    found = sorted((Path(__file__).parents[1] / "models").glob("satchel-40m-*.gguf"))
    if not found:
        print("soak: models/ holds no satchel-40m-*.gguf", file=sys.stderr)
        return 1
    s = soak(found[0], seconds, seed)
    facts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(s.counts.items()))
    print(f"soak of {seconds:.0f} s, seed {seed}: {facts}; {'sound' if not s.wrong else 'WRONG'}")
    for line in s.wrong[:20]:
        print(f"  {line}", file=sys.stderr)
    return int(bool(s.wrong))


if __name__ == "__main__":
    sys.exit(main())
