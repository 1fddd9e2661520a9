"""The help of a command: its common options on one screen (`--help`), or all by task (`--help-all`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperArgument, TyperCommand, TyperOption

from satchel.cli.lines import EXAMPLES, WIDTH, at_word, wrapped

HEIGHT = 23  # of `--help`: the last of 24 lines has the shell's prompt
LEFT = 34  # most columns of an option's names
INDENT = 22  # columns before the description in `--help-all`, where the names fill a line of their own
KINDS = {int: "N", float: "NUMBER", Path: "FILE"}
# Of the options that several commands share, those that most users need, the most needed first.
COMMON = """
--model --hf-repo --url --prompt --n-prompt --n-gen --file --system-prompt --session --host --port --api-key
--predict --ctx-size --parallel --temp --seed --json-schema-file --reasoning --gpu-layers --threads
--on-overflow --alias --models-memory --device --json --verbose --output --repetitions --profile
"""


class HelpCommand(TyperCommand):
    """A command with the help of this module."""

    everything = False  # whether the help shows all options
    sections: Mapping[
        str, str
    ] = {}  # titles of options in `--help-all`, by parameter; "Options" for the others

    def format_help(self, ctx: Any, formatter: Any) -> None:
        text, _, examples = (self.help or "").partition(EXAMPLES)
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
        lines = [line.strip() for line in examples.strip().split("\n") if line.strip()]
        usage = f"Usage: {' '.join([ctx.command_path, '[OPTIONS]', *map(_argument, self._arguments())])}"
        page = self._whole if self.everything else self._short
        formatter.write("\n".join(page(usage, paragraphs, lines)) + "\n")

    def _arguments(self) -> list[Any]:
        return [p for p in self.params if isinstance(p, TyperArgument) and not p.hidden]

    def _options(self) -> list[Any]:
        return [p for p in self.params if isinstance(p, TyperOption) and not p.hidden]

    def _short(self, usage: str, paragraphs: Sequence[str], examples: Sequence[str]) -> Iterator[str]:
        """Usage, summary, examples, and a line for each of the common options."""
        ranks = {name: rank for rank, name in enumerate(COMMON.split())}
        last = len(ranks)
        options = sorted(
            self._options(), key=lambda p: min((ranks.get(o, last) for o in p.opts), default=last)
        )
        head = [*wrapped(usage), "", *wrapped("".join(paragraphs[:1])), ""]
        if examples:
            head += [EXAMPLES, *(f"  {line}" for line in examples), ""]
        rows = [(_argument(p), p.help or "") for p in self._arguments()]
        room = HEIGHT - len(head) - len(rows) - 3  # a title, an empty line and the footer
        rows += [(_names(p, short=True), p.help or "") for p in options[:room]]
        width = min(LEFT, max((len(left) for left, _ in rows), default=0))
        yield from head
        yield "Common options:" if len(options) > room else "Options:"
        yield from (f"  {left:<{width}}  {_line(text, WIDTH - width - 4)}" for left, text in rows)
        yield ""
        what = f"all {len(options)} options" if len(options) > room else "more about them"
        yield f"--help-all: {what}, with defaults"

    def _whole(self, usage: str, paragraphs: Sequence[str], examples: Sequence[str]) -> Iterator[str]:
        """All of the description, and all options by task."""
        yield from wrapped(usage)
        for text in paragraphs:
            yield from ["", *wrapped(text)]
        if examples:
            yield from ["", EXAMPLES, *(f"  {line}" for line in examples)]
        sections: dict[str, list[Any]] = {"Arguments": self._arguments()}
        for param in self._options():
            sections.setdefault(self.sections.get(param.name, "Options"), []).append(param)
        for title, params in sections.items():
            if params:
                yield from ["", f"{title}:"]
            for param in params:
                yield from _entry(param)


def _entry(param: Any) -> Iterator[str]:
    """The lines of a parameter with all of its names."""
    left = _argument(param) if isinstance(param, TyperArgument) else _names(param)
    notes = [_default(param), _range(param)]
    noted = "; ".join(note for note in notes if note)
    text = f"{param.help or ''}{f'  [{noted}]' if noted else ''}"
    lines = wrapped(text, WIDTH - INDENT) or [""]
    if len(left) + 4 <= INDENT:
        yield f"  {left:<{INDENT - 2}}{lines.pop(0)}"
    else:
        yield from (f"  {line}" for line in wrapped(left, WIDTH - 2))
    yield from (f"{'':<{INDENT}}{line}" for line in lines)


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    name = name if param.nargs == 1 or "..." in name or name.startswith("[") else f"{name}..."
    return name if param.required or name.startswith("[") else f"[{name}]"


def _names(param: Any, short: bool = False) -> str:
    """The names of an option, and what follows them. short: at most one of each length."""
    names, negative = param.opts, param.secondary_opts
    if short:
        names = [*[n for n in names if n[:2] != "--"][:1], *[n for n in names if n[:2] == "--"][:1]]
        negative = [n for n in negative if n[:2] == "--"][:1]
        negative = [] if sum(map(len, (*names, *negative))) > LEFT - 5 else negative
    text = " / ".join(", ".join(part) for part in (names, negative) if part)
    return text if param.is_flag else f"{text} {_value(param)}"


def _value(param: Any) -> str:
    """What the value of an option is called."""
    if param.metavar:
        return str(param.metavar)
    kind = param.type_descriptor.annotation
    return KINDS.get(next(iter(get_args(kind)), kind), "TEXT")


def _default(param: Any) -> str:
    value = param.default
    if (
        callable(value)
        or value in (None, "", (), [])
        or (param.param_type_name == "option" and param.is_flag)
    ):
        return ""
    return (
        f"default: {value!r}" if isinstance(value, str) and not value.isprintable() else f"default: {value}"
    )


def _range(param: Any) -> str:
    low, high = param.min, param.max
    if low is None or high is None:
        return f"at least {low}" if low is not None else ""
    return f"{low} to {high}"


def _line(text: str, width: int) -> str:
    """The text in one line: whole, or to the end of its first clause, or cut at a word."""
    clauses = (text, text.partition(". ")[0], text.partition("; ")[0])
    found = next((one for one in clauses if len(one) <= width), None)
    return (found or at_word(text, width)).rstrip(".")
