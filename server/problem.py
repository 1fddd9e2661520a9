"""Errors of requests, independent of the API flavour; each flavour writes them in its own shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.formats.tokenizer import TooManyTokens
from satchel.runtime.api.refusals import Busy, PromptTooLong, QueueFull

# The folders of an absolute path, without its last part.
FOLDERS = re.compile(r"(?<![#\w./~-])/(?:[^\s/:'\"]+/)+(?=[^\s/:'\"])")
# HTTP status by kind. None is 501: clients retry a 501.
KINDS = {
    "invalid": 400,
    "context": 400,
    "unsupported": 400,
    "key": 401,
    "forbidden": 403,
    "missing": 404,
    "method": 405,
    "timeout": 408,
    "conflict": 409,
    "large": 413,
    "media": 415,
    "headers": 431,
    "internal": 500,
    "engine": 500,
    "busy": 503,
    "loading": 503,
}


@dataclass
class Problem(Exception):
    """An error that a client gets as a response."""

    kind: str  # a key of KINDS
    message: str
    param: str | None = None  # the path of the invalid field, such as messages[0].role
    code: str = ""  # the machine-readable code; "": the flavour's code for the kind
    retry_after: int | None = None  # seconds; None where a retry is of no use
    numbers: Mapping[str, Any] = field(default_factory=dict)  # further fields of the error object

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def status(self) -> int:
        return KINDS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After where a retry can succeed; x-should-retry: false on other server errors."""
        if self.retry_after is not None:
            return {"Retry-After": str(self.retry_after)}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


def without_paths(text: str) -> str:
    """The text without the folders of file paths, which clients must not see; JSON pointers stay."""
    return FOLDERS.sub("", text)


def problem_of(error: Exception) -> Problem:
    """The Problem for an exception. The text of an unexpected exception goes to the log only."""
    text = without_paths(str(error))
    match error:
        case Problem():
            return error
        case PromptTooLong():
            numbers = {"n_prompt_tokens": error.prompt, "n_ctx": error.room}
            return Problem("context", text, "messages", "context_length_exceeded", numbers=numbers)
        case TooManyTokens():
            numbers = {"n_prompt_tokens": error.least, "n_ctx": error.most}
            return Problem("context", text, code="context_length_exceeded", numbers=numbers)
        case Busy():
            return Problem("busy", text, code="busy", retry_after=1)
        case QueueFull():
            return Problem("busy", text, code="queue_full", retry_after=1)
        case RequestError():
            return Problem("invalid", text)
        case ModelError():
            return Problem("engine", text, code="model_error")
        case DeviceError() | SatchelError():
            return Problem("engine", text, code="engine_error", retry_after=1)
    return Problem("internal", "the server failed on this request; its log says how", code="internal_error")
