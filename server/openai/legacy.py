"""The logprobs of completions: four lists beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.sampling.logprobs import Logprob
from satchel.server.flavour import JsonObject
from satchel.server.openai.shapes import LEAST


class Legacy:
    """Of one answer, in order. at: characters before its first token. by_id: tokens by their numbers."""

    def __init__(self, tokenizer: Tokenizer, top: int, at: int = 0, by_id: bool = False) -> None:
        self._tokenizer, self._top, self._by_id, self._at = tokenizer, top, by_id, at
        self._text = tokenizer.stream(start=False)

    def told(self, given: Sequence[Logprob | int]) -> JsonObject:
        """The lists for more tokens; an int is a token of which nothing is known, as of a prompt's first."""
        tokens, values, tops, offsets = [], [], [], []
        for p in given:
            token, known = (p, None) if isinstance(p, int) else (p.token, p)
            tokens.append(self._name(token))
            offsets.append(self._at)
            values.append(None if known is None else max(known.logprob, LEAST))
            tops.append(None if known is None else dict(self._neighbours(known)))
            self._at += len(self._text.feed(token))
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops if self._top else None,
            "text_offset": offsets,
        }

    def _neighbours(self, p: Logprob) -> Iterator[tuple[str, float]]:
        """The likeliest tokens, and the one that came."""
        for token, value in p.top[: self._top]:
            yield self._name(token), max(value, LEAST)
        yield self._name(p.token), max(p.logprob, LEAST)

    def _name(self, token: int) -> str:
        """Its text; bytes that are no text by their numbers, so that two tokens never look the same."""
        if self._by_id:
            return f"token_id:{token}"
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
