"""Multiple choice: likelihoods equal numpy's sums; both formats of task files, and refused ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.layers.arch import Cache
from satchel.runtime.tasks.choices import Task, read_tasks, score

VOCAB = 128


@dataclass
class Bigrams:
    """A fake engine: logits are a function of the last token; cached tokens are recorded."""

    batch: int = 7
    cache: Cache = field(default_factory=lambda: Cache(64))
    held: list[int] = field(default_factory=list)
    fed: int = 0

    def rewind(self, slot: int, length: int) -> int:
        assert slot == 0 and length <= len(self.held)
        del self.held[length:]
        return len(self.held)

    def length(self, slot: int) -> int:
        return len(self.held)

    def step(self, entries: Sequence[BatchEntry]) -> list[int]:
        self._feed(entries)
        return []

    def logits(self, entries: Sequence[BatchEntry]) -> np.ndarray:
        self._feed(entries)
        return np.stack([row(i) for i in entries[0].ids])

    def _feed(self, entries: Sequence[BatchEntry]) -> None:
        (one,) = entries
        assert 0 < len(one.ids) <= self.batch
        self.held += one.ids
        self.fed += len(one.ids)


def row(token: int) -> np.ndarray:
    return (np.random.default_rng(token).standard_normal(VOCAB) * 2).astype(np.float32)


def tokenize(text: str) -> list[int]:
    return [0, *text.encode("ascii")]


def likelihood(context: str, ending: str) -> float:
    ids = tokenize(f"{context} {ending}")
    total = 0.0
    for at in range(len(tokenize(context)), len(ids)):
        logits = row(ids[at - 1]).astype(np.float64)
        total += logits[ids[at]] - math.log(np.exp(logits).sum())
    return total


def tasks(count: int) -> list[Task]:
    rng = np.random.default_rng(count)

    def word(n: int) -> str:
        return "".join(chr(c) for c in rng.integers(97, 122, n))

    return [
        Task(
            word(int(rng.integers(1, 12))),
            tuple(word(int(n)) for n in rng.integers(1, 20, 4)),
            int(rng.integers(4)),
        )
        for _ in range(count)
    ]


def test_accuracy_is_what_numpy_counts() -> None:
    found, given = score(Bigrams(), tasks(40), tokenize), tasks(40)  # type: ignore[arg-type]
    raw = norm = 0
    for task in given:
        sums = [likelihood(task.context, e) for e in task.endings]
        raw += int(np.argmax(sums)) == task.label
        norm += int(np.argmax([s / len(e) for s, e in zip(sums, task.endings, strict=True)])) == task.label
    assert (found.tasks, found.raw, found.normalised, found.chance) == (40, raw / 40, norm / 40, 0.25)
    assert raw != norm, "else the test would not tell them apart"
    assert found.raw_error == pytest.approx(math.sqrt(raw / 40 * (1 - raw / 40) / 39))


def test_the_context_is_computed_once() -> None:
    engine = Bigrams(batch=100)
    score(engine, [Task("a" * 30, ("b", "c", "d", "e"), 0)], tokenize)  # type: ignore[arg-type]
    assert engine.fed == 30 + 4 * 2


def test_a_tokenizer_that_joins_over_the_border() -> None:
    def joined(text: str) -> list[int]:
        return [0, *text.replace("x b", "#").encode("ascii")]

    found = score(Bigrams(), [Task("ax", ("bc", "cc"), 0)], joined)  # type: ignore[arg-type]
    assert found.tasks == 1


def test_a_task_beyond_the_context_is_named() -> None:
    with pytest.raises(RequestError, match=r"task 2: has 76 tokens, the context 64"):
        score(Bigrams(), [tasks(1)[0], Task("a" * 70, ("bbbb", "c"), 0)], tokenize)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="no tasks"):
        score(Bigrams(), [], tokenize)  # type: ignore[arg-type]


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    given = tasks(5)
    lines = [x for t in given for x in (t.context, str(t.label), *t.endings)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    objects = [{"ctx": t.context, "endings": list(t.endings), "label": str(t.label)} for t in given]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, objects)))
    assert read_tasks(tmp_path / "a.txt") == read_tasks(tmp_path / "a.jsonl") == given


GOOD = {"context": "a", "endings": ["b", "c"], "label": 0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("a\n0\nb\nc\nd\n", "six|6 lines"),
        ("a\n4\nb\nc\nd\ne\n", "line 2: label: expected 0 to 3, got 4"),
        ("a\nx\nb\nc\nd\ne\n", "label"),
        ("{", "line 1: not JSON"),
        ("{}\n", "expected a text as context"),
        (json.dumps(GOOD) + "\n[]", "line 2: expected an object"),
        (json.dumps(GOOD | {"label": 2}), "expected 0 to 1, got 2"),
        (json.dumps(GOOD | {"label": True}), "got True"),
        (json.dumps(GOOD | {"label": -1}), "got -1"),
        (json.dumps(GOOD | {"endings": ["b"]}), "two endings"),
        (json.dumps(GOOD | {"endings": ["b", " "]}), "empty"),
        (json.dumps(GOOD | {"endings": ["b", 3]}), "texts as endings"),
        (json.dumps(GOOD | {"endings": "bc"}), "list as endings"),
        ("{" + '"a":[' * 5000, "not JSON"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(RequestError, match=says):
        read_tasks(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="UTF-8"):
        read_tasks(tmp_path / "x")
