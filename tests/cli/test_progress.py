"""Progress of counted work: a line per tenth where stderr is no terminal, else a bar that goes away."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from waiting import until

from satchel.cli import progress
from satchel.cli.progress import Tenths, counted, working


def test_a_line_per_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with counted("m.gguf") as show:
        for done in range(1, 31):
            show(done, 30, "windows: PPL \x1b[31m5")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert all(re.fullmatch(r"m\.gguf: \d+/30 windows: PPL \\x1b\[31m5, \d+ s left", line) for line in lines)
    assert lines[-1].startswith("m.gguf: 30/30 ") and lines[-1].endswith(" 0 s left")


def test_another_total_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tenths = Tenths()
    now[0] = 10.0
    assert tenths.left(1, 5) == 40.0 and tenths.left(1, 5) is None
    assert tenths.left(0, 2) is None
    now[0] = 13.0
    assert tenths.left(1, 2) == 3.0 and tenths.left(2, 2) == 0.0


def test_a_terminal_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no bar
    console = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "err", lambda: console)
    with counted("measuring") as show:
        show(1, 4, "errors of a\x1b[2Jb")
    assert "measuring: errors of a\\x1b[2Jb" in stream.getvalue() and "1/4" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K")


def test_uncounted_work_has_a_spinner_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "err", lambda: console)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    with working("measuring a\x1b[2Jb"):
        until(lambda: "measuring a\\x1b[2Jb" in stream.getvalue(), "the spinner")
    assert stream.getvalue().endswith("\x1b[2K")
    stream.truncate(0)
    monkeypatch.setattr(progress, "DELAY", 1000.0)
    with working("short"):
        pass
    assert "short" not in stream.getvalue()
