"""Markdown as lines for a terminal, and where an unfinished text can be cut: what stands before the cut will
look the same whatever comes.

Nothing is left out: HTML and images stay as they were written, addresses of links are shown beside their
text, and a line end is one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from markdown_it import MarkdownIt
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

if TYPE_CHECKING:
    from markdown_it.token import Token

THEME = "ansi_dark"  # the terminal's own colours
STYLES = Theme(
    {
        "markdown.code": "cyan",
        **{f"markdown.h{level}": "none" for level in range(1, 7)},
        "markdown.list": "none",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
    }
)
GO_ON = ("bullet_list_open", "ordered_list_open", "code_block")  # behind an empty line too
PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        text.justify = "left"
        yield text


class _CodeBlock(CodeBlock):
    """Code inside of a list or a quote, which is wrapped with it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=THEME,
            word_wrap=True,
        )


class _Item(ListItem):
    """An item whose lines hang behind its bullet or its number."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._hung(console, options, " • ", "markdown.item.bullet")

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        head = f"{number}.".rjust(len(str(last_number)) + 2) + " "
        return self._hung(console, options, head, "markdown.item.number")

    def _hung(self, console: Console, options: ConsoleOptions, head: str, style: str) -> RenderResult:
        inner = options.update(width=max(1, options.max_width - len(head)))
        for i, line in enumerate(console.render_lines(self.elements, inner, style=self.style)):
            yield Segment(" " * len(head) if i else head, console.get_style(style))
            yield from line
            yield Segment("\n")


class _Block(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False, code_theme=THEME)
        for token in tokens:
            for child in token.children or ():
                child.type = "hardbreak" if child.type == "softbreak" else child.type
        self.parsed = tokens


def lines_of(text: str) -> list[str]:
    """Lines with their ends; a line ends with a line feed and nothing else."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What stands at the beginning of a text: so many characters of blocks that are over, or, if `fence` is
    not empty, an opened fence, whose first line is so long.
    """

    length: int = 0
    fence: str = ""
    language: str = ""


def beginning(text: str) -> Beginning:
    """What of the text can look no other, whatever comes behind it. A block is over at an empty line, a list
    when another block stands behind it with a whole line, for until then it may go on.
    """
    whole = text[: text.rfind("\n") + 1]
    tops = [t for t in PARSER.parse(whole) if t.level == 0 and t.map and t.nesting >= 0]
    lines = lines_of(whole)
    if not tops:
        return Beginning()
    first, last = tops[0], tops[-1]
    start = (first.map or [0])[0]
    if first.type == "fence":
        length = sum(map(len, lines[: start + 1]))
        return Beginning(length, first.markup, first.info.strip().partition(" ")[0])
    fences = [t for t in tops if t.type == "fence"]
    if not fences and whole.endswith("\n\n") and last.type not in GO_ON:
        return Beginning(len(whole))
    end = (fences or [last])[0].map
    return Beginning(sum(map(len, lines[: end[0]])) if end and len(tops) > 1 else 0)


class Painter:
    """Turns text into styled lines. colour: False keeps bold and the like. Lines have no line end."""

    def __init__(self, *, colour: bool = True) -> None:
        self._colour = colour
        self._console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False, theme=STYLES)

    def blocks(self, text: str, width: int) -> list[str]:
        """The lines of blocks, finished or not, with an empty one between two of them."""
        found: list[str] = []
        for block in _top_level(PARSER.parse(text)):
            lines = self._lines(_Block(block), width)
            found += [*([""] if found and lines else []), *lines]
        return found

    def code(self, text: str, language: str) -> list[str]:
        """Whole lines of code, for the terminal to wrap: copied from there, they are what was written."""
        syntax = Syntax("", language or "text", theme=THEME)
        count = text.count("\n")
        lines = syntax.highlight(text).split("\n", allow_blank=True)[:count]
        return [self._line(line) for line in lines]

    def wrapped(self, text: str, width: int) -> list[str]:
        """Plain text cut into lines of a width."""
        return self._lines(Text(text.expandtabs(8), overflow="fold"), width)

    def dim(self, text: str) -> str:
        return self._line(Text(text, style="dim"))

    def _lines(self, what: Markdown | Text, width: int) -> list[str]:
        options = self._console.options.update(width=max(1, width), height=None)
        rows = self._console.render_lines(what, options, pad=False)
        lines = [self._ansi(_stripped(row)) for row in rows]
        while lines and not lines[-1]:
            lines.pop()
        while lines and not lines[0]:
            lines.pop(0)
        return lines

    def _line(self, text: Text) -> str:
        return self._ansi(s for s in text.render(self._console) if s.text != "\n")

    def _ansi(self, segments: Iterable[Segment]) -> str:
        kept = segments if self._colour else Segment.remove_color(segments)
        return "".join(
            s.style.render(s.text, color_system=ColorSystem.STANDARD) if s.style else s.text for s in kept
        )


def _top_level(tokens: list[Token]) -> Iterator[list[Token]]:
    """The tokens of each block that stands in no other."""
    block: list[Token] = []
    for token in tokens:
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


def _stripped(row: list[Segment]) -> list[Segment]:
    """Without the spaces at its end."""
    while row and not row[-1].text.strip():
        row = row[:-1]
    if row:
        row = [*row[:-1], row[-1]._replace(text=row[-1].text.rstrip())]
    return row
