"""Reads JSON files of a checkpoint with a size limit and errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.gguf.check import quote

LIMIT = 1 << 28  # bytes: three times what a vocabulary of a million tokens takes
AGAIN = "the file is damaged: download it again"


def read_json(path: Path, limit: int = LIMIT) -> dict[str, Any]:
    """The JSON object in a file. ModelError where it can't be read, is too large, or is not a JSON object."""
    value = _value(path, limit)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, got {quote(str(value))}; {AGAIN}")
    return value


def read_list(path: Path) -> list[Any]:
    """As read_json, for a JSON list."""
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
    """As read_json; {} where the file does not exist."""
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
