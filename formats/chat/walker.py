"""An incremental JSON validator (RFC 8259): follows one value through pieces of text in one pass, without
building it.

Invariant: `feed` consumes the value's characters up to its end or its first error, however the text is split.
"""

from __future__ import annotations

import re

DEPTH = 100
LONGEST_SCALAR = 1000
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSING = {"{": "}", "[": "]"}


class Walker:
    """The state of the validator. done: the value is complete. error: why the text is not JSON, or ""."""

    def __init__(self) -> None:
        self.done, self.error = False, ""
        self._stack: list[str] = []
        self._wants = (
            "value"  # value, first (value or ]), name, first name (or }), colon, next (comma or end)
        )
        self._string = False
        self._escape = -1  # -1: none, 0: after the backslash, n: n hexadecimal digits to come
        self._word = ""

    def feed(self, text: str, at: int = 0) -> int:
        """Consumes text from `at`; returns the index after the value, or after its valid part."""
        while at < len(text) and not self.done and not self.error:
            if self._string:
                at = self._in_string(text, at)
            elif self._word:
                at = self._in_word(text, at)
            else:
                at = self._between(text, at)
        return at

    def close(self) -> None:
        """Ends the text: completes a number; any other open value is an error."""
        if self._word:
            self._end_word()
        if not self.done and not self.error:
            self.error = "the JSON is not complete"

    def _in_string(self, text: str, at: int) -> int:
        if self._escape >= 0:
            return self._in_escape(text, at)
        match = _PLAIN.match(text, at)
        end = match.end() if match else at
        if end == len(text):
            return end
        if text[end] == '"':
            self._string = False
            self._ended()
        elif text[end] == "\\":
            self._escape = 0
        else:
            self.error = f"a string holds {text[end]!r} as it is"
            return end
        return end + 1

    def _in_escape(self, text: str, at: int) -> int:
        char = text[at]
        if self._escape == 0 and char in '"\\/bfnrt':
            self._escape = -1
        elif self._escape == 0 and char == "u":
            self._escape = 4
        elif self._escape > 0 and char in _HEX:
            self._escape = self._escape - 1 or -1
        else:
            self.error = f"{char!r} can't stand in an escape"
            return at
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        match = _WORD.match(text, at)
        end = match.end() if match else at
        self._word += text[at:end]
        if len(self._word) > LONGEST_SCALAR:
            self.error = f"a number of over {LONGEST_SCALAR} characters came"
        elif end < len(text):
            self._end_word()
        return end

    def _end_word(self) -> None:
        if not _SCALAR.fullmatch(self._word):
            self.error = f"{self._word[:40]!r} is no JSON value"
        self._word = ""
        if not self.error:
            self._ended()

    def _ended(self) -> None:
        """Called when a value or a name is complete."""
        if self._wants == "colon":
            return
        self._wants = "next"
        self.done = not self._stack

    def _between(self, text: str, at: int) -> int:
        match = _SPACE.match(text, at)
        at = match.end() if match else at
        if at == len(text):
            return at
        char, wants = text[at], self._wants
        if wants in ("value", "first"):
            return self._value(char, text, at)
        if wants in ("name", "first name") and char == '"':
            self._string, self._wants = True, "colon"
        elif wants == "colon" and char == ":":
            self._wants = "value"
        elif wants == "next" and char == ",":
            self._wants = "name" if self._stack[-1] == "{" else "value"
        elif wants in ("next", "first name") and char == _CLOSING[self._stack[-1]]:
            self._stack.pop()
            self._ended()
        else:
            self.error = f"{char!r} can't stand here in JSON"
            return at
        return at + 1

    def _value(self, char: str, text: str, at: int) -> int:
        if char == "]" and self._wants == "first":
            self._stack.pop()
            self._ended()
        elif char in _CLOSING:
            self._stack.append(char)
            self._wants = "first name" if char == "{" else "first"
            if len(self._stack) > DEPTH:
                self.error = f"the JSON nests deeper than {DEPTH}"
                return at
        elif char == '"':
            self._string, self._wants = True, "value"
        elif _WORD.match(char) and _WORD.fullmatch(char):
            self._word, self._wants = char, "value"
        else:
            self.error = f"{char!r} can't stand here in JSON"
            return at
        return at + 1
