"""Log-probabilities in the shape of /v1/completions: four parallel lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.sampling.logprobs import Logprob
from satchel.server.flavour import JsonObject
from satchel.server.openai.shapes import LEAST


class Legacy:
    """Writes the log-probabilities of one completion, in order.

    top: the number of alternatives per token.
    at: the text offset of the first token.
    by_id: tokens are named by their ids.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, at: int = 0, by_id: bool = False) -> None:
        self._tokenizer, self._top, self._by_id, self._at = tokenizer, top, by_id, at
        self._text = tokenizer.stream(start=False)

    def lists(self, given: Sequence[Logprob | int]) -> JsonObject:
        """The lists for further tokens. An int is a token without a log-probability, such as a prompt's
        first.
        """
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
        """The top alternatives and the sampled token."""
        for token, value in p.top[: self._top]:
            yield self._name(token), max(value, LEAST)
        yield self._name(p.token), max(p.logprob, LEAST)

    def _name(self, token: int) -> str:
        """The token's text; invalid UTF-8 is written as byte values, so that no two tokens look the same."""
        if self._by_id:
            return f"token_id:{token}"
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
