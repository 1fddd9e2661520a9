"""`satchel chat` as a user sees it: the bundled model in a real terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import PYTHON, REASON, Terminal, installed

pytestmark = [pytest.mark.model, pytest.mark.skipif(not installed(), reason=REASON)]

Chat = Callable[..., Terminal]
PROMPT = re.compile(r"^>\s*(Ask.*)?$", re.MULTILINE)


@pytest.fixture
def chat(bundled_model: Path, tmp_path: Path) -> Chat:
    def start(*args: str, columns: int = 80, rows: int = 30, **variables: str) -> Terminal:
        folders = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"), tmp_path)
        command = ["env", "-C", str(tmp_path), *PYTHON, "-m", "satchel", "chat", "-m"]
        command += [str(bundled_model), "-s", "1", "-t", "1", "-n", "12", *args]
        return Terminal(command, columns, rows, **{**folders, **variables})

    return start


def ready(screen: str) -> bool:
    """Whether the last line is a prompt for input."""
    lines = screen.rstrip().split("\n")
    return bool(PROMPT.match(lines[-1]))


def ask(terminal: Terminal, text: str) -> str:
    """Types a line; returns the screen when the next prompt appears."""
    before = len(PROMPT.findall(terminal.wait(ready)))
    terminal.type(text)
    terminal.press("Enter")
    return terminal.wait(lambda s: ready(s) and (len(PROMPT.findall(s)) >= before or "> " in s) and text in s)


def test_a_conversation(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Anna lives in Oslo.\n", encoding="utf-8")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\0\0")
    with chat("-v") as t:
        assert "context 2,048" in t.wait(ready)
        t.type("Who is")
        t.press("M-Enter")
        t.type("in @notes.txt ?")
        t.press("Enter")
        screen = t.wait("eval rate:")
        assert "> Who is\n  in @notes.txt ?\n" in screen
        assert "notes.txt: 19 characters go with the message" in screen
        for name in ("total duration", "load duration", "prompt eval count", "eval duration"):
            assert f"  {name}:" in screen
        assert "photo.png: is a binary file; only text can be attached" in ask(t, "see @photo.png")
        assert "top_k 40 → 7" in ask(t, "/set top_k 7")
        assert "top_k is -1" in ask(t, "/set top_k -1")
        assert "taken back: notes.txt" in ask(t, "/undo")
        assert "messages:             0, 1 answered" in ask(t, "/stats")
        t.press("C-d")
        assert t.wait("exit ").rstrip().endswith("exit 0")


def test_keys(chat: Chat, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "from the editor" >> "$1"\n', encoding="utf-8")
    editor.chmod(0o755)
    with chat(EDITOR=str(editor)) as t:
        t.wait(ready)
        t.type("/rege")
        t.wait("Answer the last message again")  # the menu
        t.press("Tab")
        t.wait("> /regenerate")
        t.press("Enter")
        t.wait("nothing was answered yet")
        t.wait(ready)
        t.paste("two\nlines \\\nof paste")
        t.wait("> two\n  lines \\\n  of paste")
        t.press("Enter")
        t.wait("tok/s")
        t.wait(ready)
        t.press("C-r")
        t.type("of pas")
        t.wait("search")
        t.press("Enter")
        t.wait(lambda s: s.count("  of paste") >= 2)
        t.press("C-c")
        t.wait(ready)
        t.type("typed ")
        t.press("C-g")
        t.wait("> typed from the editor")
        t.press("C-c")
        t.wait(ready)
        t.press("C-c")
        assert t.wait("exit ").rstrip().endswith("exit 0")


def test_ctrl_c_once_ends_the_answer_and_twice_leaves(chat: Chat) -> None:
    with chat("--ignore-eos", "-n", "-1") as t:
        t.wait(ready)
        t.type("Tell me a story.")
        t.press("Enter")
        t.wait(lambda s: len(s.partition("a story.")[2].split()) > 5)
        t.press("C-c")
        t.wait("· stopped")
        assert "exit" not in t.wait(ready)
        t.press("C-c")
        assert t.wait("exit ").rstrip().endswith("exit 0")


def test_a_conversation_is_kept_by_name(chat: Chat, tmp_path: Path) -> None:
    with chat("--session", "first talk") as t:
        ask(t, "Good morning")
        t.wait("tok/s")
        t.wait(ready)
        assert (tmp_path / "satchel" / "chats" / "first talk.json").is_file()  # while the chat still runs
        assert "first talk" in ask(t, "/sessions")
        t.press("C-d")
        t.wait("exit 0")
    with chat("--resume", "first talk") as t:
        assert "2 messages loaded" in t.wait(ready)
        assert "2 messages saved" in ask(t, "/save other")
        t.type("/load o")
        t.wait("/load other")  # the menu: a Tab before it is lost to the completion that makes it
        t.press("Tab")
        t.wait("> /load other")
    with chat("--resume", "nobody") as t:
        screen = t.wait("exit 1")
        assert "no conversation is saved as nobody; there are: first talk, other" in screen


def test_twenty_columns_and_other_sizes(chat: Chat) -> None:
    with chat("--ignore-eos", "-n", "-1", columns=20, rows=10) as t:
        t.wait(ready)
        t.type("日本語のテキストを書いてください。")
        t.press("Enter")
        t.wait(lambda s: len(s.partition("さい。")[2].split()) > 12)
        t.resize(34, 8)
        t.wait(lambda s: s.count(" ") > 0)
        t.resize(17, 12)
        t.press("C-c")
        t.wait(lambda s: "stopped" in s.replace("\n", ""))
        t.wait(ready)
        t.type("/exit")
        t.press("Enter")
        assert t.wait("exit 0")


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_terminals(chat: Chat, variables: dict[str, str]) -> None:
    with chat(**variables) as t:
        ask(t, "Hello")
        t.wait("tok/s")
        t.wait(ready)
        t.press("C-d")
        t.wait("exit 0")
        styled = t.screen(styled=True)
        assert not re.search(r"\x1b\[[\d;]*3\d", styled) and ("NO_COLOR" in variables or "\x1b" not in styled)
