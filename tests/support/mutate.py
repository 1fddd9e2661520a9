"""Mutations of bytes that imitate file corruption: flips, cuts, repeats, splices, integers that overflow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

POWERS = (7, 8, 15, 16, 31, 32, 60, 61, 62, 63, 64)
NUMBERS = sorted(
    {0, 1, 2, 3, 5, 12, 13, 31, 33, 255, 1 << 20} | {(1 << p) + d for p in POWERS for d in (-1, 0)}
)
TEXTS = (
    b"\0",
    b"\xff",
    b"nan",
    b"{{",
    b"%}",
    b"<|im_end|>",
    b"\xe2\x96\x81",
    b"../",
    b"=",
    b"\n",
    b"-1",
    b"[]",
)


def flip(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    raw[rand.randrange(len(raw))] ^= 1 << rand.randrange(8)


def put_number(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    size = rand.choice([1, 2, 4, 8])
    number = rand.choice(NUMBERS) & ((1 << 8 * size) - 1)
    at = rand.randrange(max(1, len(raw) - size))
    raw[at : at + size] = number.to_bytes(size, "little")


def put_text(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    text, at = rand.choice(TEXTS), rand.randrange(len(raw))
    raw[at : at + rand.choice([0, len(text)])] = text


def cut(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    del raw[rand.randrange(len(raw)) :]


def remove(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    at = rand.randrange(len(raw))
    del raw[at : at + rand.randrange(1, 32)]


def repeat(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    at = rand.randrange(len(raw))
    raw[at:at] = raw[at : at + rand.randrange(1, 64)] * rand.choice([1, 1, 2, 100])


def splice(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    other = rand.choice(others)
    start, at = rand.randrange(len(other)), rand.randrange(len(raw))
    raw[at : at + rand.randrange(256)] = other[start : start + rand.randrange(256)]


def swap(raw: bytearray, rand: random.Random, others: Sequence[bytes]) -> None:
    size = rand.choice([1, 4, 8, 32])
    a, b = (rand.randrange(max(1, len(raw) - size)) for _ in range(2))
    raw[a : a + size], raw[b : b + size] = raw[b : b + size], raw[a : a + size]


MUTATIONS: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], None], ...] = (
    flip, flip, put_number, put_number, put_text, cut, remove, repeat, splice, swap,
)  # fmt: skip


def mutate(whole: bytes, rand: random.Random, others: Sequence[bytes], head: int = 0) -> bytes:
    """A mutated copy. head: most mutations hit the first so many bytes."""
    raw = bytearray(whole)
    for _ in range(rand.choice([1, 1, 1, 2, 2, 3, 5, 8])):
        if len(raw) < 2:
            break
        front = bytearray(raw[:head]) if head and rand.random() < 0.8 else raw
        rest = raw[len(front) :] if front is not raw else b""
        if len(front) > 1:
            rand.choice(MUTATIONS)(front, rand, others)
        raw = front + rest
    return bytes(raw)
