"""A real terminal for tests: a program under tmux, its keys and its screen. The tmux server is the test's
own.
"""

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
PYTHON = (sys.executable, *(("-S",) if sys.flags.no_site else ()))  # the flags with which the tests run


def installed() -> bool:
    return shutil.which("tmux") is not None


class Terminal:
    """A program in a terminal of so many columns and rows. After the program has ended, the screen remains,
    and its last line is the exit code: `exit 0`.
    """

    def __init__(
        self, command: Sequence[str], columns: int = 80, rows: int = 24, **variables: str | Path
    ) -> None:
        # A short path: a socket's has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="t")
        # Also TERM, which tmux would set itself.
        given = [f"{name}={value}" for name, value in variables.items()]
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
        """Types the text literally."""
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Presses keys by tmux's names: Enter, C-c, Tab, M-Enter."""
        self._tmux("send-keys", *keys)

    def paste(self, text: str) -> None:
        """Pastes text; as a bracketed paste where the program has enabled that."""
        self._tmux("load-buffer", "-", text=text)
        self._tmux("paste-buffer", "-p", "-r")

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self, *, styled: bool = False, history: bool = True) -> str:
        """The screen with its scrollback; styled: with escape sequences."""
        more = [*(["-e"] if styled else []), *(["-S", "-"] if history else [])]
        return self._tmux("capture-pane", "-p", *more)

    def wait(self, what: str | Callable[[str], bool], *, history: bool = True) -> str:
        """Waits until the screen contains the text, or until the function of the screen is true; returns the
        screen.
        """
        screen = ""

        def shown() -> bool:
            nonlocal screen
            screen = self.screen(history=history)
            return what in screen if isinstance(what, str) else what(screen)

        until(shown, lambda: f"{what!r} comes, where the screen shows:\n{screen}")
        return screen
