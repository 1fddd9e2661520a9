"""Tests of bench/draft_trees.py: what a tree holds, and that its right tokens are what a step accepts."""

from __future__ import annotations

import json
from pathlib import Path

import draft_trees
import pytest
from draft_costs import StepCosts
from draft_trees import Node, Offers, Rates, TreeIndex, fixed, known, learned, replay_trees, tree

from satchel.runtime.speculative.acceptance import Acceptance

# 1 2 is followed by 3 4 5 6 first, then by 3 4 7 8; the last match is the longer one.
TEXT = [9, 1, 2, 3, 4, 5, 6, 0, 8, 1, 2, 3, 4, 7, 8, 0, 8, 1, 2]
CHEAP = StepCosts([(1, 1.0), (17, 1.0001)])


def offered(branches: int, most: int) -> list[tuple[int, list[int]]]:
    index = TreeIndex()
    index.extend(TEXT)
    return index.continuations(branches, most)


def test_continuations_are_those_of_the_longest_match_then_of_others() -> None:
    index = TreeIndex()
    index.extend(TEXT)
    match = index.match(4)
    assert match is not None
    assert offered(1, 4) == [(match.length, list(match.ids))] == [(4, [3, 4, 7, 8])]
    assert offered(4, 4) == [(4, [3, 4, 7, 8]), (2, [3, 4, 5, 6])]
    assert offered(4, 2) == [(4, [3, 4])], "they differ behind the second token"


def test_a_common_beginning_is_one_run_of_nodes() -> None:
    nodes = tree(offered(2, 4), [3, 4, 5, 9])
    assert [n.parent for n in nodes] == [-1, 0, 1, 2, 1, 4]
    assert [n.right for n in nodes] == [True, True, False, False, True, False]


def test_the_likeliest_nodes_are_a_tree() -> None:
    shared = Acceptance()
    for kind in range(3 * draft_trees.CLASSES):
        for place in range(4):
            for i in range(20):
                shared.learn(kind, place, i % (2 + kind + place) == 0)
    nodes = tree(offered(2, 4), [])
    chances = Rates(shared).chances(nodes)
    assert all(n.parent < 0 or chances[i] <= chances[n.parent] for i, n in enumerate(nodes))
    for count in range(len(nodes) + 1):
        chosen = set(fixed(count)(nodes, chances, CHEAP))
        assert len(chosen) == count and all(nodes[i].parent in {-1, *chosen} for i in chosen)


def test_as_many_are_chosen_as_pay() -> None:
    nodes = [Node(-1, 0, 0, True), Node(0, 0, 1, True), Node(-1, 5, 0, False)]
    dear = StepCosts([(1, 1.0), (2, 1.5), (3, 4.0), (4, 5.0)])
    assert learned(nodes, [0.9, 0.8, 0.1], dear) == [0]
    assert learned(nodes, [0.9, 0.8, 0.1], CHEAP) == [0, 1, 2]
    assert learned(nodes, [0.2, 0.1, 0.02], dear) == []
    assert known(nodes, [0.9, 0.8, 0.1], dear) == [0] and known(nodes, [], CHEAP) == [0, 1]


def test_an_answer_takes_the_steps_that_its_right_tokens_leave() -> None:
    """The answer goes as the shorter match: a chain's draft is right up to there, a tree's up to the end."""
    answer = [4, 5, 6, 0, 7]
    chain, both = (Offers([*TEXT, 3], answer, branches, 8) for branches in (1, 2))
    steps = {}
    for name, offers in (("chain", chain), ("tree", both)):
        tally = replay_trees([offers], fixed(16), CHEAP)
        assert tally.tokens == 4 == tally.steps + tally.accepted
        steps[name] = tally.steps
    assert steps["tree"] < steps["chain"] < 4
    best = replay_trees([both], known, CHEAP)
    assert best.drafted == best.accepted and best.steps == steps["tree"]


def test_all_drafters_are_compared(
    tmp_path: Path, bundled_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "out.json"
    pairs.write_text(json.dumps({"task": "copy", "prompt": "one two " * 9, "answer": "two one " * 30}))
    asked = [f"--pairs={pairs}", f"--tokenizer={bundled_model}", f"--json={out}", "--tasks=copy"]
    draft_trees.main([*asked, "--costs=wanted/cpu", "--branches=2", "--draft-max=4"])
    found = json.loads(out.read_text())
    ways = [*"1234", "learned", "known"]
    for costs in ("wanted", "cpu"):
        of = {(r["branches"], r["chosen"]): r["tally"] for r in found if r["costs"] == costs}
        assert set(of) == {(0, "lookup"), *((b, w) for b in (1, 2) for w in ways)}
        assert len({tally["tokens"] for tally in of.values()}) == 1
        assert all(t["drafted"] <= 4 * max(1, b) * t["steps"] for (b, _), t in of.items())
        assert all(t["tokens"] == t["steps"] + t["accepted"] for t in of.values())
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| wanted", "copy"], ["| cpu", "copy"]]
