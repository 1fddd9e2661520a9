"""The terminal side of `satchel chat`: keys, history, completion, and the program on a pseudo-terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import SECONDS, until

from satchel.cli.chat import reader
from satchel.cli.chat.display import Look

Typed = Callable[[str], tuple[list[str], list[str]]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Typed]:
    """The lines that the terminal's reader makes of keys, and its output meanwhile."""
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setattr("platformdirs.user_state_path", lambda *args, **kinds: tmp_path / "state")
    with create_pipe_input() as keys:

        def read(text: str) -> tuple[list[str], list[str]]:
            said: list[str] = []
            keys.send_text(text)
            terminal = reader.TerminalReader(Look(), said.append, source=keys, target=DummyOutput())
            return list(terminal), said

        yield read


@pytest.mark.parametrize(
    ("keys", "turns"),
    [
        ("hello\r\x04", ["hello"]),
        ("a\\\rb\r\x04", ["a\nb"]),
        ("a\x1b\rb\r\x04", ["a\nb"]),
        ('"""a\rb"""\r\x04', ["a\nb"]),
        ("\x1b[200~two\nlines\\\nof paste\x1b[201~\r\x04", ["two\nlines\\\nof paste"]),
        ("typed\x03other\r\x04", ["other"]),
        ("typed\x03\x03never\r", []),
        ("\x03\x03never\r", []),
        ("\x03a\r\x03\x03", ["a"]),
        ("\x03a\x03b\r\x04", ["b"]),
    ],
)
def test_keys(typed: Typed, keys: str, turns: list[str]) -> None:
    assert typed(keys)[0] == turns


def test_history_is_kept_for_the_owner_alone(typed: Typed, tmp_path: Path) -> None:
    assert typed("secret\r\x04") == (["secret"], [])
    file = tmp_path / "state" / "chat_history"
    assert "secret" in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o077 == 0


def test_no_place_for_a_history_is_told(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    turns, said = typed("hi\r\x04")
    assert turns == ["hi"] and len(said) == 1 and said[0].startswith("no history is kept")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("/cl", ["/clear"]),
        ("/set top_", ["/set top_k ", "/set top_p ", "/set top_n_sigma "]),
        ("/set reasoning o", ["/set reasoning on", "/set reasoning off"]),
        ("/show sy", ["/show system"]),
        ("/load {}/c", ["onv.json"]),
        ("look at @{}/co", ["nv.json"]),
        ("me@{}/co", []),
        ("cl", []),
        ("", []),
    ],
)
def test_tab(tmp_path: Path, typed: str, found: list[str]) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    (tmp_path / "conv.json").touch()
    completer = reader.completer()
    document = Document(typed.format(tmp_path))
    assert [c.text for c in completer.get_completions(document, CompleteEvent())] == found


class Screen:
    """A pseudo-terminal that runs a chat."""

    def __init__(self, model: Path, state: Path, *args: str) -> None:
        import fcntl
        import termios

        self.master, slave = os.openpty()
        self._shown = ""
        more = {"XDG_STATE_HOME": str(state), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "satchel", "chat", "-m", str(model), *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **more},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str) -> str:
        """The output up to the text, after waiting for it; each character is returned once."""

        def shown() -> bool:
            while text not in self._shown and select.select([self.master], [], [], 0)[0]:
                self._shown += os.read(self.master, 4096).decode(errors="replace")
            return text in self._shown

        until(shown, lambda: f"{text!r} comes, after {self._shown!r}")
        before, _, self._shown = self._shown.partition(text)
        return before


@pytest.mark.model
def test_a_chat_in_a_terminal(bundled_model: Path, tmp_path: Path) -> None:
    screen = Screen(bundled_model, tmp_path, "--ignore-eos", "-s", "1")
    assert "Satchel 40M" in screen.wait_for("> ")
    screen.type("Tell me a story\r")
    screen.wait_for("\x1b[?2004l")  # the prompt has released the terminal
    screen.wait_for(" ")
    screen.type("\x03")
    screen.wait_for("stopped")
    screen.wait_for("> ")
    screen.type("/nope\r")
    screen.wait_for("no command /nope")
    screen.wait_for("> ")
    screen.type("\x04")
    assert screen.process.wait(SECONDS) == 0
    os.close(screen.master)
