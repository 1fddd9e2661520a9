"""What keeps user text, on its way through a template, from becoming a token that means something.

Invariant: control tokens, and the markers that a guard names, come of what the template wrote alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from satchel.formats.tokenizer.specials import Escape, control_texts
from satchel.formats.tokenizer.vocab import Kind, Vocab


@dataclass(frozen=True, slots=True, eq=False)
class MarkerGuard:
    """markers: user-defined tokens, by id, that text outside the template may not become. Other such tokens
    are ordinary pieces (runs of blanks, HTML tags), and are found in user text as everywhere.
    """

    escaping: Escape
    markers: dict[int, str]

    @classmethod
    def of(cls, vocab: Vocab, markers: frozenset[str]) -> MarkerGuard:
        """markers: texts; those that are no user-defined token of the vocabulary count for nothing."""
        ids = ((vocab.index.get(text), text) for text in markers)
        found = {i: text for i, text in ids if i is not None and vocab.types[i] == Kind.USER_DEFINED}
        return cls(Escape([*control_texts(vocab), *found.values()]), found)

    def escape(self, text: str) -> str:
        """User text made safe for `Tokenizer.encode_rendered` with this guard; see Escape."""
        return self.escaping.escape(text)

    def unescape(self, text: str) -> str:
        return self.escaping.unescape(text)

    def apart(self, text: str) -> Iterator[str]:
        """The text in pieces, none of which holds a marker as a whole."""
        longest = sorted(self.markers.values(), key=len, reverse=True)
        at = 0
        for found in re.finditer("|".join(map(re.escape, longest)), text):
            yield text[at : found.start() + 1]
            at = found.start() + 1
        yield text[at:]
