"""--check passes on a correct device for every architecture, and names the first step of a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
import tiny

from satchel.errors import DeviceError, RequestError
from satchel.runtime.compiler.check import StepReport, check_graph, nmse
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import Cache, architectures
from satchel.runtime.ops import OPS

CACHE = Cache(context=tiny.CONTEXT, slots=2, block=16)
IDS = [int(i) for i in np.random.default_rng(2).integers(0, tiny.VOCAB, 21)]
HAVE = {f.name for f in libraries() if not f.reason}
WRITES = {"mamba2": {"gated_scan", "scan_write"}, "deepseek32": {"sparse_attention", "kv_write"}}
pytestmark = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


@pytest.fixture(params=["cpu", "remote"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param not in HAVE:
        pytest.skip(f"no {request.param} backend is installed")
    with find_backend(request.param).open(threads=2) as opened:
        yield opened


def check(device: Device, arch: str, format: str, ids: list[int] = IDS) -> list[StepReport]:
    weights = tiny.weights(arch, format, mixed=format == "q4_k", tied=arch != "llama")
    engine = tiny.engine(arch, weights, CACHE, device)
    optimized = engine.optimized("tokens")
    raw = weights.tensors.__getitem__
    return check_graph(optimized, {device.name: device}, raw, CACHE, ids, engine.packed)


@pytest.mark.parametrize(
    ("arch", "format"), [(a, "q4_k") for a in architectures()] + [("llama", "f32"), ("qwen3", "bf16")]
)
def test_a_right_device_passes(device: Device, arch: str, format: str) -> None:
    reports = check(device, arch, format)
    prefill, decode = ([r for r in reports if r.tokens == n] for n in (len(IDS) - 1, 1))
    assert [r.op for r in prefill] == [r.op for r in decode]
    writes = WRITES.get(arch, {"attention", "kv_write"})
    assert {*writes, "sample"} <= {r.op for r in reports}
    assert all(r.nmse <= r.bound for r in reports)
    assert [r.number for r in prefill] == list(range(len(prefill)))


@pytest.mark.parametrize(
    "op",
    ["get_rows", "linear", "linear_add", "rope", "rope_kv_write", "attention", "linear_swiglu", "sample"],
)
def test_the_first_wrong_step_is_named(device: Device, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong definition stands in for a wrong kernel."""
    right = OPS[op].define

    @wraps(right)
    def off(*src: Array, **args: object) -> Array:
        value = right(*src, **args)
        return (value + 1 if value.dtype == np.int32 else value * value.dtype.type(1.01)).astype(value.dtype)

    monkeypatch.setitem(OPS, op, replace(OPS[op], define=off))
    label = {"get_rows": "embed", "sample": "output"}.get(op, "blk.0")
    with pytest.raises(DeviceError, match=rf"{label}: {op} on {device.name}, 20 tokens.*nmse"):
        check(device, "qwen2", "f32")


def test_a_device_that_computes_nothing_fails() -> None:
    if "null" not in HAVE:
        pytest.skip("no null backend is installed")
    with find_backend("null").open() as device, pytest.raises(DeviceError, match="step 0"):
        check(device, "llama", "f32")


def test_one_token_is_too_few(device: Device) -> None:
    with pytest.raises(RequestError, match="two tokens"):
        check(device, "llama", "f32", IDS[:1])


def test_numbers_that_are_none_are_no_match() -> None:
    good, bad = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    assert nmse(good, bad) == nmse(bad, good) == np.inf
    assert nmse(bad, bad) == 0 and nmse(np.zeros(3), np.zeros(3)) == 0
    assert nmse(good, np.zeros(2)) == 5


def test_the_engine_can_go_on(device: Device) -> None:
    """The check has memory of its own beside the engine's."""
    weights = tiny.weights("llama")
    engine: Engine = tiny.engine("llama", weights, CACHE, device)
    check_graph(engine.optimized("tokens"), {device.name: device}, weights.tensors.__getitem__, CACHE, IDS)
    assert engine.length(0) == 0 and engine.pages.free_blocks == CACHE.pool
