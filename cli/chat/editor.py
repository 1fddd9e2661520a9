"""Opens a text in the user's editor: $VISUAL, $EDITOR, or the first of the usual ones that is installed."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from satchel.errors import RequestError
from satchel.runtime.children import find_program, run

USUAL = ("editor", "nano", "vim", "vi")


def edited(text: str) -> str:
    """The text after editing. RequestError where there is no editor or it failed."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "") or _usual()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            code = run([*command, str(path)], check=False).returncode
            if code:
                raise RequestError(f"{command[0]} ended with {code}: nothing was changed")
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{command[0]}: {error.strerror}; $EDITOR names the editor") from None
        except UnicodeDecodeError:
            raise RequestError(f"{command[0]} left no UTF-8 text: nothing was changed") from None


def _usual() -> list[str]:
    found = next((name for name in USUAL if find_program(name)), None)
    if found is None:
        raise RequestError("there is no editor: $EDITOR names one")
    return [found]
