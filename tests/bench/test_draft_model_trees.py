"""Tests of bench/draft_model_trees.py: the paths of a tree, the steps of an answer, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import draft_model_trees
import pytest
from draft_costs import Tally, read_costs
from draft_model_trees import paths, replay_tree

# Ranks of answers, the prompt's token first. 4: the draft model did not have the token.
ANSWERS = [[0, 0, 0, 1, 0, 4, 0, 0], [0, 0, 1, 0, 0]]
COSTS = read_costs("1:1,4:2.5")


def test_a_tree_holds_the_paths_that_are_right_most_often() -> None:
    found = paths(ANSWERS, 4, 3)
    assert found[:4] == [(0,), (0, 0), (1,), (0, 1)]
    for count in range(1, len(found) + 1):
        tree = set(found[:count])
        assert all(path[:-1] in {(), *tree} for path in tree)
    assert (0, 1, 0) in found and all(len(path) <= 3 and 4 not in path for path in found)
    assert paths(ANSWERS, 1, 3) == [(0,), (0, 0)], "a chain has the likeliest tokens alone"


def test_an_answer_takes_the_steps_that_its_paths_leave() -> None:
    """With the chain 2 and 1, 1 and 1, 1 draft tokens are right; the last of an answer is never one."""
    chain = replay_tree(ANSWERS, [(0,), (0, 0)], COSTS, 0.25)
    assert chain == Tally(tokens=11, steps=5, drafted=10, accepted=6, cost=5 * (2.0 + 0.5))
    tree = replay_tree(ANSWERS[:1], [(0,), (0, 0), (0, 0, 1), (0, 0, 1, 0)], COSTS, 0.25)
    assert tree == Tally(tokens=7, steps=2, drafted=8, accepted=5, cost=2 * (3.0 + 1.0))


def test_the_model_drafts_for_itself_without_a_miss(
    tmp_path: Path, bundled_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model_trees, "TASKS", {"chat": ("Tell me a story about a dragon.",)})
    out = tmp_path / "out.json"
    asked = [f"--draft-model={bundled_model}", f"--json={out}", "--tokens=12", "--rows=1,3", "--ranks=2"]
    asked += ["--tasks=chat"]
    draft_model_trees.main([*asked, "--costs=wanted", "--drafting=0,0.5"])
    found = json.loads(out.read_text())
    assert [(r["drafting"], r["ranks"], r["drafts"]) for r in found] == [
        (drafting, ranks, rows) for drafting in (0, 0.5) for ranks in (1, 2) for rows in (1, 3)
    ]
    assert all(r["tally"]["tokens"] == 11 for r in found)
    assert [r["tally"]["steps"] for r in found] == [6, 3, 6, 3] * 2, "each draft token is right"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("100%, 0%") and len(lines) == 2 + 2 + 2
