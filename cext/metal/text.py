"""Makes the source text that Metal compiles: the prelude, then the preprocessed declarations that a kernel
needs, then a zero. Functions that no kernel calls are left out: their pointers name no address space, and
compiling takes time.

    text.py OUT PREPROCESSED FRONT...
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WORD = re.compile(r"[A-Za-z_]\w*")
OPEN, SHUT = "{([", "})]"
DATA = re.compile(r"(typedef|struct|enum|static_assert)\b")


def declarations(text: str) -> Iterator[str]:
    """The text cut behind each declaration at file scope."""
    depth = start = 0
    for at, mark in enumerate(text):
        depth += (mark in OPEN) - (mark in SHUT)
        done = text[start : at + 1].strip()
        body = mark == "}" and not DATA.match(done) and "=" not in done.split("{")[0]
        if depth == 0 and (mark == ";" or body):
            if done != ";":
                yield done
            start = at + 1


def name_of(declaration: str) -> str:
    """What it declares; "" of what has no name."""
    head = re.sub(r"\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)", "", declaration, flags=re.S)
    if head.startswith("typedef"):
        return str(WORD.findall(head)[-1])
    if DATA.match(head):
        return ""
    return str(WORD.findall(re.split(r"[(\[=]", head)[0])[-1])


def needed(text: str) -> list[str]:
    """The declarations that kernels refer to, directly or by others, in their order."""
    all_of = [(name_of(d), d, set(WORD.findall(d))) for d in declarations(text)]
    by_name: dict[str, set[str]] = {}
    for name, _, words in all_of:
        by_name.setdefault(name, set()).update(words)
    reached: set[str] = set()
    waiting = [name for name, d, _ in all_of if d.startswith("[[kernel")]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(by_name[name] & by_name.keys())
    return [
        d
        for name, d, words in all_of
        if name in reached or (not name and wanted(d, words & by_name.keys(), reached))
    ]


def wanted(declaration: str, named: set[str], reached: set[str]) -> bool:
    """Whether what has no name is kept: constants are, and what is asserted of them or of a type that is.
    named: the names of others in it."""
    return not declaration.startswith("static_assert") or named <= reached


def main(out: Path, source: Path, *front: Path) -> None:
    parts = [path.read_text() for path in front] + ["\n".join(needed(source.read_text())) + "\n"]
    out.write_bytes("\n".join(parts).encode() + b"\0")


if __name__ == "__main__":
    main(*(Path(a) for a in sys.argv[1:]))
