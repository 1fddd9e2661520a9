"""Answers rendered while they stream: however the text is cut, the final screen equals that of the whole
text.
"""

from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest
from screen_model import ScreenModel

from satchel.cli.chat import rendered
from satchel.cli.chat.display import Look
from satchel.cli.chat.live import STYLE, Live, height
from satchel.cli.chat.markdown import Painter, beginning
from satchel.cli.chat.rendered import MarkdownWriter

TEXTS = {
    "prose": "One **bold** word and *another*,\nin two lines.\n\nA second paragraph with `code` in it.\n",
    "lists": "Three:\n\n- one\n- two\n  - inner\n\n1. first\n2. second\n\n   more of it\n3. c\n\nThe end.",
    "code": "Look:\n\n```python\ndef f(x):\n\n    return '日本' + x\n```\nDone.\n\n~~~\n```\n~~~\n",
    "open code": "```c\nint main(void)\n{\n\treturn 0;",
    "long code": "```\n" + "a line of code that is longer than the terminal is wide\n" * 30 + "```\n",
    "table": "| a | b |\n|---|---:|\n| 日本語 | 1 |\n| two words | 22 |\n\nafter",
    "rest": "# Head\n\nTitle\n===\n\n> quoted\n> text\n\n---\n\n<b>html</b> &amp; [x](http://y) ![z](w)\n",
    "wide": "日本語のテキスト" * 12 + "\n\n" + "é" * 50 + " 👩‍💻 ok\n",
    "tall": "word " * 400 + "\n\nend",
    "odd": "a\u2028b\x0cc\x1b[2J\r\n\n*\n\n-\n\n1.\n\n```\n\n\n",
    "empty": "\n\n\n",
    "thought": "<think>Hm, what\nnow?</think>\n\n## Well\n\ntext",
}


def shown(text: str, pieces: list[str], columns: int, rows: int) -> str:
    stream, screen = io.StringIO(), ScreenModel(columns, rows)
    writer = MarkdownWriter(stream, Look(True, True, True, True), lambda: (columns, rows))
    for piece in pieces:
        writer.write(piece)
        screen.feed(stream.getvalue())
        stream.seek(0)
        stream.truncate()
    writer.finish()
    screen.feed(stream.getvalue())
    return screen.text()


def cuts(text: str, seed: int) -> list[str]:
    draw = random.Random(seed)
    places = sorted(draw.sample(range(len(text) + 1), min(len(text), draw.choice((1, 5, 40, 200)))))
    return [text[a:b] for a, b in pairwise([0, *places, len(text)])]


@pytest.mark.parametrize("size", [(80, 24), (20, 6), (7, 4)])
@pytest.mark.parametrize("name", TEXTS)
def test_the_screen_ends_alike_whatever_the_cuts(
    monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(rendered, "PERIOD", -1.0)
    monkeypatch.setattr(rendered, "SHARE", 0)
    text = TEXTS[name]
    whole = shown(text, [text], *size)
    for seed in range(3):
        assert shown(text, cuts(text, seed), *size) == whole


def test_what_is_over_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendered, "PERIOD", -1.0)
    monkeypatch.setattr(rendered, "SHARE", 0)
    stream = io.StringIO()
    writer = MarkdownWriter(stream, Look(True, True, True, True), lambda: (60, 24))
    text = "The first paragraph.\n\n```\nthe code\n```\n\n" + "The last one grows and grows. " * 9
    for letter in text:
        writer.write(letter)
    writer.finish()
    assert stream.getvalue().count("first paragraph.") == 1
    assert stream.getvalue().count("the code") == 1
    assert "\x1b[2J" not in stream.getvalue() and "\x1b[J" not in stream.getvalue()


def test_nothing_is_left_out() -> None:
    found = STYLE.sub("", "\n".join(Painter(colour=False).blocks(TEXTS["rest"], 80)))
    for part in ("Head", "Title", "quoted", "<b>html</b> &", "(http://y)", "(w)"):
        assert part in found


def test_lines_of_text_stay_lines() -> None:
    assert Painter(colour=False).blocks("roses\nviolets", 80) == ["roses", "violets"]


def test_colour_is_left_out_and_bold_is_not() -> None:
    lines = Painter(colour=False).blocks("**a** `b`", 80) + Painter(colour=False).code("def f():\n", "python")
    assert "\x1b[1ma\x1b[0m b" in lines and not any("\x1b[3" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "length", "fence"),
    [
        ("", 0, ""),
        ("a", 0, ""),
        ("a\n\nb", 3, ""),
        ("a\n\n", 3, ""),
        ("- a\n\n", 0, ""),
        ("    a\n\n", 0, ""),
        ("a\n\nb\n", 3, ""),
        ("- a\n\n2", 0, ""),
        ("1. a\n\n2. b\n", 0, ""),
        ("1. a\n\nfoo\n", 6, ""),
        ("a\n---\n", 0, ""),
        ("a\n```\n", 2, ""),
        ("```py x\n", 8, "```"),
        ("```py", 0, ""),
        ("\n~~~~\nb\n", 6, "~~~~"),
        ("- ```\n  a\n\nb\n", 11, ""),
    ],
)
def test_where_nothing_can_change_any_more(text: str, length: int, fence: str) -> None:
    found = beginning(text)
    assert (found.length, found.fence) == (length, fence)


def test_a_narrower_terminal_is_counted_in() -> None:
    size = [20, 10]
    stream = io.StringIO()
    live = Live(stream, lambda: (size[0], size[1]))
    live.draw([], ["x" * 20, "yy"])
    size[0] = 10
    stream.seek(0)
    live.draw([], ["z" * 10])
    assert stream.getvalue().count("\x1b[A") == 2 and height("\x1b[1m日本語\x1b[0m", 3) == 2
