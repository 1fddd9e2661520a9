"""The grammar section: rules as automata over bytes that call each other, as cext/embed/grammar.c runs them.

Each rule becomes a nondeterministic automaton (Thompson, 1968) over UTF-8, then a deterministic one, of which
a call of a rule is a symbol like a byte. So a state has at most one edge for a byte, and several calls. What
leads nowhere is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.aot.grammar_rules import WS, ObjectMembers, Rules, cat, rules_of, text_of
from satchel.runtime.aot.records import GRAMMAR_CALL, GRAMMAR_HEAD, GRAMMAR_RANGE, GRAMMAR_STATE, section
from satchel.runtime.grammar.regex import Alt, Cat, Chars, Repeat
from satchel.runtime.grammar.tree import Ref

MAGIC = b"SATGRA01"
MOST_STATES = 1 << 16  # of all rules together; their tables are some megabytes then
SURROGATES = (0xD800, 0xDFFF)
Bytes = tuple[int, int]


@dataclass(slots=True)
class Automaton:
    """The deterministic automata of all rules. starts: of the rules; the first is the whole text's.

    ranges: of each state, (low, high, to), rising; calls: (rule, to); finals: where the rule may end.
    """

    starts: list[int] = field(default_factory=list)
    ranges: list[list[tuple[int, int, int]]] = field(default_factory=list)
    calls: list[list[tuple[int, int]]] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)


def pack_grammar(text: str) -> bytes:
    """The section of a JSON schema, or of a grammar in GBNF. RequestError where it is malformed, or not
    supported.
    """
    made = compile_rules(rules_of(text))
    states = np.zeros(len(made.finals) + 1, GRAMMAR_STATE)
    for column, lists in (("first_range", made.ranges), ("first_call", made.calls)):
        states[column] = np.cumsum([0, *map(len, lists)])
    states["final"][:-1] = made.finals
    ranges = [(low, high, 0, to) for edges in made.ranges for low, high, to in edges]
    calls = [call for edges in made.calls for call in edges]
    head = np.zeros((), GRAMMAR_HEAD)
    head["magic"], head["n_rules"], head["n_states"] = MAGIC, len(made.starts), len(made.finals)
    head["n_ranges"], head["n_calls"] = len(ranges), len(calls)
    tables = [states, np.array(ranges, GRAMMAR_RANGE), np.array(calls, GRAMMAR_CALL)]
    return section(head, [np.array(made.starts, np.uint32), *tables])


def compile_rules(rules: Rules) -> Automaton:
    """The automata of rules, of which the first one (or `root`) is the whole text's."""
    first = "root" if "root" in rules else next(iter(rules))
    names = [first, *(name for name in rules if name != first)]
    numbers, made = {name: i for i, name in enumerate(names)}, Automaton()
    for name in names:
        nfa = _Nfa(numbers)
        start = nfa.state()
        end = nfa.add(rules[name], start)
        _determinize(nfa, start, end, made)
    _check_begins(made, names)
    return made


class _Nfa:
    """An automaton under construction. free: edges without a symbol; bytes, calls: (symbol, to), by state."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self.free: list[list[int]] = []
        self.bytes: list[list[tuple[Bytes, int]]] = []
        self.calls: list[list[tuple[int, int]]] = []

    def state(self) -> int:
        if len(self.free) > MOST_STATES:
            raise RequestError(f"grammar: a rule has over {MOST_STATES:,} states: make it simpler")
        self.free.append([])
        self.bytes.append([])
        self.calls.append([])
        return len(self.free) - 1

    def add(self, node: Any, at: int) -> int:
        """Adds what follows a state; gives the state at its end."""
        if isinstance(node, Ref):
            end = self.state()
            self.calls[at].append((self._numbers[node.name], end))
            return end
        if isinstance(node, Chars):
            return self._chars(node, at)
        if isinstance(node, Repeat):
            return self._repeat(node, at)
        if isinstance(node, ObjectMembers):
            return self._members(node, at)
        if isinstance(node, Cat):
            for part in node.parts:
                at = self.add(part, at)
            return at
        assert isinstance(node, Alt)
        end = self.state()
        for part in node.parts:
            start = self.state()
            self.free[at].append(start)
            self.free[self.add(part, start)].append(end)
        return end

    def _chars(self, node: Chars, at: int) -> int:
        end = self.state()
        for low, high in node.ranges:
            for parts in _encoded(low, high):
                here = at
                for i, part in enumerate(parts):
                    to = end if i + 1 == len(parts) else self.state()
                    self.bytes[here].append((part, to))
                    here = to
        return end

    def _repeat(self, node: Repeat, at: int) -> int:
        for _ in range(node.low):
            at = self.add(node.part, at)
        end = self.state()
        if node.high is None:
            loop = self.state()
            self.free[at].append(loop)
            self.free[self.add(node.part, loop)].append(loop)
            self.free[loop].append(end)
            return end
        for _ in range(node.high - node.low):
            self.free[at].append(end)
            at = self.add(node.part, at)
        self.free[at].append(end)
        return end

    def _members(self, node: ObjectMembers, at: int) -> int:
        """Two ways beside each other: of an object that is empty so far, and of one that is not."""
        none, some = at, self.state()
        for pair, needed in node.items:
            end = self.state()
            for here, first in ((none, True), (some, False)):
                self.free[self._member(pair, here, first)].append(end)
            if needed:
                none, some = self.state(), end  # nothing leads to the first
                continue
            following = self.state(), self.state()
            self.free[none].append(following[0])
            self.free[some].append(following[1])
            self.free[end].append(following[1])
            none, some = following
        if node.other is not None:
            for here, first in ((none, True), (some, False)):
                self.free[self._member(node.other, here, first)].append(some)
        done = self.state()
        self.free[none].append(done)
        self.free[some].append(done)
        return done

    def _member(self, pair: Any, at: int, first: bool) -> int:
        parts = (pair, WS) if first else (text_of(","), WS, pair, WS)
        start = self.state()
        self.free[at].append(start)
        return self.add(cat(parts), start)


def _encoded(low: int, high: int) -> Iterator[tuple[Bytes, ...]]:
    """Sequences of byte ranges that are the UTF-8 of these characters, without surrogates."""
    for first, last in ((low, min(high, SURROGATES[0] - 1)), (max(low, SURROGATES[1] + 1), high)):
        for least, most in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)):
            a, b = max(first, least), min(last, most)
            if a <= b:
                yield from _split(chr(a).encode(), chr(b).encode())


def _split(low: bytes, high: bytes) -> Iterator[tuple[Bytes, ...]]:
    """Byte ranges of sequences of one length between two."""
    if len(low) == 1:
        yield ((low[0], high[0]),)
        return
    whole_low, whole_high = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
    if low[0] == high[0]:
        yield from (((low[0], low[0]), *rest) for rest in _split(low[1:], high[1:]))
        return
    first, last = low[0], high[0]
    if low[1:] != whole_low:
        yield from (((first, first), *rest) for rest in _split(low[1:], whole_high))
        first += 1
    after = []
    if high[1:] != whole_high:
        after = [((last, last), *rest) for rest in _split(whole_low, high[1:])]
        last -= 1
    if first <= last:
        yield ((first, last), *((0x80, 0xBF) for _ in whole_low))
    yield from after


def _determinize(nfa: _Nfa, start: int, end: int, made: Automaton) -> None:
    """Adds the deterministic automaton to `made` (subset construction), without states that do not lead to
    the end.
    """
    alive = _alive(nfa, end)
    if start not in alive:
        raise RequestError("grammar: a rule matches no text")

    def closed(states: Iterable[int]) -> frozenset[int]:
        found, waiting = set[int](), [s for s in states if s in alive]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += (s for s in nfa.free[at] if s in alive)
        return frozenset(found)

    base, waiting = len(made.finals), [closed([start])]
    known = {waiting[0]: base}
    order = [waiting[0]]

    def number(states: Iterable[int]) -> int:
        key = closed(states)
        if key not in known:
            known[key] = base + len(known)
            order.append(key)
            if base + len(known) > MOST_STATES:
                raise RequestError(f"grammar: it has over {MOST_STATES:,} states: make it simpler")
        return known[key]

    made.starts.append(base)
    for states in order:  # grows meanwhile
        made.finals.append(end in states)
        edges = [e for s in states for e in nfa.bytes[s] if e[1] in alive]
        made.ranges.append(_ranges(edges, number))
        calls: dict[int, list[int]] = {}
        for rule, to in sorted(c for s in states for c in nfa.calls[s] if c[1] in alive):
            calls.setdefault(rule, []).append(to)
        made.calls.append([(rule, number(to)) for rule, to in calls.items()])


def _ranges(
    edges: list[tuple[Bytes, int]], number: Callable[[Iterable[int]], int]
) -> list[tuple[int, int, int]]:
    """Disjoint ranges of bytes, rising, and where they lead; neighbours with one end are one."""
    cuts = sorted({low for (low, _), _ in edges} | {high + 1 for (_, high), _ in edges})
    found: list[tuple[int, int, int]] = []
    for low, after in pairwise(cuts):
        targets = {to for (a, b), to in edges if a <= low and after - 1 <= b}
        if not targets:
            continue
        to = number(sorted(targets))
        if found and found[-1][1] + 1 == low and found[-1][2] == to:
            found[-1] = (found[-1][0], after - 1, to)
        else:
            found.append((low, after - 1, to))
    return found


def _alive(nfa: _Nfa, end: int) -> set[int]:
    """States from which the end can be reached."""
    before: dict[int, list[int]] = {}
    for at in range(len(nfa.free)):
        for to in (*nfa.free[at], *(t for _, t in nfa.bytes[at]), *(t for _, t in nfa.calls[at])):
            before.setdefault(to, []).append(at)
    found, waiting = {end}, [end]
    while waiting:
        for at in before.get(waiting.pop(), ()):
            if at not in found:
                found.add(at)
                waiting.append(at)
    return found


def _check_begins(made: Automaton, names: list[str]) -> None:
    """RequestError for a rule that begins with itself, which no stack has an end of."""
    empty = [made.finals[start] for start in made.starts]
    begins: list[set[int]] = []
    changed = True
    while changed:
        changed, begins = False, []
        for rule, start in enumerate(made.starts):
            called, seen, waiting = set[int](), set[int](), [start]
            while waiting:
                at = waiting.pop()
                if at in seen:
                    continue
                seen.add(at)
                called |= {r for r, _ in made.calls[at]}
                waiting += (to for r, to in made.calls[at] if empty[r])
            ends = empty[rule] or any(made.finals[at] for at in seen)
            changed |= ends != empty[rule]
            empty[rule] = ends
            begins.append(called)
    for rule, called in enumerate(begins):
        reached, left = set[int](), list(called)
        while left:
            at = left.pop()
            if at not in reached:
                reached.add(at)
                left += begins[at]
        if rule in reached:
            raise RequestError(f"grammar: {names[rule]!r:.60} begins with itself: use a repetition")


__all__ = ["compile_rules", "pack_grammar"]
