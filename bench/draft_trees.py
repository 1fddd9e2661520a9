"""Drafts by lookup that are trees: how many tokens a step would give if a draft had several continuations.

    python bench/draft_trees.py [options of bench/draft_replay.py] [--branches 2,4]

A tree holds the continuations of several earlier matches of a sequence's end: of the longest match, then of
others, each of which goes its own way from where it differs. A beginning that two have in common is computed
once. The tokens of a step are those of the path that the answer takes. What verification of a tree would
need beside rows (a mask by ancestors, keys and values that move) costs nothing here: the speed is an upper
bound. A chain is a tree of one continuation.

A row compares, for a task and a table of costs, the program's drafter with chains and with trees: of the
fixed number of draft tokens that is best in hindsight (in brackets), of as many of the likeliest as pay by
what was learned of them, and of right tokens alone, as if they were known. Steps are measured without noise.

Invariant: a draft token is no likelier than the one before it on its path, so the likeliest ones are a tree,
and the right ones among them are the accepted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draft_costs import StepCosts, Tally, read_costs, write_results
from draft_replay import Encoded, examples_by_task, parser_of, replay
from number_lists import numbers
from one_line import errors_in_one_line

from satchel.runtime.speculation import Speculation
from satchel.runtime.speculative.acceptance import FIRST, LEAST, Acceptance, evidence
from satchel.runtime.speculative.length import wanted_gain
from satchel.runtime.speculative.ngram import CHAIN, LONGEST, PAIR, Ngrams

HEAD = (
    "| costs | task | lookup | fixed: chain | tree | learned: chain | tree | known: chain | tree |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|",
)
CLASSES = len(FIRST)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 31, 48, 64)
LATER = 0.15  # initial chance of another continuation's first token
# Kinds of nodes, by the match's class: of the first continuation; the first of another; those after that.
RATES = (*FIRST, *(LATER * rate / FIRST[-1] for rate in FIRST), *FIRST)


class Node(NamedTuple):
    """A draft token of a tree. kind, place: the key of what is learned of such tokens."""

    parent: int  # -1: the sequence's last token
    kind: int
    place: int
    right: bool  # the answer has it, and all before it


class TreeIndex(Ngrams):
    """An n-gram index that finds several continuations."""

    def continuations(self, count: int, most: int) -> list[tuple[int, list[int]]]:
        """(length of the match, `most` tokens after it) of earlier matches of the end, the longest first and
        of equally long ones the latest; no two have the same tokens. The first is what match() gives.
        """
        if len(self.ids) <= PAIR or most < 1:
            return []
        found: dict[tuple[int, ...], int] = {}
        for shortness, lateness in sorted(self._matches()):
            found.setdefault(tuple(self._following(-lateness, most)), -shortness)
            if len(found) == count:
                break
        return [(length, list(ids)) for ids, length in found.items()]

    def _matches(self) -> Iterator[tuple[int, int]]:
        """(-length, -place) of each match along the chain."""
        ids, place = self.ids, self._before[-1]
        for _ in range(CHAIN):
            if place < 0:
                break
            length, limit = PAIR, min(LONGEST, place + 1)
            while length < limit and ids[place - length] == ids[-1 - length]:
                length += 1
            yield -length, -place
            place = self._before[place]

    def _following(self, place: int, most: int) -> list[int]:
        found, period = self.ids[place + 1 : place + 1 + most], len(self.ids) - 1 - place
        while len(found) < most:
            found.append(found[-period])
        return found


def tree(continuations: Sequence[tuple[int, Sequence[int]]], truth: Sequence[int]) -> list[Node]:
    """The tree of these continuations. truth: the tokens that come."""
    nodes: list[Node] = []
    known: dict[tuple[int, int], int] = {}
    for order, (length, ids) in enumerate(continuations):
        parent, apart = -1, 0
        for place, token in enumerate(ids):
            node = known.get((parent, token))
            if node is None:
                node = known[parent, token] = len(nodes)
                right = (parent < 0 or nodes[parent].right) and place < len(truth) and truth[place] == token
                kind = evidence(length) + CLASSES * ((1 + (apart > 0)) if order else 0)
                nodes.append(Node(parent, kind, apart if order else place, right))
                apart += 1
            parent = node
    return nodes


class Offers:
    """The tree that is offered behind each token of an answer."""

    def __init__(self, prompt: Sequence[int], answer: Sequence[int], branches: int, most: int) -> None:
        index = TreeIndex()
        index.extend(prompt)
        self.trees: list[list[Node]] = []
        for at, token in enumerate(answer):
            index.extend([token])
            truth = answer[at + 1 : -1]  # after the last of them the step samples the answer's last token
            self.trees.append(tree(index.continuations(branches, min(most, len(truth))), truth))


class Rates:
    """Acceptance of a sequence's nodes by kind and place."""

    def __init__(self, shared: Acceptance) -> None:
        self._own, self._shared = Acceptance(shared, RATES), shared

    def chances(self, nodes: Sequence[Node]) -> list[float]:
        """For each node, the probability that it and all before it are right."""
        rates: dict[tuple[int, int], float] = {}
        found: list[float] = []
        for node in nodes:
            rate = self._rate(node.kind, node.place, rates)
            found.append(rate * (found[node.parent] if node.parent >= 0 else 1.0))
        return found

    def _rate(self, kind: int, place: int, rates: dict[tuple[int, int], float]) -> float:
        rate = rates.get((kind, place))
        if rate is None:
            first = place == (kind >= 2 * CLASSES)  # the token after the first of another continuation
            prior = RATES[kind] if first else self._rate(kind, place - 1, rates)
            prior = self._shared.rate(kind, place, prior)
            rate = rates[kind, place] = self._own.rate(kind, place, prior)
        return rate

    def learn(self, nodes: Sequence[Node]) -> None:
        """Learns from all nodes whose parent is right."""
        for node in nodes:
            if node.parent < 0 or nodes[node.parent].right:
                self._own.learn(node.kind, node.place, node.right)


Choose = Callable[[Sequence[Node], Sequence[float], StepCosts], Sequence[int]]


def likeliest(chances: Sequence[float]) -> list[int]:
    return sorted(range(len(chances)), key=lambda i: -chances[i])


def fixed(count: int) -> Choose:
    """Chooses the likeliest nodes, always so many."""
    return lambda nodes, chances, costs: likeliest(chances)[:count]


def learned(nodes: Sequence[Node], chances: Sequence[float], costs: StepCosts) -> Sequence[int]:
    """Chooses the number that makes most tokens a second by what was learned, as the program does."""
    order = likeliest(chances)
    best, chosen, expected = wanted_gain(1) / costs(1), 0, 1.0
    for n, i in enumerate(order, 1):
        if chances[i] < LEAST:
            break
        expected += chances[i]
        if expected / costs(1 + n) > best:
            best, chosen = expected / costs(1 + n), n
    return order[:chosen]


def known(nodes: Sequence[Node], chances: Sequence[float], costs: StepCosts) -> Sequence[int]:
    """Chooses nodes that are right alone, as many as make most tokens a second of the step."""
    right = [i for i, node in enumerate(nodes) if node.right]
    return right[: max(range(len(right) + 1), key=lambda n: (1 + n) / costs(1 + n))]


def replay_trees(examples: Sequence[Offers], choose: Choose, costs: StepCosts) -> Tally:
    """Answers one example after another."""
    shared, tally = Acceptance(first=RATES), Tally()
    for example in examples:
        rates, at = Rates(shared), 0
        while at < len(example.trees) - 1:
            nodes = example.trees[at]
            chosen = choose(nodes, rates.chances(nodes), costs) if nodes else ()
            accepted = sum(nodes[i].right for i in chosen)
            rates.learn(nodes)
            tally.add(len(chosen), accepted, costs(1 + len(chosen)))
            at += accepted + 1
    return tally


@dataclass(frozen=True, slots=True)
class Result:
    """How the answers of a task went. branches: continuations of a tree; 0: the program's drafter."""

    costs: str
    task: str
    branches: int
    chosen: str  # how the draft tokens were, or their number
    tally: Tally


def ways(draft_max: int) -> dict[str, Choose]:
    """How draft tokens are chosen, by name."""
    lengths: dict[str, Choose] = {str(n): fixed(n) for n in LENGTHS if n <= draft_max}
    return lengths | {"learned": learned, "known": known}


def results(
    task: str, examples: Sequence[Encoded], tables: Sequence[str], branches: Sequence[int], draft_max: int
) -> Iterator[Result]:
    """All drafters of a task, with each table of costs."""
    for name in tables:
        tally = replay(examples, read_costs(name), Speculation(lookup=True, draft_max=draft_max))
        yield Result(name, task, 0, "lookup", tally)
    for count in (1, *branches):
        offers = [Offers(e.prompt, e.answer, count, draft_max) for e in examples]
        for name in tables:
            for chosen, choose in ways(draft_max).items():
                yield Result(name, task, count, chosen, replay_trees(offers, choose, read_costs(name)))


def row(found: Sequence[Result]) -> str:
    """The row of a table and a task: the speed-up of the program's drafter, of chains and of trees."""

    def best(chains: bool, chosen: Callable[[str], bool]) -> Result:
        of = [r for r in found if r.branches and (r.branches == 1) == chains and chosen(r.chosen)]
        return max(of, key=lambda r: r.tally.speed_up)

    cells = [f"{r.tally.speed_up:.2f}" for r in found if not r.branches]
    for chosen in (str.isdigit, "learned".__eq__, "known".__eq__):
        for chains in (True, False):
            r = best(chains, chosen)
            note = f" ({r.chosen})" if r.chosen.isdigit() else ""
            cells.append(f"{r.tally.speed_up:.2f}{note}")
    return f"| {found[0].costs} | {found[0].task} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--branches", type=numbers, default=[2, 4], help="continuations of a tree")
    options = parser.parse_args(argv)
    tables, found = options.costs.split("/"), list[Result]()
    print("\n".join(HEAD))
    for task, examples in examples_by_task(options).items():
        of = list(results(task, examples, tables, options.branches, options.draft_max))
        for name in tables:
            print(row([r for r in of if r.costs == name]), flush=True)
        found += of
    write_results(options.json, found)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
