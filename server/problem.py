"""Errors of requests, independent of the API flavour, which writes each in its own shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.formats.tokenizer import TooManyTokens
from satchel.runtime.api.refusals import Busy, PromptTooLong, QueueFull

# An absolute path up to its last part.
FOLDERS = re.compile(r"(?<![#\w./~-])/(?:[^\s/:'\"]+/)+(?=[^\s/:'\"])")
# kind: HTTP status. None is 501, which clients take for a fault of the moment and try again.
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
    """kind: a key of KINDS. param: the field that is wrong, as a path such as messages[0].role. code: a word
    for programs, "" for the kind's own. retry_after: seconds, where trying again makes sense. numbers: what
    belongs to it, by name.
    """

    kind: str
    message: str
    param: str | None = None
    code: str = ""
    retry_after: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def status(self) -> int:
        return KINDS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        """A client that heard when to come again does; one that cannot succeed is told not to try."""
        if self.retry_after is not None:
            return {"Retry-After": str(self.retry_after)}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


def without_paths(text: str) -> str:
    """A line without the folders of files, which are nobody's business; JSON pointers stay."""
    return FOLDERS.sub("", text)


def problem_of(error: Exception) -> Problem:
    """What the library's error is to a client. Texts of errors that nobody foresaw stay in the log."""
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
