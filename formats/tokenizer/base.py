"""The tokenizer interface: encodes text to ids and decodes ids, for every kind of vocabulary.

Control tokens in a text are parsed only on request. Ids and bytes round-trip exactly.
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

MAX_TEXT = 1 << 28  # characters: keeps all counts far below 2^31


class TokenEncoder(Protocol):
    """The part of a tokenizer that depends on the kind of vocabulary: ids of ordinary text, bytes of a
    token.
    """

    # The largest number of bytes of ordinary text per id; None where encoding may drop text.
    longest: int | None
    cuts: bool  # whether splitting a text at `limit.BORDER` gives the same ids

    def encode(self, text: str, start: bool) -> list[int]:
        """The ids of ordinary text. start: the text is at the beginning or follows a special token."""

    def token_bytes(self, token: int) -> bytes: ...


class Tokenizer:
    """A tokenizer, made by `build_tokenizer`. specials: the special ids. eog: ids that end generation."""

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
        self._widest = max(self._longest, marks)  # the largest number of bytes per id, special ids included

    def text(self, token: int) -> str:
        """A token's text in the vocabulary. RequestError for an id outside the vocabulary."""
        self.token_bytes(token)
        return self.vocab.tokens[token]

    def is_control(self, token: int) -> bool:
        """Whether decode hides the token: a control token or the unknown token."""
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

        special: parse control tokens; False treats them as ordinary text.
        bos: None adds the tokens that the file asks for (BOS, EOS, separator), True always a BOS token, False
        nothing.
        start: the text is the beginning of a whole text, where SentencePiece adds a space; False inside one.

        RequestError for half surrogate pairs, for more than 2^28 characters, and for bos=True without a BOS
        token; TooManyTokens within `limit.at_most`.
        """
        limit.check(len(text) // self._widest)
        _check_text(text)
        return self._surround(self._encode(self._splitter.split(text, special), start), bos)

    def encode_rendered(
        self, text: str, *, bos: bool | None = None, guard: MarkerGuard | None = None
    ) -> list[int]:
        """The ids of a rendered chat template whose user text was escaped by `escape` or by the guard.

        Control tokens of the template are parsed; those in user text are not. bos: None adds a BOS token
        where the file asks for one and the template did not write it, True always, False never. No token is
        added at the end, where the answer follows.
        """
        limit.check(len(text) // (2 * self._widest))  # escaping at most doubles the number of characters
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
        """The text of ids. special: include the texts of control tokens. Invalid UTF-8 becomes U+FFFD."""
        stream = self.stream(special=special)
        return stream.feed(ids) + stream.flush()

    def stream(self, *, special: bool = False, start: bool = True) -> Detokenizer:
        """A streaming detokenizer. start: the ids begin a text, so the leading space of a SentencePiece
        vocabulary is dropped.
        """
        piece = self.token_bytes if special else self._shown_bytes
        return Detokenizer(piece, strip=self._space_prefix and start)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token. RequestError for an id outside the vocabulary."""
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
        """A guard that keeps user text from becoming a control token or one of these user-defined markers."""
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
                # Unescaping restored a marker's text: encode it in two parts, so that it can't become the
                # token.
                parts = enumerate(guard.apart(fragment))
                found = [i for n, part in parts for i in self._encoder.encode(part, start and not n)]
            ids += found
            limit.check_made(len(ids))
            start = False
        return ids

    def _pieces_of(self, fragments: list[str | int]) -> Iterator[str | int]:
        """The fragments with long texts split, which bounds the library's memory for token offsets."""
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
