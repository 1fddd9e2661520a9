"""Generates docs/llama-cpp-flags.md: what every flag of llama-cli and llama-server does here. The table in
cli/llama_cpp and the options that the commands declare are its source.

`python tests/support/llama_flags_page.py` writes the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from doc_tables import code, table

from satchel.cli.llama_cpp.arguments import CHATS, verdict_of
from satchel.cli.llama_cpp.table import OLDER, TABLES
from satchel.cli.llama_cpp.verdict import NOTE, REFUSED, SAME, SERVE, FlagVerdict, Row, same
from satchel.cli.main import declared, parsed

PAGE = Path(__file__).parents[2] / "docs" / "llama-cpp-flags.md"
WORDS = {SAME: "same", NOTE: "no effect", REFUSED: "refused"}
HEAD = """# Flags of llama.cpp

<!-- `python tests/support/llama_flags_page.py` writes this page; a test keeps it current. -->

Every flag of `llama-cli` and `llama-server` does one of three things here:

- **same**: it means the same. A difference is named beside it.
- **no effect**: it is accepted, and one line on stderr says why it changes nothing.
- **refused**: the command ends with exit code 2 before a model is opened, and says what to use instead.

The flags of `llama-cli` are those of `satchel chat` and `satchel run`, the flags of `llama-server` those of
`satchel serve`. Names may have `_` for `-`, and a value may stand behind `=`. Options are also read from
llama.cpp's environment variables, such as `LLAMA_ARG_CTX_SIZE`. The flags are those of llama.cpp 0c1e57098,
with a few of the releases around it.

"""


@cache
def options(command: str) -> frozenset[str]:
    """The spellings that a command declares."""
    return frozenset(declared(parsed(command)))


def verdict(row: Row, flag: str, program: str) -> FlagVerdict:
    """What a flag does in place of a program: the table's verdict, unless a command has the flag."""
    commands = (SERVE,) if program == "llama-server" else CHATS
    own = row.server if program == "llama-server" else row.cli
    if any(flag in options(command) for command in commands):
        return own if own is not None and own.kind == SAME else same()
    return verdict_of(commands[-1], flag)


def lines(row: Row, program: str) -> Iterator[tuple[tuple[str, ...], FlagVerdict]]:
    """The row's spellings by verdict: those of one flag may differ."""
    found: dict[FlagVerdict, list[str]] = {}
    for flag in row.flags:
        found.setdefault(verdict(row, flag, program), []).append(flag)
    return ((tuple(flags), said) for said, flags in found.items())


def rows_of(program: str, tables: Iterable[Sequence[Row]] = TABLES) -> Iterator[Row]:
    """The rows of a program's table."""
    serves = program == "llama-server"
    return (row for table in tables for row in table if (row.server if serves else row.cli) is not None)


def counted(program: str) -> Counter[str]:
    """The number of spellings by kind of verdict."""
    found: Counter[str] = Counter()
    for row in rows_of(program):
        for flags, said in lines(row, program):
            found[said.kind] += len(flags)
    return found


def summary() -> Iterator[str]:
    rows = []
    for program in ("llama-cli", "llama-server"):
        found = counted(program)
        numbers = (found.total(), found[SAME], found[NOTE], found[REFUSED])
        rows.append((code(program), *map(str, numbers)))
    return table(("program", "spellings", "same", "no effect", "refused"), rows)


def flags_of(program: str, tables: Iterable[Sequence[Row]] = TABLES) -> Iterator[str]:
    rows = (
        (" ".join(map(code, flags)), WORDS[said.kind], said.text)
        for row in rows_of(program, tables)
        for flags, said in lines(row, program)
    )
    return table(("flag", "here", ""), rows)


def page() -> str:
    parts = [
        *summary(),
        "\n## llama-cli: `satchel chat`, `satchel run`\n",
        *flags_of("llama-cli"),
        "\n## llama-server: `satchel serve`\n",
        *flags_of("llama-server"),
        "\n## Older flags\n",
        "Flags of earlier versions, in `satchel chat` and `satchel run`:\n",
        *flags_of("llama-cli", (OLDER,)),
    ]
    return HEAD + "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
