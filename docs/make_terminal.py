"""Makes docs/images/chat.svg: the screen of a real terminal (tmux) after a chat with the bundled model.

python docs/make_terminal.py [FILE.svg]
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import CONSOLE_SVG_FORMAT, Console

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from terminal import PYTHON, Terminal, installed  # noqa: E402

COLUMNS, ROWS = 84, 34
# The picture must not load a font from another host.
WITHOUT_FONTS = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
TYPED = (
    "Hello! Who are you?",
    "/clear",
    "/set temperature 0.2",
    "Write a short poem about the sea.",
    "/stats",
)


def main(target: Path) -> None:
    if not installed():
        sys.exit("make_terminal: tmux is not installed")
    with tempfile.TemporaryDirectory() as folder:
        draw(session(folder), target)


def session(folder: str) -> str:
    """The screen at the end of the chat, with its colours."""
    home = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"), folder)
    command = ["env", "-C", folder, *PYTHON, "-m", "satchel", "chat", "-s", "4"]
    with Terminal(command, COLUMNS, ROWS, **home) as terminal:
        for text in TYPED:
            terminal.wait(lambda screen: screen.rstrip().split("\n")[-1].startswith(">"))
            terminal.type(text)
            time.sleep(0.3)  # completions appear while a command is typed
            terminal.press("Enter")
            terminal.wait(lambda screen, text=text: text in screen)  # type: ignore[misc]
            time.sleep(0.5)
        terminal.wait(lambda screen: screen.rstrip().split("\n")[-1].startswith(">"))
        return terminal.screen(styled=True)


def draw(screen: str, target: Path) -> None:
    """The screen as SVG, character by character, with tmux's line breaks."""
    lines = [line.rstrip() for line in screen.rstrip().split("\n")]
    console = Console(
        record=True,
        width=COLUMNS,
        height=len(lines),
        file=io.StringIO(),
        force_terminal=True,
        highlight=False,
    )
    for line in AnsiDecoder().decode("\n".join(lines)):  # a style carries over to the lines below
        console.print(line, soft_wrap=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = console.export_svg(title="satchel chat", code_format=WITHOUT_FONTS, unique_id="chat")
    target.write_text(picture, encoding="utf-8")
    print(f"{target}: {len(lines)} lines")


if __name__ == "__main__":
    os.environ.pop("NO_COLOR", None)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "chat.svg")
