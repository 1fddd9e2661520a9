"""Renders Markdown as terminal lines, and finds the part of an unfinished text whose rendering is final.

No text is dropped: HTML and images stay source text, link addresses are shown beside the link's text, and a
line break in the source is a line break in the output.
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

THEME = "ansi_dark"  # uses the terminal's colours
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
# blocks that can continue after an empty line
GO_ON = ("bullet_list_open", "ordered_list_open", "code_block")
PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        text.justify = "left"
        yield text


class _CodeBlock(CodeBlock):
    """Code inside a list or a quote, wrapped to its width."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=THEME,
            word_wrap=True,
        )


class _Item(ListItem):
    """A list item with a hanging indent after its bullet or number."""

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
    """The lines with their line feeds. Only a line feed ends a line."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


@dataclass(frozen=True, slots=True)
class Beginning:
    """The final part at the beginning of a text: complete blocks, or the opening line of a code fence."""

    length: int = 0  # characters
    fence: str = ""  # the fence's marker; "" for complete blocks
    language: str = ""


def beginning(text: str) -> Beginning:
    """The part of the text whose rendering cannot change when more text follows. A block is complete at an
    empty line; a list only when a whole line of another block follows, because until then it can continue.
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
    """Renders text to styled lines without line ends. colour: False keeps bold and other attributes."""

    def __init__(self, *, colour: bool = True) -> None:
        self._colour = colour
        self._console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False, theme=STYLES)

    def blocks(self, text: str, width: int) -> list[str]:
        """The lines of all blocks, complete or not, with an empty line between two blocks."""
        found: list[str] = []
        for block in _top_level(PARSER.parse(text)):
            lines = self._lines(_Block(block), width)
            found += [*([""] if found and lines else []), *lines]
        return found

    def code(self, text: str, language: str) -> list[str]:
        """Highlighted lines of code, unwrapped: the terminal wraps them, so that copied code is unchanged."""
        syntax = Syntax("", language or "text", theme=THEME)
        count = text.count("\n")
        lines = syntax.highlight(text).split("\n", allow_blank=True)[:count]
        return [self._line(line) for line in lines]

    def wrapped(self, text: str, width: int) -> list[str]:
        """Plain text wrapped to a width."""
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
    """The tokens of each top-level block."""
    block: list[Token] = []
    for token in tokens:
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


def _stripped(row: list[Segment]) -> list[Segment]:
    """The row without trailing spaces."""
    while row and not row[-1].text.strip():
        row = row[:-1]
    if row:
        row = [*row[:-1], row[-1]._replace(text=row[-1].text.rstrip())]
    return row
