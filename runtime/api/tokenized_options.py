"""GenerateOptions as a GenerateRequest: their texts as tokens of the vocabulary (bad words, DRY's sequence
breakers, end tokens), and its grammar as a constraint.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.reasoning import ReasoningBudget
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.grammar import compile_grammar
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.dry import Breakers, find_breakers


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


MOST_KEPT = 1 << 18  # cached entries of breakers per vocabulary: about 30 MB
_kept: WeakKeyDictionary[Tokenizer, _Kept] = WeakKeyDictionary()  # freed with the model
_keeping = threading.Lock()


def breakers_of(tokenizer: Tokenizer, breakers: Iterable[str]) -> Breakers:
    """DRY's sequence breakers in a vocabulary, cached."""
    texts = tuple(breakers)
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
    """A copy with each text of bad_words as token sequences, alone and after a space."""
    found: list[str | tuple[int, ...]] = []
    for word in sampling.bad_words:
        if isinstance(word, str):
            found += [tuple(tokenizer.encode(text, bos=False)) for text in (word, " " + word.lstrip())]
        else:
            found.append(tuple(word))
    return replace(sampling, bad_words=tuple(dict.fromkeys(w for w in found if w)))


def stop_ids_of(tokenizer: Tokenizer, options: GenerateOptions) -> frozenset[int]:
    """End tokens of a request. Raises RequestError for an id outside the vocabulary."""
    bad = next((t for t in options.stop_token_ids if not 0 <= t < tokenizer.vocab_size), None)
    if bad is not None:
        raise RequestError(f"stop_token_ids: {bad} is not in the vocabulary of {tokenizer.vocab_size}")
    return frozenset(options.stop_token_ids) | (frozenset() if options.ignore_eos else tokenizer.eog)


def generate_request(
    tokenizer: Tokenizer,
    options: GenerateOptions,
    ids: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    adapter_scales: AdapterScales = (),
) -> GenerateRequest:
    """The request that these options make of a prompt. sampling: theirs, with bad_words as tokens."""
    return GenerateRequest(
        ids,
        max_tokens,
        sampling,
        stop_ids_of(tokenizer, options),
        priority=options.priority,
        client=options.client,
        user=options.user,
        weight=options.weight,
        deadline=time.monotonic() + options.timeout if options.timeout else None,
        salt=options.salt,
        adapter_scales=adapter_scales,
        draft=options.draft,
        logits_processors=tuple(options.logits_processors),
        logprobs=options.logprobs,
        banned=frozenset(tokenizer.eog) if options.ignore_eos else frozenset(),
        breakers=breakers_of(tokenizer, sampling.dry_breakers) if sampling.dry_multiplier > 0 else Breakers(),
        grammar=options.grammar,
        constraint=options.constraint,
    )


def with_constraint(request: GenerateRequest, tokenizer: Tokenizer) -> GenerateRequest:
    """The request with its grammar compiled into a constraint, which begins after the reasoning where the
    model may reason. Raises RequestError for a grammar that cannot be compiled.
    """
    constraint = request.constraint
    if request.grammar is not None:
        constraint = compile_grammar(tokenizer, request.grammar).constraint()
    if constraint is not None and request.style is not None:
        constraint = ReasoningBudget(tokenizer, request.style, opening=request.opening, inner=constraint)
    return replace(request, grammar=None, constraint=constraint, style=None)
