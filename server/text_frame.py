"""A chunk of a stream that is constant but for its text. It can be written by a process that knows no more of
the stream than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring as quoted

LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


@dataclass(frozen=True, slots=True)
class TextFrame:
    """before and after: the chunk around its text, which stands in it as a JSON string."""

    before: str
    after: str

    def of(self, text: str) -> bytes:
        return f"{self.before}{json_text(text)}{self.after}".encode()


def json_text(text: str) -> str:
    """A JSON string on one line, also for clients that split at Unicode line separators."""
    said = quoted(text)
    return said if said.isascii() else said.translate(LINE_ENDS)
