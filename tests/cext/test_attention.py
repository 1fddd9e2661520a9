"""Attention over long pasts: results do not depend on tiles, splits, threads or masked positions; infinities
and NaN; invalid block tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from accuracy import nmse
from attention_cases import BLOCK, attention_case, latent_case
from one_step import SETS, Case, define, generator, i32, open_set, run

from satchel.errors import DeviceError
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Array


@pytest.fixture(params=SETS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    yield from open_set(request.param, monkeypatch, 3)


def tokens_of(one: Case, picked: list[int]) -> Case:
    """The same call for some of its tokens."""
    inputs = tuple((a[picked], f) if i in (0, 3, 4) else (a, f) for i, (a, f) in enumerate(one.inputs))
    return replace(one, inputs=inputs, shape=(len(picked), one.shape[1]))


def changed(one: Case, index: int, array: Array) -> Case:
    inputs = [*one.inputs]
    inputs[index] = (array, inputs[index][1])
    return replace(one, inputs=tuple(inputs))


@pytest.mark.parametrize("format", ["f16", "q8_0"])
@pytest.mark.parametrize("heads", [(4, 2, 32), (3, 3, 64)])
def test_a_long_prompt_equals_its_tokens_one_by_one(
    device: Device, format: str, heads: tuple[int, int, int]
) -> None:
    """Subsets of the tokens are tiled, chunked and split differently; every bit is the same."""
    prompt = [(0, p) for p in range(2900, 3000)] + [(1, 5000)] + [(2, p) for p in range(40)]
    one = attention_case(generator(format), format, heads, prompt)
    whole = run(device, "attention", one)
    assert nmse(whole, define("attention", one)) < 1e-11
    for picked in ([0], [99], [100], [140], [57, 58, 59], [100, 3, 4, 101], list(range(31, 131))):
        assert run(device, "attention", tokens_of(one, picked)).tobytes() == whole[picked].tobytes(), picked


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_a_latent_prompt_equals_its_tokens_one_by_one(device: Device, format: str) -> None:
    """Tiles process 16 heads at once, and the bits of a token still depend on no other token; positions that
    it does not see may be NaN.
    """
    prompt = [(0, p) for p in range(600, 630)] + [(1, 1300)] + [(2, p) for p in range(20)]
    one = latent_case(generator(format), format, (16, 1, 96), prompt, 64)
    whole = run(device, "attention", one)
    for picked in ([0], [29], [30], [35, 36], [29, 3, 4, 30]):
        assert run(device, "attention", tokens_of(one, picked)).tobytes() == whole[picked].tobytes(), picked
    cache, table = one.inputs[1][0].copy(), one.inputs[5][0]
    cache[table[0, 620 // BLOCK], :, 620 % BLOCK] = 0x7F80 if format == "bf16" else np.inf
    got = run(device, "attention", changed(changed(one, 1, cache), 2, cache))
    assert nmse(got[:20], whole[:20]) < 1e-10 and not np.isfinite(got[20:30]).all(1).any()
    assert got[30:].tobytes() == whole[30:].tobytes()


@pytest.mark.parametrize("window", [1, 63, 64, 512, 700, 5000])
def test_windows_over_a_long_past(device: Device, window: int) -> None:
    prompt = [(0, p) for p in (1500, 1501, 1502, 1535, 1536, 1537, 2048, 3071, 3072)]
    one = attention_case(generator(str(window)), "f16", (4, 1, 32), prompt, window)
    whole = run(device, "attention", one)
    assert nmse(whole, define("attention", one)) < 1e-11
    for t in (0, 5, 8):
        assert run(device, "attention", tokens_of(one, [t])).tobytes() == whole[[t]].tobytes()


@pytest.mark.parametrize("format", ["f32", "f16"])
def test_what_a_token_does_not_see_does_not_count(device: Device, format: str) -> None:
    """Keys and values after a token and before its window may be anything, NaN included."""
    prompt = [(0, p) for p in range(500, 560)]
    one = attention_case(generator("unseen"), format, (2, 1, 32), prompt, window=40)
    table = one.inputs[5][0]
    clean = run(device, "attention", one)
    for hidden, seen_by in ((530, slice(0, 30)), (470, slice(10, 60))):
        dirty = one
        for index in (1, 2):
            cache = one.inputs[index][0].copy()
            cache[table[0, hidden // BLOCK], :, hidden % BLOCK] = np.nan
            dirty = changed(dirty, index, cache)
        got = run(device, "attention", dirty)
        assert got[seen_by].tobytes() == clean[seen_by].tobytes()
        touched = np.isnan(got).all(1)
        assert touched.any() and not touched[seen_by].any()


def test_no_numbers_come_through(device: Device) -> None:
    """A NaN among the keys makes a row NaN; infinite scores behave as in numpy; huge scores are exact."""
    one = attention_case(generator("nan"), "f32", (1, 1, 32), [(0, 900), (1, 900), (2, 900), (3, 900)])
    keys, table, q = one.inputs[1][0].copy(), one.inputs[5][0], one.inputs[0][0].copy()
    q[:] = np.abs(q)
    for slot, pos, value in ((0, 700, np.nan), (1, 3, np.inf), (2, 3, -np.inf), (3, 899, 3e30)):
        keys[table[slot, pos // BLOCK], 0, pos % BLOCK] = value
    bad = changed(changed(one, 1, keys), 0, q)
    with np.errstate(all="ignore"):
        want = define("attention", bad)
    got = run(device, "attention", bad)
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.isnan(want[:2]).all()
    assert nmse(got[2:], want[2:]) < 1e-11


def test_scores_that_fall_below_every_float(device: Device) -> None:
    """The largest scores of the chunks are far apart, so merging underflows nearly all weights."""
    one = attention_case(generator("far"), "f32", (2, 1, 32), [(0, 2000), (0, 1100)], scale=200.0)
    assert nmse(run(device, "attention", one), define("attention", one)) < 1e-11


@pytest.mark.parametrize("block", [0, 120, 187])
def test_a_bad_block_anywhere_is_found(device: Device, block: int) -> None:
    one = attention_case(generator("fault"), "f16", (4, 2, 32), [(0, 2999)])
    table = one.inputs[5][0].copy()
    for number in (-1, table.size):
        table[0, block] = number
        with pytest.raises(DeviceError, match=r"step 0 \(attention\): .* out of range"):
            run(device, "attention", changed(one, 5, table))


def test_a_block_that_nobody_sees_may_be_bad(device: Device) -> None:
    one = attention_case(generator("unused"), "f16", (4, 2, 32), [(0, 2000)], window=100)
    table = one.inputs[5][0].copy()
    table[0, :118] = -1
    table[0, 126:] = 10**6
    got, want = (run(device, "attention", c) for c in (changed(one, 5, table), one))
    assert got.tobytes() == want.tobytes()


def test_threads_share_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    one = attention_case(generator("threads"), "f16", (8, 2, 64), [(0, 6000)])
    results = set()
    for threads in (1, 2, 5):
        for opened in open_set("scalar", monkeypatch, threads):
            results |= {run(opened, "attention", one).tobytes() for _ in range(3)}
    assert len(results) == 1


def test_one_position(device: Device) -> None:
    """The first token's output is its own value."""
    one = attention_case(generator("first"), "f32", (3, 1, 32), [(0, 0)])
    table, values = one.inputs[5][0], one.inputs[2][0]
    want = np.tile(values[table[0, 0], 0, 0], 3)
    np.testing.assert_array_equal(run(device, "attention", one)[0], want)
    far = changed(one, 4, i32(2**31 - 1)[0])
    with pytest.raises(DeviceError, match="out of range"):
        run(device, "attention", far)
