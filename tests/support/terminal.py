"""A real terminal for tests: a program under tmux, its keys and its screen. The server is the test's own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from waiting import until

REASON = "tmux is not installed"
PYTHON = (sys.executable, *(("-S",) if sys.flags.no_site else ()))  # as the tests themselves run


def installed() -> bool:
    return shutil.which("tmux") is not None


class Terminal:
    """A program in a terminal of so many columns and rows. The screen stays when the program has ended, with
    its exit code as the last line: `exit 0`.
    """

    def __init__(
        self, command: Sequence[str], columns: int = 80, rows: int = 24, **variables: str | Path
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="t")  # short: a socket's path has 107 bytes at most
        given = [f"{name}={value}" for name, value in variables.items()]  # TERM too, which tmux sets itself
        ending = "code=$?; echo; echo exit $code; exec sleep 1000"
        line = f"trap : INT; {shlex.join(['env', *given, *command])}; {ending}"
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "sh", "-c", line)
        self._tmux("set-option", "-g", "escape-time", "0")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server", check=False)
        self._folder.cleanup()

    def _tmux(self, *args: str, check: bool = True, text: str | None = None) -> str:
        socket = str(Path(self._folder.name) / "s")
        environment = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR")}
        environment |= {"LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            ["tmux", "-u", "-S", socket, *args],
            check=check,
            input=text,
            capture_output=True,
            encoding="utf-8",
            env=environment,
        )
        return done.stdout

    def type(self, text: str) -> None:
        """Types text as it is."""
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Presses keys by tmux's names: Enter, C-c, Tab, M-Enter."""
        self._tmux("send-keys", *keys)

    def paste(self, text: str) -> None:
        """Pastes, bracketed where the program asked for that."""
        self._tmux("load-buffer", "-", text=text)
        self._tmux("paste-buffer", "-p", "-r")

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self, *, styled: bool = False, history: bool = True) -> str:
        """The screen with its scrollback; styled: with escape sequences."""
        more = [*(["-e"] if styled else []), *(["-S", "-"] if history else [])]
        return self._tmux("capture-pane", "-p", *more)

    def wait(self, what: str | Callable[[str], bool], *, history: bool = True) -> str:
        """The screen as soon as it holds the text, or is as the function says."""
        screen = ""

        def shown() -> bool:
            nonlocal screen
            screen = self.screen(history=history)
            return what in screen if isinstance(what, str) else what(screen)

        until(shown, lambda: f"{what!r} comes, where the screen shows:\n{screen}")
        return screen
