"""The chunked selective scan of a prompt, which --precision fast allows, against the definition, and the
states after it. Pieces shorter than a chunk, and deterministic runs, are scanned token by token.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest
from devices import needs
from kernel_cases import check
from one_step import Case, define, f32, generator, i32, run
from recurrent_cases import GONE

from satchel.errors import DeviceError
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend

pytestmark = needs("cpu")
BLOCK, BOUND = 32, 1e-11
PIECES = ((0, 5, 61), (1, 31, 1), (2, 0, 16), (3, 32, 15))  # slot, first position, length
SIZES = ((4, 2, 64, 33), (3, 1, 7, 130))  # H, G, N, P


def calls(pieces: tuple[tuple[int, int, int], ...] = PIECES) -> Iterator[tuple[str, Case]]:
    rng, n = generator("chunks"), sum(length for *_, length in pieces)
    slot = i32(*(s for s, _, length in pieces for _ in range(length)))
    pos = i32(*(p for _, at, length in pieces for p in range(at, at + length)))
    table = np.array([[0, GONE, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], np.int32)
    where = (slot, pos, (table, "i32"))
    for heads, groups, keys, size in SIZES:
        state = f32(rng, 12, heads, keys, size)
        k, q = f32(rng, n, groups, keys, scale=keys**-0.5), f32(rng, n, groups, keys)
        v, beta = f32(rng, n, heads, size), (rng.random((n, heads), np.float32), "f32")
        for fade in (0.05, 4.0, 300.0):
            g = (-np.abs(f32(rng, n, heads)[0]) * np.float32(fade), "f32")
            how = {"block": BLOCK, "tiled": int(fade == 4)}
            name, shape = f"{heads} {groups} {keys} {size} {fade}", (n, heads, 2 * size)
            for delta in (0, 1):
                inputs = (q, k, v, g, beta, state, *where)
                yield "gated_scan", Case(name, inputs, shape, args={**how, "delta": delta}, bound=BOUND)
            made = f32(rng, *shape)
            yield "scan_write", Case(name, (state, k, made, g, *where), (), args=how, bound=BOUND)


@functools.cache
def meant() -> list[tuple[str, Case, np.ndarray]]:
    return [(op, one, define(op, one)) for op, one in calls()]


@pytest.fixture(params=["scalar", "avx2", "avx512", "amx", "neon"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SATCHEL_CPU", request.param)
    return str(request.param)


def opened(**how: bool) -> Device:
    try:
        return find_backend("cpu").open(threads=2, **how)
    except DeviceError as error:
        pytest.skip(str(error))


def test_chunks_give_what_the_definition_gives(isa: str) -> None:
    with opened(fast=True) as device:
        for op, one, want in meant():
            check(one, run(device, op, one), want)


def test_states_that_never_fade_are_those_of_tokens_one_by_one(isa: str) -> None:
    """A long text whose keys all point nearly in one direction."""
    (op, one), *_ = (c for c in calls(((2, 0, 64),)) if c[1].args.get("delta"))
    q, k, v, g, *rest = one.inputs
    near = (np.ones_like(k[0]) + k[0]) / np.float32(k[0].shape[2] ** 0.5)
    one = Case("near", (q, (near, "f32"), v, (g[0] * 0, "f32"), *rest), one.shape, args=one.args, bound=1e-9)
    with opened(fast=True) as device:
        check(one, run(device, op, one), define(op, one))


def test_what_goes_token_by_token_keeps_its_bits(isa: str) -> None:
    short = tuple((slot, at, min(length, 5)) for slot, at, length in PIECES[:3])
    for pieces, how in ((PIECES, {"fast": True, "deterministic": True}), (short, {"fast": True})):
        found = []
        for options in (how, {}):
            with opened(**options) as device:
                found.append([run(device, op, one).tobytes() for op, one in calls(pieces)])
        assert found[0] == found[1], how
