"""The tokenizer that the rest of the program sees: text to ids and back, whatever the kind of vocabulary.

Control tokens in a text are only found where they are asked for; ids and bytes round-trip exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Protocol

from satchel.errors import RequestError
from satchel.formats.tokenizer import limit
from satchel.formats.tokenizer.guard import MarkerGuard
from satchel.formats.tokenizer.specials import SpecialIds, Splitter
from satchel.formats.tokenizer.stream import Detokenizer
from satchel.formats.tokenizer.vocab import Kind, Vocab

MAX_TEXT = 1 << 28  # characters: every count behind it stays far below 2^31


class TokenEncoder(Protocol):
    """What each kind of vocabulary provides: ids of ordinary text, bytes of a token.

    longest: bytes of ordinary text for which one id stands at most; None where text may be dropped. cuts:
    whether a text may be cut at `limit.BORDER` without another id.
    """

    longest: int | None
    cuts: bool

    def encode(self, text: str, start: bool) -> list[int]:
        """start: nothing, or a special token, stands in front of the text."""

    def token_bytes(self, token: int) -> bytes: ...


class Tokenizer:
    """Made by `build_tokenizer`. `specials` holds the special ids; `eog` those that end a generation."""

    def __init__(
        self,
        kind: str,
        vocab: Vocab,
        specials: SpecialIds,
        splitter: Splitter,
        encoder: TokenEncoder,
        space_prefix: bool,
    ) -> None:
        self.kind, self.vocab, self.specials = kind, vocab, specials
        self._splitter, self._encoder, self._space_prefix = splitter, encoder, space_prefix
        self._hidden = frozenset(vocab.ids_of(Kind.CONTROL, Kind.UNKNOWN))
        self._pieces: dict[int, bytes] = {}
        self._guards: dict[frozenset[str], MarkerGuard] = {}
        self._longest = encoder.longest or limit.UNKNOWN
        marks = max((len(special.text.encode()) for special in splitter.specials), default=0)
        self._widest = max(self._longest, marks)  # bytes for which one id stands at most, special ones too

    def text(self, token: int) -> str:
        """A token's text as the vocabulary spells it; RequestError for an id outside the vocabulary."""
        self.token_bytes(token)
        return self.vocab.tokens[token]

    def is_control(self, token: int) -> bool:
        """Whether a token is one that decode hides: control tokens and the unknown token."""
        return token in self._hidden

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    @property
    def bos(self) -> int | None:
        return self.specials.bos

    @property
    def eos(self) -> int | None:
        return self.specials.eos

    @property
    def eot(self) -> int | None:
        return self.specials.eot

    @property
    def pad(self) -> int | None:
        return self.specials.pad

    @property
    def unk(self) -> int | None:
        return self.specials.unk

    @property
    def eog(self) -> frozenset[int]:
        return self.specials.eog

    def encode(
        self, text: str, *, special: bool = False, bos: bool | None = None, start: bool = True
    ) -> list[int]:
        """The ids of a text.

        special: parse control tokens; False makes them ordinary text. bos: None adds what the file says
        (begin, end and separator tokens), True a begin token whatever it says, False nothing. start: the text
        opens a whole one, where SentencePiece puts a space in front; False for what stands inside.
        RequestError for half surrogate pairs, for over 2^28 characters, for bos=True without such a token;
        TooManyTokens within `limit.at_most`.
        """
        limit.check(len(text) // self._widest)
        _check_text(text)
        return self._surround(self._encode(self._splitter.split(text, special), start), bos)

    def encode_rendered(
        self, text: str, *, bos: bool | None = None, guard: MarkerGuard | None = None
    ) -> list[int]:
        """The ids of a rendered chat template whose user text went through `escape`, or the guard's.

        Control tokens of the template are parsed, those that users wrote are not. A begin token is added
        where the file asks for one and the template did not write it (bos None), always (True) or never
        (False); nothing is added at the end, where the answer follows.
        """
        limit.check(len(text) // (2 * self._widest))  # escaping makes two characters of one at most
        _check_text(text)
        guard = guard or self._control
        fragments: list[str | int] = []
        for fragment in self._splitter.split(text, special=True):
            if isinstance(fragment, int):
                fragments.append(fragment)
            else:
                plain = guard.unescape(fragment)
                fragments += self._splitter.split(plain, special=False, but=guard.markers)
        ids = self._encode(fragments, guard=guard)
        if bos is None:
            bos = self.specials.add_bos and ids[:1] != [self.specials.bos]
        return [self._begin(), *ids] if bos else ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; special shows control tokens by name. Bytes that are no UTF-8 become U+FFFD."""
        stream = self.stream(special=special)
        return stream.feed(ids) + stream.flush()

    def stream(self, *, special: bool = False, start: bool = True) -> Detokenizer:
        """A detokenizer for ids that come one by one.

        start: they open a text, so that a SentencePiece vocabulary's leading space is dropped.
        """
        piece = self.token_bytes if special else self._shown_bytes
        return Detokenizer(piece, strip=self._space_prefix and start)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; RequestError for an id outside the vocabulary."""
        piece = self._pieces.get(token)
        if piece is None:
            if not 0 <= token < len(self.vocab):
                raise RequestError(f"token id: expected 0 to {len(self.vocab) - 1}, got {token}")
            piece = self._pieces[token] = self._encoder.token_bytes(token)
        return piece

    def escape(self, text: str) -> str:
        """User text made safe for `encode_rendered`; see Escape."""
        return self._control.escape(text)

    def guard(self, markers: frozenset[str]) -> MarkerGuard:
        """What keeps user text from becoming control tokens, or user-defined ones of these texts."""
        if markers not in self._guards:
            self._guards[markers] = MarkerGuard.of(self.vocab, markers)
        return self._guards[markers]

    def unescape(self, text: str) -> str:
        return self._control.unescape(text)

    @cached_property
    def _control(self) -> MarkerGuard:
        return MarkerGuard.of(self.vocab, frozenset())

    def _shown_bytes(self, token: int) -> bytes:
        return b"" if token in self._hidden else self.token_bytes(token)

    def _encode(
        self, fragments: list[str | int], start: bool = True, guard: MarkerGuard | None = None
    ) -> list[int]:
        texts = [fragment for fragment in fragments if isinstance(fragment, str)]
        limit.check(len(fragments) - len(texts) + sum(-(-_bytes(t) // self._longest) for t in texts))
        ids: list[int] = []
        for fragment in self._pieces_of(fragments):
            if isinstance(fragment, int):
                ids.append(fragment)
                start = True
                continue
            found = self._encoder.encode(fragment, start)
            if guard and guard.markers and not guard.markers.keys().isdisjoint(found):
                # The letters of a marker were put together again: encoded in two parts they can't be.
                parts = enumerate(guard.apart(fragment))
                found = [i for n, part in parts for i in self._encoder.encode(part, start and not n)]
            ids += found
            limit.check_made(len(ids))
            start = False
        return ids

    def _pieces_of(self, fragments: list[str | int]) -> Iterator[str | int]:
        """The fragments with long texts in pieces: none holds all of its tokens' offsets at once."""
        for fragment in fragments:
            if isinstance(fragment, int) or not self._encoder.cuts:
                yield fragment
            else:
                yield from limit.pieces(fragment)

    def _surround(self, ids: list[int], bos: bool | None) -> list[int]:
        specials = self.specials
        if bos is False:
            return ids
        if bos or specials.add_bos:
            ids = [self._begin(), *ids]
        if specials.add_sep and specials.sep is not None and self.kind == "bert":
            return [*ids, specials.sep]
        return [*ids, specials.eos] if specials.add_eos and specials.eos is not None else ids

    def _begin(self) -> int:
        if self.specials.bos is None:
            raise RequestError("a begin token was asked for and the vocabulary has none; leave it out")
        return self.specials.bos


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise RequestError(f"text: expected at most {MAX_TEXT:,} characters, got {len(text):,}; split it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise RequestError(
                f"text: expected Unicode, got half a surrogate pair (U+{code:04X}) at character {error.start}"
            ) from None
