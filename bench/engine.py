"""Benchmark of the engine's guarantees to its callers: one table of figures beside their targets.

python bench/engine.py [--only second,clients] [--model FILE] [--large FILE] [--markdown FILE] [--json FILE]

--model: a small chat model (the bundled one). --large: a file of the 1.2B shape in Q4_K_M, which `clients`
needs (bench/compare.py makes it: build/compare/llama-3.2-1b-q4_k_m.gguf). The peer is llama-cpp-python of
`pip install 'satchel[bench]'`; without it, its column stays empty.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_rows import ROWS, Files, Finding
from findings import tell

from satchel.errors import SatchelError
from satchel.store.resolve import default_model

ROOT = Path(__file__).resolve().parent.parent
LARGE = ROOT / "build" / "compare" / "llama-3.2-1b-q4_k_m.gguf"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the engine owes its callers, measured.")
    parser.add_argument("--only", default="", help=f"rows, by comma: {', '.join(ROWS)}")
    parser.add_argument("--model", type=Path, default=None, help="a small model that answers")
    parser.add_argument("--large", type=Path, default=LARGE, help="the 1.2B shape in Q4_K_M")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--json", type=Path, help="write the findings here")
    found = parser.parse_args(argv)
    names = [n for n in found.only.split(",") if n] or list(ROWS)
    unknown = [n for n in names if n not in ROWS]
    if unknown:
        parser.error(f"--only: no row is named {', '.join(unknown)}; there are {', '.join(ROWS)}")
    found.rows = names
    return found


def measure(rows: Sequence[str], files: Files, say: Callable[[str], None]) -> list[Finding]:
    """Runs the rows one after another; a row that fails is a finding too."""
    found: list[Finding] = []
    for name in rows:
        say(f"{name} ...")
        try:
            found += ROWS[name](files)
        except (SatchelError, OSError) as error:
            found.append(Finding(name, f"not measured: {error}", "", None))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    files = Files(options.model or Path(default_model()), options.large)
    found = measure(options.rows, files, lambda text: print(text, file=sys.stderr))
    return tell(found, options)


if __name__ == "__main__":
    sys.exit(main())
