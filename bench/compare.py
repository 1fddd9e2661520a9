"""Satchel and llama.cpp side by side on this machine: one table of speeds, ratios and shares of the read
bandwidth.

    python bench/compare.py [--quick] [--only llama-3.2-1b] [--rows pp512,tg64] [--repeats 5] [--apart]
                            [--markdown FILE] [--json FILE] [--models FILE_OR_FOLDER ...]

Needs `pip install 'satchel[bench]'` (llama-cpp-python) and, for the whole table, 9 GB of disk and 8 GB of
memory. Without --models it writes files of random weights in the shapes of known models to --work: speed
depends on shapes and formats, not on the values.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import compare_table as table
import make_shape
from compare_engines import MODES, Row
from compare_seats import Outcome, Seat, cores, measure_row

from satchel.errors import RequestError, SatchelError
from satchel.formats.quantize import find_recipe, quantize_file
from satchel.store.resolve import default_model

ROOT = Path(__file__).resolve().parent.parent
LONG = 4096  # tokens above which a row counts as long
LONG_REPEATS = 3
QUIET = 0.25  # load average per core below which the machine counts as idle
BUNDLED = "bundled"
INTERRUPTED = "interrupted: not all rows were measured"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and the rows to measure."""

    shape: str  # of make_shape.py, or BUNDLED
    type: str
    rows: tuple[Row, ...]
    narrow: str = ""  # as in make_shape.py

    @property
    def name(self) -> str:
        return f"{self.shape} {self.type}"

    @property
    def file(self) -> str:
        return f"{self.shape}-{self.type}.gguf".lower()


def prompt(n: int) -> Row:
    return Row(f"pp{n}", prompt=n)


def generate(n: int) -> Row:
    return Row(f"tg{n}", generate=n)


def batch(sequences: int) -> Row:
    return Row(f"tg32 x{sequences}", generate=32, sequences=sequences)


BUSY = Row("tg64 busy", generate=64, busy=True)
DEEP = Row("tg32 @8192", generate=32, depth=8192)
LLAMA, QWEN = "llama-3.2-1b", "qwen2.5-0.5b"
SUBJECTS: tuple[Subject, ...] = (
    Subject(
        LLAMA, "Q4_K_M",
        (prompt(512), generate(64), batch(4), batch(8), batch(16), BUSY, prompt(8192), DEEP),
    ),
    Subject(LLAMA, "Q8_0", (prompt(512), generate(64))),
    Subject(LLAMA, "BF16", (prompt(512),)),
    Subject(LLAMA, "F16", (prompt(512), generate(32))),
    # Rows of 896 values are not a multiple of 256, so they need an 8-bit format.
    Subject(QWEN, "Q4_K_M", (prompt(512), generate(64)), narrow="q8_0"),
    Subject(BUNDLED, "Q4_K_M", (prompt(512), generate(128))),
)  # fmt: skip


def same(name: str) -> str:
    """A name without case and separators, for comparisons."""
    return "".join(c for c in name.lower() if c.isalnum() or c == ".")


def split(text: str) -> list[str]:
    """The names of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def select(subjects: Sequence[Subject], only: str, rows: str, quick: bool) -> list[Subject]:
    """The subjects whose name contains one of `only`, each with the rows that `rows` names. RequestError for
    an unknown name.
    """
    names = [s.name for s in subjects]
    known = list(dict.fromkeys(r.name for s in subjects for r in s.rows))
    for part in split(only):
        if not any(same(part) in same(name) for name in names):
            raise RequestError(f"--only {part}: expected a part of one of {', '.join(names)}")
    for part in split(rows):
        if same(part) not in map(same, known):
            raise RequestError(f"--rows {part}: expected one of {', '.join(known)}")
    wanted, found = [same(r) for r in split(rows)], []
    for s in subjects:
        kept = tuple(r for r in s.rows if (not rows or same(r.name) in wanted) and not (quick and is_long(r)))
        if kept and (not only or any(same(part) in same(s.name) for part in split(only))):
            found.append(Subject(s.shape, s.type, kept, s.narrow))
    if not found:
        raise RequestError("no row is left to measure: take --only, --rows or --quick back")
    return found


def is_long(row: Row) -> bool:
    return row.prompt + row.depth >= LONG


def given(paths: Iterable[Path]) -> list[Path]:
    """The named GGUF files, and those in named folders."""
    found: list[Path] = []
    for path in paths:
        files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
        if not files or not all(f.is_file() for f in files):
            raise RequestError(f"--models {path}: expected a GGUF file or a folder of them")
        found += files
    return found


def match(files: Iterable[Path]) -> list[tuple[Subject, Path]]:
    """Each file with the subject whose shape and type its name contains; any other file gets pp512 and
    tg64.
    """
    found = []
    for path in files:
        name = same(path.stem)
        known = (s for s in SUBJECTS if same(s.shape) in name and same(s.type) in name)
        other = Subject(path.stem, "", (prompt(512), generate(64)))
        found.append((next(known, other), path))
    return found


def provide(subject: Subject, work: Path, note: Callable[[str], None]) -> Path:
    """The subject's file under `work`, which is created where it is missing."""
    target = work / subject.file
    if subject.shape != BUNDLED:
        said = f", rows that are no multiple of 256 in {subject.narrow.upper()}" if subject.narrow else ""
        note(f"{subject.name}: random weights{said}, made by bench/make_shape.py")
        return target if target.is_file() else make_shape.make(
            subject.shape, subject.type, target, subject.narrow
        )  # fmt: skip
    better = ROOT.parent / "shared" / "default-model" / "satchel-40m-bf16.gguf"
    source = better if better.is_file() else default_model()
    note(f"{subject.name}: made by `satchel quantize` from {source.name}")
    if not target.is_file():
        work.mkdir(parents=True, exist_ok=True)
        quantize_file(source, target, find_recipe(subject.type), requantize=True)
    return target


def seats_of(path: Path, threads: int) -> list[Seat]:
    return [Seat(table.PEER, path, threads, tuple(MODES)), Seat(table.OURS, path, threads)]


@dataclass(frozen=True, slots=True)
class Found:
    """The results so far, updated after each row, so that an interrupted run still prints a table."""

    outcomes: list[Outcome]
    notes: list[str]


def measure(
    subject: Subject,
    name: str,
    seats: Sequence[Seat],
    repeats: int,
    found: Found,
    said: Callable[[str], None],
    apart: bool = False,
) -> None:
    """Measures all rows of a model. apart: as in measure_row."""
    try:
        for row in subject.rows:
            times = min(repeats, LONG_REPEATS) if is_long(row) else repeats
            found.outcomes.append(measure_row(name, row, seats, times, said, apart))
    finally:
        for seat in seats:
            seat.close()
            found.notes.extend(seat.notes)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", type=Path, nargs="+", metavar="PATH", help="GGUF files, or folders of them"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME", help="models whose name holds this; several: a,b"
    )
    parser.add_argument("--rows", default="", metavar="NAMES", help="tests: pp512,tg64,...")
    parser.add_argument("--quick", action="store_true", help="no prompt and no depth of thousands of tokens")
    parser.add_argument("--repeats", type=int, default=5, help=f"runs of a test (long ones: {LONG_REPEATS})")
    parser.add_argument("--threads", type=int, default=cores(), help="of each engine; default: all")
    parser.add_argument("--apart", action="store_true", help="one engine loaded at a time: for large files")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "compare", help="where files are made")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    return parser.parse_args(words)


def subjects_of(o: argparse.Namespace) -> list[tuple[Subject, Path | None]]:
    """The subjects to measure. A path of None means that the file is to be created."""
    if not o.models:
        return [(s, None) for s in select(SUBJECTS, o.only, o.rows, o.quick)]
    pairs = match(given(o.models))
    paths = {s.name: path for s, path in pairs}
    if len(paths) < len(pairs):
        raise RequestError(f"--models: two files stand for one of {', '.join(sorted(paths))}")
    return [(s, paths[s.name]) for s in select([s for s, _ in pairs], o.only, o.rows, o.quick)]


def check(o: argparse.Namespace) -> None:
    """RequestError for a measurement that this machine can't make."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise RequestError("llama-cpp-python is not installed: pip install 'satchel[bench]'")
    for name in ("repeats", "threads"):
        if getattr(o, name) < 1:
            raise RequestError(f"--{name} {getattr(o, name)}: expected 1 or more")
    for path in (o.markdown, o.json):
        if path is not None and not path.parent.is_dir():
            raise RequestError(f"{path}: there is no folder {path.parent}")


def busy_note() -> Iterator[str]:
    """A note where the machine has other load, which slows engines with spinning threads more than others."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > QUIET * cores():
        yield f"other work ran here (load average {load:.1f} at the start), which distorts the ratios"


def say(text: str) -> None:
    """Prints a progress line on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def run(o: argparse.Namespace, words: Sequence[str]) -> Found:
    """Measures and writes the results, also those from before an interruption."""
    check(o)
    found = Found([], list(busy_note()))
    try:
        for subject, path in subjects_of(o):
            name = subject.name.strip()
            say(f"{name}: making the file")
            path = path or provide(subject, o.work, found.notes.append)
            measure(subject, name, seats_of(path, o.threads), o.repeats, found, say, o.apart)
    except KeyboardInterrupt:
        found.notes.append(INTERRUPTED)
    say("")
    about = table.machine(ROOT, o.threads)
    line = shlex.join(["python", "bench/compare.py", *words])
    text = table.markdown(about, found.outcomes, found.notes, line)
    print(text, end="")
    if o.markdown:
        o.markdown.write_text(text, encoding="utf-8")
    if o.json:
        data = table.record(about, found.outcomes, found.notes)
        o.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Returns 0 where every cell was measured, 1 where one was not, 2 where none could be."""
    o = parse(words)
    try:
        found = run(o, sys.argv[1:] if words is None else words)
    except (SatchelError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    whole = INTERRUPTED not in found.notes and not any(o.failures for o in found.outcomes)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
