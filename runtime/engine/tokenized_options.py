"""Options of a request in tokens of the vocabulary: bad words, DRY's sequence breakers, end tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from weakref import WeakKeyDictionary

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.engine.logits_options import LogitsOptions
from satchel.runtime.engine.structured_output import StructuredOutput
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.dry import Breakers, find_breakers
from satchel.runtime.scheduler import Request


class _Kept:
    """LRU cache of one vocabulary's breakers, bounded by their entries together."""

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
    """DRY's sequence breakers in a vocabulary, from the cache or by a pass over all tokens."""
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
    """A copy with each text of bad_words as the tokens that write it, alone and after a space."""
    found: list[str | tuple[int, ...]] = []
    for word in sampling.bad_words:
        if isinstance(word, str):
            found += [tuple(tokenizer.encode(text, bos=False)) for text in (word, " " + word.lstrip())]
        else:
            found.append(word)
    return replace(sampling, bad_words=tuple(dict.fromkeys(w for w in found if w)))


def stop_ids_of(tokenizer: Tokenizer, options: GenerateOptions) -> frozenset[int]:
    """Tokens that end an answer. RequestError for an id outside of the vocabulary."""
    bad = next((t for t in options.stop_token_ids if not 0 <= t < tokenizer.vocab_size), None)
    if bad is not None:
        raise RequestError(f"stop_token_ids: {bad} is not in the vocabulary of {tokenizer.vocab_size}")
    return frozenset(options.stop_token_ids) | (frozenset() if options.ignore_eos else tokenizer.eog)


def logits_options_of(
    tokenizer: Tokenizer,
    sampling: Sampling,
    options: GenerateOptions,
    structured_output: StructuredOutput | None,
) -> LogitsOptions:
    """LogitsOptions of a request. ignore_eos bans the end tokens."""
    banned = frozenset(tokenizer.eog) if options.ignore_eos else frozenset[int]()
    breakers = breakers_of(tokenizer, sampling.dry_breakers) if sampling.dry_multiplier > 0 else Breakers()
    processors = tuple(options.logits_processors)
    return LogitsOptions(None, options.logprobs, processors, banned, breakers, structured_output)


def with_constraint(request: Request, tokenizer: Tokenizer) -> Request:
    """The request with the constraint compiled from its structured output, where it has one."""
    wanted = request.logits_options.structured_output
    if wanted is None:
        return request
    constrained = replace(request.logits_options, constraint=wanted.constraint(tokenizer))
    return replace(request, logits_options=constrained)
