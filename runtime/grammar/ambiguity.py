"""Detects regular expressions with exponential backtracking, such as (a+)+.

Our own matching is linear for any pattern; programs that read the answer with the same pattern may not be.
Source: Weber and Seidl, On the degree of ambiguity of finite automata, 1991 (criterion EDA), on Glushkov's
automaton: a duplicate edge inside a loop, or two different paths from a state to itself with one text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from satchel.runtime.grammar.regex import Alt, Chars, Ranges, RegexNode, Repeat

MAX_COPIES = 8  # copies of a bounded repetition
MAX_STATES = 300  # larger automata are not analyzed
MAX_PAIRS = 60_000

Pair = tuple[int, int]
Ends = tuple[bool, list[int], list[int]]  # can be empty, first states, last states


class TooLarge(Exception):
    """The automaton exceeds MAX_STATES."""


@dataclass
class _Automaton:
    labels: list[Ranges] = field(default_factory=list)
    edges: list[set[int]] = field(default_factory=list)
    doubled: bool = False

    def add(self, node: RegexNode) -> Ends:
        if isinstance(node, Chars):
            return self._add_state(node.ranges)
        if isinstance(node, Repeat):
            return self._add_repeat(node)
        if isinstance(node, Alt):
            all_ends = [self.add(part) for part in node.parts]
            firsts = [state for ends in all_ends for state in ends[1]]
            return any(ends[0] for ends in all_ends), firsts, [s for ends in all_ends for s in ends[2]]
        return self._add_sequence(node.parts)

    def _add_state(self, ranges: Ranges) -> Ends:
        if len(self.labels) >= MAX_STATES:
            raise TooLarge
        self.labels.append(ranges)
        self.edges.append(set())
        state = len(self.labels) - 1
        return False, [state], [state]

    def _add_sequence(self, parts: Iterable[RegexNode]) -> Ends:
        whole: Ends = (True, [], [])
        for part in parts:
            whole = self._join(whole, self.add(part))
        return whole

    def _join(self, left: Ends, right: Ends) -> Ends:
        self._link(left[2], right[1])
        firsts = left[1] + right[1] if left[0] else left[1]
        lasts = left[2] + right[2] if right[0] else right[2]
        return left[0] and right[0], firsts, lasts

    def _add_repeat(self, node: Repeat) -> Ends:
        if node.high == 0:
            return True, [], []
        if node.high is None:
            empty, firsts, lasts = self.add(node.part)
            self._link(lasts, firsts, loop=True)
            return empty or node.low == 0, firsts, lasts
        if node.high > MAX_COPIES:
            # A wide range counts as a loop: {1,20} may stop anywhere, as + may.
            high = None if node.high > max(node.low, 1) else min(node.high, 2)
            return self._add_repeat(Repeat(node.part, min(node.low, 1) if high is None else high, high))
        whole: Ends = (True, [], [])
        for copy in range(node.high):
            empty, firsts, lasts = self.add(node.part)
            whole = self._join(whole, (empty or copy >= node.low, firsts, lasts))
        return whole

    def _link(self, sources: list[int], targets: list[int], loop: bool = False) -> None:
        for source in sources:
            for target in targets:
                self.doubled |= loop and target in self.edges[source]
                self.edges[source].add(target)


def is_catastrophic(node: RegexNode) -> bool:
    """Whether some text has exponentially many matches. False if the pattern is too large to tell."""
    automaton = _Automaton()
    try:
        automaton.add(node)
    except TooLarge:
        return False
    return automaton.doubled or _has_two_ways(automaton)


def _has_two_ways(automaton: _Automaton) -> bool:
    """Whether a pair of different states shares a strongly connected component with a pair of equal
    states.
    """
    forward = _pairs(automaton)
    if forward is None:
        return False
    for component in _components(forward):
        equal = [a == b for a, b in component]
        if any(equal) and not all(equal):
            return True
    return False


def _pairs(automaton: _Automaton) -> dict[Pair, list[Pair]] | None:
    """Graph of the pairs of states that one text reaches from a single state, smaller state first; None if it
    is too large.
    """
    labels, edges = automaton.labels, automaton.edges
    count = len(labels)
    kinds = {ranges: i for i, ranges in enumerate(dict.fromkeys(labels))}
    overlaps = [[_overlap(a, b) for b in kinds] for a in kinds]
    of = [kinds[ranges] for ranges in labels]
    waiting: list[Pair] = [(state, state) for state in range(count)]
    found: dict[Pair, list[Pair]] = {}
    work = 0
    while waiting:
        pair = waiting.pop()
        if pair in found:
            continue
        targets = {
            (min(a, b), max(a, b)) for a in edges[pair[0]] for b in edges[pair[1]] if overlaps[of[a]][of[b]]
        }
        work += len(edges[pair[0]]) * len(edges[pair[1]])
        if work > MAX_PAIRS:
            return None
        found[pair] = list(targets)
        waiting += targets
    return found


def _components(edges: dict[Pair, list[Pair]]) -> list[list[Pair]]:
    """Strongly connected components (Kosaraju)."""
    left: list[Pair] = []
    seen: set[Pair] = set()
    backward: dict[Pair, list[Pair]] = {pair: [] for pair in edges}
    for start in edges:
        stack = [] if start in seen else [(start, iter(edges[start]))]
        seen.add(start)
        while stack:
            pair, following = stack[-1]
            target = next(following, None)
            if target is None:
                stack.pop()
                left.append(pair)
                continue
            backward[target].append(pair)
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(edges[target])))
    found: list[list[Pair]] = []
    for start in reversed(left):
        component: list[Pair] = []
        waiting = [start]
        while waiting:
            pair = waiting.pop()
            if pair in seen:  # not in a component yet
                seen.remove(pair)
                component.append(pair)
                waiting += backward[pair]
        if component:
            found.append(component)
    return found


def _overlap(a: Ranges, b: Ranges) -> bool:
    return any(first <= high and low <= last for first, last in a for low, high in b)
