"""JSON files of a checkpoint: read within a limit, objects only, with errors that name file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.gguf.check import quote

LIMIT = 1 << 28  # bytes: a vocabulary of a million tokens has a third of it
AGAIN = "the file is damaged: download it again"


def read_json(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """The object in the file. ModelError where it can't be read, is too long, or is no JSON object."""
    value = _value(path, limit)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, got {quote(str(value))}; {AGAIN}")
    return value


def read_list(path: Path) -> list[Any]:
    """As read_json, of a file that holds a list."""
    value = _value(path, LIMIT)
    if not isinstance(value, list):
        raise ModelError(f"{path}: expected a JSON list, got {quote(str(value))}; {AGAIN}")
    return value


def _value(path: Path, limit: int) -> Any:
    try:
        return json.loads(read_text(path, limit))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: expected JSON, got {quote(str(error))}; {AGAIN}") from None


def read_optional(path: Path) -> dict[str, Any]:
    """As read_json, and nothing where there is no such file."""
    return read_json(path) if path.is_file() else {}


def read_text(path: Path, limit: int = LIMIT) -> str:
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path}: expected at most {limit:,} bytes, got {size:,}; {AGAIN}")
        return path.read_bytes().decode()
    except OSError as error:
        raise ModelError(
            f"{path}: can't be read: {error.strerror}; check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: byte {error.start}: expected UTF-8; {AGAIN}") from None
