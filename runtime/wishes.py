"""A caller's wishes in tokens: bad words as sequences, breakers of DRY, end tokens that never come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from weakref import WeakKeyDictionary

from satchel.formats.tokenizer import Tokenizer
from satchel.quant import RequestError
from satchel.runtime.ask import Ask
from satchel.runtime.detail import Wishes
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.dry import Breakers, find_breakers
from satchel.runtime.scheduler import Request
from satchel.runtime.structured_output import StructuredOutput


class _Kept:
    """The latest used breakers of one vocabulary, of a bounded number of tokens together."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], Breakers] = OrderedDict()
        self._size = 0

    def get(self, texts: tuple[str, ...]) -> Breakers | None:
        found = self._kept.get(texts)
        if found is not None:
            self._kept.move_to_end(texts)
        return found

    def add(self, texts: tuple[str, ...], made: Breakers) -> None:
        if texts not in self._kept:
            self._kept[texts] = made
            self._size += made.size
        while self._kept and self._size > MOST_KEPT:
            self._size -= self._kept.popitem(last=False)[1].size


MOST_KEPT = 1 << 18  # tokens and what follows them in breakers, of each vocabulary: some 30 MB
_kept: WeakKeyDictionary[Tokenizer, _Kept] = WeakKeyDictionary()  # they go with the model
_keeping = threading.Lock()


def breakers_of(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """DRY's breakers in a vocabulary, which is gone through where they were not asked for lately."""
    with _keeping:
        kept = _kept.setdefault(tokenizer, _Kept())
        found = kept.get(texts)
    if found is None:
        found = find_breakers(
            texts, tokenizer.vocab_size, tokenizer.token_bytes, lambda text: tokenizer.encode(text, bos=False)
        )
        with _keeping:
            kept.add(texts, found)
    return found


def in_tokens(sampling: Sampling, tokenizer: Tokenizer) -> Sampling:
    """The same with each text of bad_words as the tokens that write it, alone and after a space."""
    found: list[str | tuple[int, ...]] = []
    for word in sampling.bad_words:
        if isinstance(word, str):
            found += [tuple(tokenizer.encode(text, bos=False)) for text in (word, " " + word.lstrip())]
        else:
            found.append(word)
    return replace(sampling, bad_words=tuple(dict.fromkeys(w for w in found if w)))


def ends_of(tokenizer: Tokenizer, ask: Ask) -> frozenset[int]:
    """Tokens that end an answer. RequestError for one that the vocabulary has not."""
    bad = next((t for t in ask.stop_tokens if not 0 <= t < tokenizer.vocab_size), None)
    if bad is not None:
        raise RequestError(f"stop_tokens: {bad} is not in the vocabulary of {tokenizer.vocab_size}")
    return frozenset(ask.stop_tokens) | (frozenset() if ask.ignore_eos else tokenizer.eog)


def wishes_of(
    tokenizer: Tokenizer, sampling: Sampling, ask: Ask, structured_output: StructuredOutput | None
) -> Wishes:
    """What a request asks for beyond its sampling."""
    banned = frozenset(tokenizer.eog) if ask.ignore_eos else frozenset[int]()
    breakers = breakers_of(tokenizer, sampling.dry_breakers) if sampling.dry_multiplier > 0 else Breakers()
    return Wishes(None, ask.logprobs, tuple(ask.processors), banned, breakers, structured_output)


def with_constraint(request: Request, tokenizer: Tokenizer) -> Request:
    """The request with the constraint of its structured output, where it has one."""
    structured_output = request.wishes.structured_output
    if structured_output is None:
        return request
    return replace(
        request, wishes=replace(request.wishes, constraint=structured_output.constraint(tokenizer))
    )
