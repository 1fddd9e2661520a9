"""Keeps user text in a rendered template from being parsed as special tokens.

Invariant: control tokens, and the markers that a guard names, come only from text that the template wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from satchel.formats.tokenizer.specials import Escape, control_texts
from satchel.formats.tokenizer.vocab import Kind, Vocab


@dataclass(frozen=True, slots=True, eq=False)
class MarkerGuard:
    """Escapes user text for a template."""

    escaping: Escape
    # User-defined tokens, by id, that user text must not become. Other user-defined tokens (runs of spaces,
    # HTML tags) are ordinary pieces and are found in user text too.
    markers: dict[int, str]

    @classmethod
    def of(cls, vocab: Vocab, markers: frozenset[str]) -> MarkerGuard:
        """The guard for these marker texts; texts that are not user-defined tokens are ignored."""
        ids = ((vocab.index.get(text), text) for text in markers)
        found = {i: text for i, text in ids if i is not None and vocab.types[i] == Kind.USER_DEFINED}
        return cls(Escape([*control_texts(vocab), *found.values()]), found)

    def escape(self, text: str) -> str:
        """User text made safe for `Tokenizer.encode_rendered` with this guard; see Escape."""
        return self.escaping.escape(text)

    def unescape(self, text: str) -> str:
        return self.escaping.unescape(text)

    def apart(self, text: str) -> Iterator[str]:
        """The text split into pieces, none of which contains a whole marker."""
        longest = sorted(self.markers.values(), key=len, reverse=True)
        at = 0
        for found in re.finditer("|".join(map(re.escape, longest)), text):
            yield text[at : found.start() + 1]
            at = found.start() + 1
        yield text[at:]
