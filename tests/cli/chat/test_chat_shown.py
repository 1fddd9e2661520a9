"""The display of a chat: thinking, colour, control characters, notes beside answers, the delayed progress
bar.
"""

from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest
from fake_model import FakeModel

from satchel.cli.chat import bar
from satchel.cli.chat.display import AnswerWriter, Look
from satchel.cli.chat.history import Conversation
from satchel.cli.chat.loop import answer_turns
from satchel.cli.chat.output import TextOutput
from satchel.cli.chat.session import Session
from satchel.cli.chat.thinking import ThinkingSplitter


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


def session(fake: FakeModel) -> Session:
    return Session(fake, Conversation("Fake 2M"), Look(), interactive=True, out=TextOutput())  # type: ignore[arg-type]


THOUGHTS = [
    ("<think>a</think>b", False, "a", "b"),
    ("\n<think>\na <b>\n</think>\n\nb", False, "\na <b>\n", "\n\nb"),
    ("a</think>b", True, "a", "b"),
    ("no thought", False, "", "no thought"),
    ("tell me of <think> and </think>", False, "", "tell me of <think> and </think>"),
    ("<think>never closed", False, "never closed", ""),
    ("<think>a</thin", False, "a</thin", ""),
    ("<thin ice", False, "", "<thin ice"),
    ("<", False, "", "<"),
    ("", False, "", ""),
    ("<think></think>", False, "", ""),
    ("<think>a</think><think>b</think>", False, "a", "<think>b</think>"),
    ("</think>x", False, "", "</think>x"),
]


@pytest.mark.parametrize(("text", "started", "thought", "said"), THOUGHTS)
def test_thinking_is_told_apart_wherever_pieces_are_cut(
    text: str, started: bool, thought: str, said: str
) -> None:
    draw = random.Random(text)
    cuts = [[i] for i in range(len(text) + 1)] + [
        sorted(draw.choices(range(len(text) + 1), k=5)) for _ in range(20)
    ]
    cuts.append(list(range(len(text))))
    for places in cuts:
        thinking = ThinkingSplitter(started)
        bounds = [0, *places, len(text)]
        pieces = [text[a:b] for a, b in pairwise(bounds)]
        parts = [part for piece in pieces for part in thinking.feed(piece)] + list(thinking.flush())
        assert "".join(t for t, inside in parts if inside) == thought, places
        assert "".join(t for t, inside in parts if not inside).lstrip("\n") == said.lstrip("\n"), places


def test_thinking_is_dim_on_a_terminal() -> None:
    shown = io.StringIO()
    writer = AnswerWriter(shown, Look(terminal=True, colour=True), started=True)
    for piece in ("hm", "</th", "ink>", "yes\x1b[2J"):
        writer.write(piece)
    writer.finish()
    assert shown.getvalue() == "\x1b[2mhm\x1b[0myes\\x1b[2J\n"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    shown = io.StringIO()
    writer = AnswerWriter(shown, Look(), started=False)
    writer.write("<think>a</think>\x1b[2J\r\n")
    writer.finish()
    assert shown.getvalue() == "<think>a</think>\x1b[2J\r\n"


@pytest.mark.parametrize(
    ("used", "size", "shown"),
    [
        (0, 100, "context ---------- 0% of 100"),
        (1, 100, "context #--------- 1% of 100"),
        (50, 100, "context #####----- 50% of 100"),
        (100, 100, "context ########## 100% of 100"),
        (4096, 131072, "context #--------- 3% of 131,072"),
    ],
)
def test_meter(used: int, size: int, shown: str) -> None:
    assert Look(unicode=False).meter(used, size) == shown


class Terminal(io.StringIO):
    encoding = "UTF-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    dumb = variables.get("TERM") == "dumb"
    assert Look.of(Terminal()) == Look(terminal=True, colour=colour, unicode=True, cursor=not dumb)
    assert Look.of(io.StringIO()).colour is False


def test_the_start_says_what_runs(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    fake.notes.append("a note\x1b")
    session(fake).begin()
    assert capsys.readouterr().out.splitlines() == [
        "Fake 2M",
        "  llama · 2.0 M weights · Q8_0 · 2.1 MB",
        "  context 2,048 · cpu (scalar) · 2 threads",
        "note: a note\\x1b",
        "",
    ]


def test_the_line_after_an_answer(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    answer_turns(session(fake), ["one two"])
    assert capsys.readouterr().out == "Hello!\n  2 tokens · 2 tok/s · context ▰▱▱▱▱▱▱▱▱▱ 0% of 2,048\n\n"


def test_the_bar_comes_late_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal gets no bar
    quick, slow, piped = Terminal(), Terminal(), io.StringIO()
    with bar.late_bar("quick", quick) as progress:
        progress(1, 2)
        progress(2, 2)
    monkeypatch.setattr(bar, "DELAY", -1.0)
    with bar.late_bar("slow", slow) as progress:
        progress(1, 2)
        progress(2, 2)
        done = slow.getvalue()
    with bar.late_bar("piped", piped) as progress:
        progress(1, 2)
    assert (quick.getvalue(), piped.getvalue()) == ("", "")
    assert "slow" in done and slow.getvalue() == done
