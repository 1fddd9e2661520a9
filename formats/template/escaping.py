"""String operations of the sandbox on escaped text. The caller escapes user text so that it contains no
control token (see `ChatTemplate.render`).

Invariant: a search in escaped text finds what it would find in plain text, and no text is unescaped here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

# Methods that search for their first argument; those of _STRIPPING take a set of characters.
_SEEKING = frozenset((
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "split", "startswith",
))  # fmt: skip
_STRIPPING = frozenset(("lstrip", "rstrip", "strip"))
# Private-use characters as Python's repr and JSON's ASCII form spell them, after an even number of
# backslashes.
_EVEN = r"(?<!\\)((?:\\\\)*)"
_BASIC = r"u(?:e[0-9a-f]{3}|f[0-8][0-9a-f]{2})"
_REPR = re.compile(rf"{_EVEN}\\({_BASIC}|U000f[0-9a-f]{{4}}|U0010[0-9a-f]{{4}})")
_JSON = re.compile(rf"{_EVEN}(\\{_BASIC}|\\udb[89a-f][0-9a-f]\\ud[c-f][0-9a-f]{{2}})")


class Escaping:
    """Applies a caller's escape (or none) to the operands of string operations.

    escape: must work character by character, or leave texts without control tokens unchanged. Then the
    escaped form of a search string is in the escaped text exactly where the plain form was.
    own: the template's string constants, which no user wrote.
    """

    def __init__(self, escape: Callable[[str], str] | None, own: frozenset[str]) -> None:
        self._escape, self._own = escape, own

    def needle(self, text: str, sought: Any) -> Any:
        """`sought` in the form, plain or escaped, that occurs in `text`."""
        if self._escape is None or not isinstance(sought, str):
            return sought
        other = self._escape(sought)
        return other if other != sought and other in text else sought

    def arguments(self, method: str, text: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a method of `text`, in the form that occurs in it."""
        if self._escape is None or not args:
            return args
        first = args[0]
        if method in _SEEKING:
            if isinstance(first, tuple):
                first = (*first, *(self._escape(item) for item in first if isinstance(item, str)))
            else:
                first = self.needle(text, first)
        elif method in _STRIPPING and isinstance(first, str):
            first = self.characters(first)
        return (first, *args[1:])

    def characters(self, characters: str) -> str:
        """A set of characters to strip, with their escaped forms."""
        return characters if self._escape is None else characters + self._escape(characters)

    def same(self, left: Any, right: Any) -> bool:
        """Whether two texts are equal; one of them may be escaped."""
        if self._escape is None or not isinstance(left, str) or not isinstance(right, str):
            return bool(left == right)
        return left == right or (
            len(left) == len(right) and (self._escape(left) == right or left == self._escape(right))
        )

    def rewritten(self, before: Any, after: Any) -> Any:
        """Escapes user text again after the template deleted or changed letters in it, because the change may
        have created a control token. The template's constants and text that is not escaped stay unchanged.
        """
        escape = self._escape
        if escape is None or not isinstance(before, str) or not isinstance(after, str):
            return after
        return after if before in self._own or escape(before) != before else escape(after)

    def printed(self, value: Any) -> Any:
        """A list or dict as text. Python's repr writes private-use characters as \\u escapes, which could not
        be unescaped later; this keeps the characters.
        """
        if self._escape is None or not isinstance(value, (list, tuple, dict)):
            return value
        return _REPR.sub(lambda m: m[1] + chr(int(m[2][1:], 16)), str(value))

    def ascii_json(self, text: str) -> str:
        """ASCII JSON, except that the escape's private-use characters stay as characters."""
        if self._escape is None:
            return text
        return _JSON.sub(lambda m: m[1] + json.loads(f'"{m[2]}"'), text)
