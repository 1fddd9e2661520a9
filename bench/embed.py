"""The C library against the Python engine, on one built file: start to the first token, resident memory,
speed of a prompt and of decoding.

    python bench/embed.py app.gguf --library build/.../embed

Runs are interleaved, and the ratio of each pair is taken, so that other load of the machine weighs on both.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from satchel import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.sampling import Sampling

ROOT = Path(__file__).parents[1]
PROMPT, LONG, TOKENS = 8, 480, 128


class Library:
    """The test driver over libsatchel."""

    def __init__(self, program: Path, app: Path, threads: int) -> None:
        self._started = time.perf_counter()
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.say(f"open {app} 1024 1 {threads}")

    def say(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer or "error -" in answer:
            raise SystemExit(f"embed: {line:.60}: {answer}")
        return answer

    def begin(self, ids: list[int]) -> None:
        self.say(f"begin 0 seed=1 flags=1 temperature=0 : {' '.join(map(str, ids))}")

    def since_start(self) -> float:
        return time.perf_counter() - self._started

    def memory(self) -> dict[str, float]:
        """Resident MB: of its own, and of the mapped file and the program."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        found = dict(line.split(":") for line in lines)
        return {name: int(found[name].split()[0]) / 1e3 for name in ("RssAnon", "RssFile")}

    def worked(self) -> float:
        """Seconds that processors worked for it, to the tick, a hundredth of a second."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.communicate()


Cost = tuple[float, float]  # seconds that passed, and those that processors worked


def timed(work: Callable[[], object], worked: Callable[[], float]) -> Cost:
    started, before = time.perf_counter(), worked()
    work()
    return time.perf_counter() - started, worked() - before


def first_token(program: Path, app: Path, ids: list[int], threads: int) -> tuple[float, float]:
    """Milliseconds from the process's start to its first token, and those that processors worked for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    library = Library(program, app, threads)
    library.begin(ids)
    library.say("next 0 1")
    taken = library.since_start() * 1e3
    library.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def speeds(library: Library, model: Model, ids: list[int], count: int) -> tuple[Cost, Cost]:
    """What a prompt of these tokens and `count` tokens behind it cost: the library, then the engine. One
    token alone is the prompt's time.
    """

    def engine() -> None:
        model.engine.rewind(0, 0)
        fed, sampling = ids, Sampling(seed=1, temperature=0)
        for _ in range(count):
            (token,) = model.engine.step([BatchEntry(0, fed, sampling)])
            assert isinstance(token, int)
            fed = [token]

    library.begin([9, 9])  # what the slot has of the prompt goes
    library.say("end 0")
    library.begin(ids)
    ours = timed(lambda: library.say(f"next 0 {count}"), library.worked)
    library.say("end 0")
    return ours, timed(engine, time.process_time)


def driver(folder: Path, library: Path) -> Path:
    """The test driver, linked with the library as programs are."""
    source, include = ROOT / "tests" / "cext" / "embed" / "driver.c", ROOT / "cext" / "embed" / "include"
    made = ["cc", "-O2", "-DPUBLIC_FUNCTIONS", f"-I{include}", source, "-o", folder / "driver"]
    subprocess.run([*made, f"-L{library}", "-lsatchel", f"-Wl,-rpath,{library}"], check=True)
    return folder / "driver"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", type=Path)
    parser.add_argument("--library", type=Path, required=True, help="folder of libsatchel.so")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("-t", "--threads", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(driver(Path(folder), given.library.resolve()), given)


def report(program: Path, given: argparse.Namespace) -> None:
    ids, runs = [*range(100, 100 + PROMPT)], range(given.pairs)
    taken, worked = zip(*(first_token(program, given.app, ids, given.threads) for _ in runs), strict=True)
    print(
        f"start to first token, prompt of {PROMPT}: median {median(taken):.0f} ms, least {min(taken):.0f} ms"
    )
    print(f"processors worked for it: median {median(worked):.0f} ms")
    library = Library(program, given.app, given.threads)
    with Model.load(given.app, context=1024, slots=1, device="cpu", threads=given.threads) as model:
        for name, prompt, count in (
            (f"prompt of {LONG}", [i % 15000 for i in range(LONG)], 1),
            (f"{TOKENS} tokens", ids, TOKENS),
        ):
            speeds(library, model, prompt, count)
            pairs = [speeds(library, model, prompt, count) for _ in runs]
            ratio = median(other[0] / ours[0] for ours, other in pairs)
            least = min(other[0] for _, other in pairs) / min(ours[0] for ours, _ in pairs)
            spent = sum(other[1] for _, other in pairs) / sum(ours[1] for ours, _ in pairs)
            rate = (len(prompt) if count == 1 else count) / median(ours[0] for ours, _ in pairs)
            print(f"{name}: {rate:.0f} tokens/s, {ratio:.3f} of the Python engine's speed")
            print(f"  by the least times of both: {least:.3f}; by processors' time: {spent:.3f}")
    memory, size = library.memory(), given.app.stat().st_size / 1e6
    own, files = memory["RssAnon"], memory["RssFile"]
    print(f"resident: {own:.0f} MB of its own, {files:.0f} MB of files (the model's has {size:.0f} MB)")
    library.close()


if __name__ == "__main__":
    main()
