"""Mutated files: any bytes load or give ModelError, and a loaded file can be read completely."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satchel.errors import ModelError
from satchel.formats.gguf import TensorSource, ValueType, describe, open_gguf, typed, write_gguf

ROUNDS = 1000
NUMBERS = [
    0,
    1,
    7,
    31,
    32,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
]


def seed_file(path: Path, random_: random.Random) -> bytes:
    """A small complete file with every kind of value and some tensors."""
    values: dict[str, Any] = {
        "general.architecture": "none",
        "general.alignment": random_.choice([8, 32, 64]),
        "flag": True,
        "float": 0.5,
        "wide": typed(1 << 40, ValueType.INT64),
        "words": ["a", "", "longer"],
        "flags": [True, False],
        "numbers": np.arange(3, dtype=np.uint16),
        "split.count": 1,
    }
    tensors = [
        TensorSource("x", (2, 32), "q8_0", bytes(68)),
        TensorSource("y", (3,), "f32", bytes(12)),
        TensorSource("z", (0, 4), "f16", b""),
    ]
    write_gguf(path, values, tensors)
    return path.read_bytes()


def flip(raw: bytearray, random_: random.Random) -> None:
    raw[random_.randrange(len(raw))] ^= 1 << random_.randrange(8)


def put_number(raw: bytearray, random_: random.Random) -> None:
    size = random_.choice([4, 8])
    number = random_.choice(NUMBERS) & ((1 << 8 * size) - 1)
    at = random_.randrange(len(raw) - size)
    raw[at : at + size] = number.to_bytes(size, "little")


def cut(raw: bytearray, random_: random.Random) -> None:
    del raw[random_.randrange(len(raw)) :]


def remove(raw: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(raw))
    del raw[at : at + random_.randrange(1, 16)]


def repeat(raw: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(raw))
    raw[at:at] = raw[at : at + random_.randrange(1, 64)]


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [flip, put_number, cut, remove, repeat]


def read_through(path: Path) -> None:
    with open_gguf(path) as model:
        describe(model)
        for name, info in model.tensors.items():
            assert model.raw(name).nbytes == info.nbytes
            model.raw(name).sum()
            model.array(name)
        for key in model.metadata:
            value = model.metadata[key]
            if hasattr(value, "tolist"):
                value.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_only_model_errors_escape(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    path = tmp_path / "m.gguf"
    whole = seed_file(path, random_)
    refused = 0
    for _ in range(ROUNDS):
        raw = bytearray(whole)
        for _ in range(random_.choice([1, 1, 1, 2, 4])):
            if len(raw) > 16:
                random_.choice(MUTATIONS)(raw, random_)
        path.write_bytes(raw)
        try:
            read_through(path)
        except ModelError as error:
            refused += 1
            assert str(error).isprintable()
    # Both outcomes must occur, else the mutations test nothing.
    assert ROUNDS // 4 < refused < ROUNDS


def test_random_bytes_behind_a_good_magic(tmp_path: Path) -> None:
    random_ = random.Random(7)
    path = tmp_path / "m.gguf"
    for _ in range(500):
        counts = b"".join(random_.choice([0, 1, 2]).to_bytes(8, "little") for _ in range(2))
        path.write_bytes(b"GGUF\3\0\0\0" + counts + random_.randbytes(random_.randrange(200)))
        try:
            read_through(path)
        except ModelError as error:
            assert str(error).startswith(str(path))
