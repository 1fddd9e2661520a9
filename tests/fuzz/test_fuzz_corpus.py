"""Runs the corpus, and a few hundred mutations of it, through every fuzz target."""

from __future__ import annotations

import random
from pathlib import Path

import fuzz_targets
import pytest
from mutate import mutate
from mutate_values import READERS, mutate_values

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(CORPUS.glob("*/*"))
LARGEST = 250_000  # bytes of the corpus
FEW = (
    "gguf",
    "requests",
    "schema",
    "gbnf",
    "lark",
    "regex",
    "lock",
    "journal",
    "config",
    "lora",
    "peft",
    "onnx",
)
ROUNDS = {**dict.fromkeys(FEW, 110), "gguf": 150, "regex": 40, "requests": 200}


def test_every_target_has_a_corpus_and_it_is_small() -> None:
    assert {path.parent.name for path in INPUTS} == set(fuzz_targets.TARGETS)
    assert sum(path.stat().st_size for path in INPUTS) < LARGEST


@pytest.mark.parametrize("path", INPUTS, ids=[f"{p.parent.name}-{p.name}" for p in INPUTS])
def test_the_corpus_is_sound(path: Path) -> None:
    """Every input gets past the first check, so that it reaches something."""
    if absent := fuzz_targets.missing(path.parent.name):
        pytest.skip(absent)
    assert fuzz_targets.run(path.parent.name, path.read_bytes()) is None


@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
def test_mutations_end_in_our_errors_or_in_none(target: str) -> None:
    if absent := fuzz_targets.missing(target):
        pytest.skip(absent)
    rand = random.Random(target)
    seeds = [path.read_bytes() for path in INPUTS if path.parent.name == target]
    changed, rounds = 0, ROUNDS.get(target, 300)
    for _ in range(rounds):
        whole = rand.choice(seeds)
        if target in READERS and rand.random() < 0.8:
            data = mutate_values(target, whole, rand, seeds)
        else:
            data = mutate(whole, rand, seeds, head=4096 if target == "gguf" else 0)
        changed += data != whole
        fuzz_targets.run(target, data)
    assert changed > rounds / 2
