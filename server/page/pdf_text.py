"""The text of a PDF, read from stdin and written to stdout as JSON: {"text", "pages", "read"}, or {"error"}.

A PDF is untrusted, and a hostile one can make any reader loop or grow. So this module is the program of a
process of its own, which documents.py starts, and which ends at its limits of processor time and memory.

Invariant: it imports the standard library and pypdf alone, and opens no file.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from typing import Any

SECONDS, MEMORY = 20, 1 << 30
MOST_CHARACTERS = 2 << 20


def limit() -> None:
    """Limits the process. Windows has no such limits; there the caller's patience ends it."""
    if sys.platform == "win32":
        return
    import resource

    for what, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY)):
        with suppress(ValueError, OSError):  # macOS refuses a limit of addresses
            resource.setrlimit(what, (most, most))


def read(data: bytes) -> dict[str, Any]:
    """The text of as many pages as MOST_CHARACTERS allow, with an empty line between two of them."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "it is encrypted: save it without its password"}
    texts: list[str] = []
    size = 0
    for page in reader.pages:
        text = page.extract_text().strip()
        size += len(text) + 2
        if size > MOST_CHARACTERS:
            break
        texts.append(text)
    whole = "\n\n".join(filter(None, texts))
    if not whole:
        return {"error": "it holds no text: its pages are pictures"}
    return {"text": whole, "pages": len(reader.pages), "read": len(texts)}


def main() -> None:
    limit()
    try:
        found = read(sys.stdin.buffer.read())
    except ImportError as error:
        found = {"error": f"this server lacks a package ({error.name}): pip install satchel[server]"}
    except MemoryError:
        found = {"error": f"it needs more than {MEMORY >> 30} GB of memory"}
    except Exception as error:  # pypdf raises errors of all kinds on what is no PDF
        found = {"error": f"it is no PDF that can be read ({error})"[:300]}
    json.dump(found, sys.stdout)
