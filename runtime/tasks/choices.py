"""Multiple choice as in HellaSwag: which of several endings of a text the model finds most likely.

Two scores: the sum of an ending's log-probabilities (acc), and that sum per byte of the ending (acc_norm of
the LM evaluation harness), so that short endings have no advantage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.tasks.likelihood import branch, logprobs

ENDINGS = 4  # endings in the plain text format: context, index of the right one, endings, a line each
Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Task:
    """A text and its possible endings."""

    context: str
    endings: tuple[str, ...]
    label: int  # index of the right ending


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy over tasks, 0 to 1, raw and length-normalized, with standard errors."""

    tasks: int
    raw: float
    raw_error: float
    normalised: float
    normalised_error: float
    chance: float  # accuracy of guessing


def read_tasks(path: Path) -> list[Task]:
    """Reads JSON lines {"context" or "ctx", "endings", "label"}, or six lines per task. Raises RequestError
    for anything else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise RequestError(f"{path}: expected UTF-8 text: {error}") from None
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise RequestError(f"{path}: expected tasks, got an empty file")
    return list(_of_json(path, lines) if lines[0][1].startswith("{") else _of_lines(path, lines))


def _of_json(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[Task]:
    for number, line in lines:
        where = f"{path}: line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise RequestError(f"{where}: expected an object with context, endings and label")
        context, endings = found.get("context", found.get("ctx")), found.get("endings")
        if not isinstance(context, str) or not isinstance(endings, list):
            raise RequestError(f"{where}: expected a text as context and a list as endings")
        if not all(isinstance(e, str) for e in endings):
            raise RequestError(f"{where}: expected texts as endings")
        yield _task(where, context, endings, found.get("label"))


def _of_lines(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[Task]:
    size = ENDINGS + 2
    if len(lines) % size:
        raise RequestError(
            f"{path}: expected {size} lines a task (context, number, {ENDINGS} endings) or JSON lines, "
            f"got {len(lines)} lines"
        )
    for at in range(0, len(lines), size):
        (number, context), (_, label), *endings = lines[at : at + size]
        yield _task(f"{path}: line {number + 1}", context, [e for _, e in endings], label)


def _task(where: str, context: str, endings: Sequence[str], label: object) -> Task:
    if isinstance(label, str) and label.strip().isdecimal():
        label = int(label)
    if len(endings) < 2 or not all(e.strip() for e in endings):
        raise RequestError(f"{where}: expected two endings or more, none of them empty")
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(endings):
        raise RequestError(f"{where}: label: expected 0 to {len(endings) - 1}, got {label!r}")
    return Task(context.strip(), tuple(e.strip() for e in endings), label)


def score(
    engine: Engine,
    tasks: Sequence[Task],
    tokenize: Tokenize,
    progress: Callable[[int, int, Accuracy], None] | None = None,
) -> Accuracy:
    """Accuracy over tasks. Raises RequestError if one is longer than the context."""
    if not tasks:
        raise RequestError("there are no tasks to score: give a file with some")
    right: list[tuple[bool, bool]] = []
    for number, task in enumerate(tasks):
        sums = np.array([*_likelihoods(engine, task, tokenize, number)])
        sizes = np.array([len(e.encode()) for e in task.endings])
        right.append((int(sums.argmax()) == task.label, int((sums / sizes).argmax()) == task.label))
        if progress:
            progress(number + 1, len(tasks), _accuracy(right, tasks))
    return _accuracy(right, tasks)


def _accuracy(right: Sequence[tuple[bool, bool]], tasks: Sequence[Task]) -> Accuracy:
    n = len(right)
    raw, normalised = (float(np.mean([pair[i] for pair in right])) for i in (0, 1))
    chance = float(np.mean([1 / len(task.endings) for task in tasks]))
    errors = [sqrt(p * (1 - p) / max(1, n - 1)) for p in (raw, normalised)]
    return Accuracy(n, raw, errors[0], normalised, errors[1], chance)


def _likelihoods(engine: Engine, task: Task, tokenize: Tokenize, number: int) -> Iterator[float]:
    """Log-probability of each ending after the context; the common prefix is computed once.

    If an ending's first letters change the context's last token, that token is scored for all endings.
    """
    alone = tokenize(task.context)
    found = [tokenize(f"{task.context} {ending}") for ending in task.endings]
    longest = max(map(len, found))
    if longest > engine.cache.context:
        raise RequestError(
            f"task {number + 1}: has {longest} tokens, the context {engine.cache.context}: raise -c"
        )
    start = branch(alone, found).start
    engine.rewind(0, 0)
    for ids in found:
        # From the second ending on, the common prefix is cached, unless the model cannot be rewound to it.
        have = engine.rewind(0, min(start - 1, engine.length(0)))
        for at in range(have, start - 1, engine.batch):
            engine.step([BatchEntry(0, ids[at : min(start - 1, at + engine.batch)])])
        yield _sum(engine, ids, start)


def _sum(engine: Engine, ids: Sequence[int], start: int) -> float:
    """Log-probability of ids[start:], with ids[: start - 1] in the cache."""
    total = 0.0
    for at in range(start - 1, len(ids) - 1, engine.batch):
        part = list(ids[at : min(len(ids) - 1, at + engine.batch)])
        total += float(logprobs(engine.logits([BatchEntry(0, part)]), ids[at + 1 : at + 1 + len(part)]).sum())
    return total
