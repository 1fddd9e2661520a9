"""Compiled grammars, cached per vocabulary and spec; each gives any number of constraints.

A constraint never allows what its grammar forbids: if the matcher fails, the request fails.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.refusals import Busy
from satchel.runtime.grammar.deep import begin_deep, run_deep
from satchel.runtime.grammar.schema import read_schema
from satchel.runtime.grammar.source import GrammarSource
from satchel.runtime.grammar.sources import read_spec
from satchel.runtime.grammar.spec import JsonSchema, Spec
from satchel.runtime.grammar.vocabulary import TokenBitmask, Vocabulary, bitmask_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_GRAMMARS = 64  # most cached grammars per vocabulary
MAX_KEPT = 128 << 20  # most bytes of cached grammars, by `cost_of`
# Bytes of a compiled grammar per character of its source; measured: 20 to 150 for schemas and choices, 350
# for one long text.
FACTOR, LEAST = 400, 1 << 14
BUDGET = 1.0  # most seconds from a grammar to its first mask
COMPILING = 4  # grammars that compile at once, including those that exceeded BUDGET and still run
PATIENCE = 10.0  # seconds that a grammar waits for its turn


class Grammar:
    """A compiled spec. `constraint()` begins an answer; `check(text)` judges a finished one."""

    def __init__(self, vocabulary: Vocabulary, source: GrammarSource) -> None:
        self.vocabulary, self._check = vocabulary, source.check
        self.cost = cost_of(source)
        self._start = _compile(vocabulary, source)
        marks = bitmask_of([*source.tokens], vocabulary.count)
        self._allowed = vocabulary.plain | vocabulary.ends | marks
        first = GrammarConstraint(self._start.deep_copy(), vocabulary, self._allowed)
        bitmask = np.zeros(len(self._allowed), np.uint32)
        try:
            first.fill(bitmask)
        except RequestError as error:
            raise source.fail(str(error)) from None
        if not np.any(bitmask & ~vocabulary.ends):
            raise source.fail("only the empty text satisfies it: give its recursion a base case")

    def constraint(self) -> GrammarConstraint:
        return GrammarConstraint(self._start.deep_copy(), self.vocabulary, self._allowed)

    def check(self, text: str) -> str:
        """The error of a finished text; "" if it satisfies the spec. As far as possible, the check is
        independent of the masks.
        """
        return self._check(text)


class GrammarConstraint:
    """State of one answer in its grammar; used by one thread at a time.

    finished: only an end token can follow.
    complete: the answer may end here.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, allowed: TokenBitmask) -> None:
        self._matcher, self._allowed = matcher, allowed
        self._vocabulary = vocabulary
        self._ended = 0  # accepted end tokens, which the matcher does not see
        self.finished = self.complete = False
        self._look()

    def fill(self, bitmask: TokenBitmask) -> None:
        """Writes the token bitmask: bit i % 32 of bitmask[i // 32] allows token i. It is contiguous uint32
        with the size of the model's vocabulary, which may exceed the tokenizer's.
        """
        count = len(self._allowed)
        if (
            bitmask.dtype != np.uint32
            or bitmask.ndim != 1
            or len(bitmask) < count
            or not bitmask.flags.c_contiguous
        ):
            raise RequestError(f"mask: expected {count} uint32 in a row, got {bitmask.dtype} {bitmask.shape}")
        bitmask[count:] = 0
        if self.finished:
            bitmask[:count] = self._vocabulary.ends
            return
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, count * 4)
        if self._matcher.is_error():
            raise self._failed()
        bitmask[:count] &= self._allowed
        if not self.complete:
            bitmask[:count] &= ~self._vocabulary.ends
        if not bitmask[:count].any():
            raise RequestError("grammar: no token of this vocabulary can follow: it has a dead end")

    def accept(self, token: int) -> None:
        """Takes the sampled token. Raises RequestError if it is not allowed."""
        if self._is_end(token):
            if not self.complete:
                raise RequestError(f"grammar: the end token {token} came before the answer was complete")
            self._ended += 1
            self.finished = True
            return
        if self.finished or not self._matcher.consume_token(token):
            raise RequestError(f"grammar: token {token} is not allowed here")
        self._look()

    def rollback(self, n: int) -> None:
        """Undoes the last n accepted tokens."""
        ends = min(n, self._ended)
        self._ended -= ends
        if n > ends and not self._matcher.rollback(n - ends):
            raise RequestError(f"grammar: cannot roll back {n} tokens")
        self._look()

    def _is_end(self, token: int) -> bool:
        ends = self._vocabulary.ends
        return token >> 5 < len(ends) and bool(int(ends[token >> 5]) >> (token & 31) & 1)

    def _look(self) -> None:
        matcher = self._matcher
        if matcher.is_error():
            raise self._failed()
        self.complete = matcher.is_accepting()
        stopped = matcher.is_stopped()
        if stopped and not self.complete:
            raise RequestError(
                "grammar: nothing can follow and the answer is not complete: it has a dead end"
            )
        self.finished = stopped or self._ended > 0

    def _failed(self) -> RequestError:
        return RequestError(f"grammar: {one_line(self._matcher.get_error())}; make it simpler")


class Compiler:
    """Grammars of one vocabulary: those in use, and a bounded LRU cache. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocabulary = Vocabulary(tokenizer, draws=tokenizer not in _checked)
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._live: WeakValueDictionary[str, Grammar] = WeakValueDictionary()  # in use by answers
        self._size = 0
        self._lock = threading.Lock()

    def compile(self, tokenizer: Tokenizer, spec: Spec) -> Grammar:
        key = hashlib.sha256(_key(spec).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            found = self._live.get(key)
            if found is not None:
                if key in self._kept:
                    self._kept.move_to_end(key)
                return found
        made = Grammar(self.vocabulary, read_spec(spec, tokenizer))
        with self._lock:
            return self._keep(key, made)

    def _keep(self, key: str, made: Grammar) -> Grammar:
        """Caches a grammar, unless another thread has cached the same meanwhile, or it would fill the cache
        alone.
        """
        made = self._live.setdefault(key, made)
        if key not in self._kept and made.cost <= MAX_KEPT // 2:
            self._kept[key] = made
            self._size += made.cost
        while len(self._kept) > MAX_GRAMMARS or self._size > MAX_KEPT:
            self._size -= self._kept.popitem(last=False)[1].cost
        return made


# A compiler holds no reference to its tokenizer, so both are freed with the model.
_compilers: WeakKeyDictionary[Tokenizer, Compiler] = WeakKeyDictionary()
_checked: WeakSet[Tokenizer] = WeakSet()
_making = threading.Lock()
_turns = threading.BoundedSemaphore(COMPILING)


def only_check(tokenizer: Tokenizer) -> None:
    """Declares that this process compiles grammars of this vocabulary only for checks; another process
    samples.
    """
    _checked.add(tokenizer)


def compile_grammar(tokenizer: Tokenizer, spec: Spec) -> Grammar:
    """The compiled grammar of a spec for a vocabulary, possibly cached.

    Raises RequestError, with a JSON pointer or the place in the text, for a spec that is malformed, too
    large, or cannot be enforced in full. The first grammar of a vocabulary reads its tokens, which takes a
    second for 150,000.
    """
    with _making:
        compiler = _compilers.get(tokenizer)
        if compiler is None:
            compiler = _compilers[tokenizer] = Compiler(tokenizer)
    return compiler.compile(tokenizer, spec)


def cost_of(source: GrammarSource) -> int:
    """Estimated bytes of a compiled grammar, from the length of its source."""
    return LEAST + FACTOR * len(source.grammar)


def _key(spec: Spec) -> str:
    try:
        return spec.key
    except RequestError:
        if isinstance(spec, JsonSchema):
            read_schema(spec.schema)  # its error has the place
        raise


def _compile(vocabulary: Vocabulary, source: GrammarSource) -> LLMatcher:
    """The matcher at the start of an answer, made on a thread that is abandoned after BUDGET. llguidance's
    own limits end it soon after; until then it counts against COMPILING.
    """
    from llguidance import LLMatcher, LLParserLimits

    made: list[LLMatcher] = []

    def work() -> None:
        try:
            limits = LLParserLimits(verbose_errors=False)
            matcher = LLMatcher(vocabulary.ll, source.grammar, log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.deep_copy().compute_bitmask()
            made.append(matcher)
        finally:
            _turns.release()

    if not _turns.acquire(timeout=PATIENCE):
        raise Busy(f"{COMPILING} slow grammars are being compiled: try again later")
    try:
        thread = begin_deep(work, "satchel-grammar")
    except RuntimeError:
        _turns.release()
        raise
    thread.join(BUDGET)
    if not made:
        raise source.fail(f"it takes over {BUDGET:g} s to compile: make it simpler")
    if made[0].is_error():
        raise source.fail(one_line(made[0].get_error()), run_deep(source.locate) if source.locate else "")
    return made[0]


def one_line(text: str) -> str:
    """A library's message on one line of bounded length, without its drawing of the error's place."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^|")]
    kept = [line for line in lines if not line[:1].isdigit() or "|" not in line]
    return " ".join(kept)[:300] or "it can't be compiled"
