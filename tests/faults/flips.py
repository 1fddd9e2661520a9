"""Fault: single bits of a file are flipped: in the header, the vocabulary, a saved state and the weights.

What must hold: one error, or a valid answer; for weights, any answer. Many flips share a process; a flip that
ends it by a signal is found by its number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from operations import OPTIONS, PROMPT, answer_of, outcome
from points import CLEAN, OK, WRONG, Row, forked
from tiny_file import write_model

from satchel import Model
from satchel.formats.gguf import open_gguf

TOGETHER = 40  # flips per process
VOCABULARY = b"tokenizer.ggml.tokens"
Use = Callable[[Path], Any]


def _spans(path: Path) -> dict[str, tuple[int, int]]:
    """The file's parts: (first byte, end)."""
    data = path.read_bytes()
    with open_gguf(path) as gguf:
        start, end = gguf.parts[0].data_offset, gguf.parts[0].size
    at = data.index(VOCABULARY)
    stop = data.index(b"tokenizer.ggml.token_type", at)
    return {"header": (0, start), "vocabulary": (at, stop), "weights": (start, end)}


def _use_model(path: Path) -> Any:
    """Loads the model and generates an answer, so that the vocabulary is used too."""
    with Model.load(path, **OPTIONS) as model:
        ids = model.tokenize("Hello world")
        model.detokenize(ids)
        reply = model.generate(ids or PROMPT[:3], max_tokens=2, ignore_eos=True)
        return len(reply.read())


def flip_rows(folder: Path, short: bool, seed: int) -> list[Row]:
    """10,000 flips in all; 60 in a short run."""
    folder.mkdir(parents=True)
    path = write_model(folder / "model.gguf", qwen3__context_length=512)
    state = folder / "state.kv"
    with Model.load(path, **OPTIONS) as model:
        answer = answer_of(model)
        model.save_state(state, PROMPT)
    rows = []
    share = {"header": (3500, 20), "vocabulary": (2500, 15), "weights": (2000, 10), "state": (2000, 15)}
    spans = {**_spans(path), "state": (0, state.stat().st_size)}
    for name, (all_of, some) in share.items():
        row, count = Row(f"bits of the {name}"), some if short else all_of
        rng = random.Random(f"{seed} {name}")
        first, end = spans[name]
        bits = [rng.randrange(first * 8, end * 8) for _ in range(count)]
        if name == "state":
            _flip_state(row, folder, path, state, bits, answer)
        else:
            _flip(row, folder, path, bits, _use_model)
        rows.append(row)
    return rows


def _flipped(source: bytes, bits: list[int], at: Path) -> Iterator[int]:
    for bit in bits:
        data = bytearray(source)
        data[bit // 8] ^= 1 << bit % 8
        at.write_bytes(data)
        yield bit


def _flip(row: Row, folder: Path, path: Path, bits: list[int], use: Use) -> None:
    source, at = path.read_bytes(), folder / "flipped"

    def work(some: list[int], done: Path) -> Any:
        told = []
        for bit in _flipped(source, some, at):
            done.write_text(str(bit))
            told.append([bit, outcome(lambda: use(at))])
        return told

    _in_turn(row, folder, bits, work)


def _flip_state(row: Row, folder: Path, path: Path, state: Path, bits: list[int], answer: list[int]) -> None:
    """A restored state must give the answer that it gave before."""
    source, at = state.read_bytes(), folder / "flipped"

    def work(some: list[int], done: Path) -> Any:
        told = []
        with Model.load(path, **OPTIONS) as model:
            for bit in _flipped(source, some, at):
                done.write_text(str(bit))
                found = outcome(lambda: (model.restore_state(at), answer_of(model))[1])
                told.append([bit, found])
        return told

    _in_turn(row, folder, bits, work, answer)


def _in_turn(
    row: Row, folder: Path, bits: list[int], work: Callable[[list[int], Path], Any], wanted: Any = None
) -> None:
    """Groups of flips, each in a process; where one crashes, the flips after it continue in the next."""
    left, done = list(bits), folder / "done"
    while left:
        some = left[:TOGETHER]
        ending = forked(lambda some=some: work(some, done), folder / "log")  # type: ignore[misc]
        if ending.kind != OK:
            culprit = int(done.read_text())
            row.add(f"{row.name}: bit {culprit % 8} of byte {culprit // 8}", ending.kind, ending.text)
            tried = some.index(culprit)
            for _ in range(tried):
                row.add(row.name, OK)
            left = left[tried + 1 :]
            continue
        for bit, told in ending.value:
            place = f"{row.name}: bit {bit % 8} of byte {bit // 8}"
            if "error" in told:
                row.add(place, CLEAN)
            elif wanted is not None and told["value"] != wanted:
                row.add(place, WRONG, f"expected {wanted}, got {told['value']}")
            else:
                row.add(place, OK)
        left = left[len(some) :]
