"""The tokens of a checkpoint's vocabulary by id, with the tokens that were added to it. Every reader of a
tokenizer file fills a `Table`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from satchel.formats.tokenizer.vocab import MAX_ENTRIES, Kind

PREFIX = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class Added:
    """A token added to the vocabulary. special: a control token, which plain text never yields."""

    id: int
    text: str
    special: bool


@dataclass
class Table:
    """Tokens collected by id. Ids without a token become spare entries."""

    texts: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, Kind] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)

    def put(self, id: int, text: str, kind: Kind, score: float = 0.0) -> None:
        self.texts[id], self.kinds[id], self.scores[id] = text, kind, score


def added_entries(entries: object) -> Iterable[Added]:
    """The valid entries of a JSON list of added tokens: an object with an id and a non-empty content."""
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        id, text = entry.get("id"), entry.get("content")
        if type(id) is int and 0 <= id < MAX_ENTRIES and isinstance(text, str) and text:
            yield Added(id, text, entry.get("special") is True)


def put_added(table: Table, added: Iterable[Added]) -> None:
    """Puts added tokens into the table. A special one becomes a control token, another one a user-defined
    token. Byte tokens and the unknown token keep their kind.
    """
    for token in added:
        kind = table.kinds.get(token.id)
        if kind in (Kind.BYTE, Kind.UNKNOWN) and table.texts[token.id] == token.text:
            continue
        if token.special:
            table.put(token.id, token.text, Kind.CONTROL, table.scores.get(token.id, 0.0))
        elif kind != Kind.CONTROL or table.texts[token.id] != token.text:
            table.put(token.id, token.text, Kind.USER_DEFINED, table.scores.get(token.id, -1000.0))
