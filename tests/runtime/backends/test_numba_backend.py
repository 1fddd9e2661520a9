"""The numba backend: the definitions' results, the same bits however work is divided, errors as codes."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from satchel import cext
from satchel.errors import DeviceError
from satchel.runtime.backends.numba_kernels import PANEL, multiply, panels
from satchel.runtime.backends.numba_steps import Workers
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.selftest import BOUND, selftest
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Array, leaves
from satchel.runtime.layers.arch import Cache
from satchel.runtime.ops import evaluate
from satchel.runtime.weights.resident import Uploaded

CACHE = Cache(context=tiny.CONTEXT, slots=2)
FIRST, SECOND = [3, 99, 7, 250, 7], [40, 41, 12]


@pytest.fixture
def device() -> Device:
    return find_backend("numba").open(threads=2)


def engine(arch: str, w: tiny.TinyWeights, device: Device) -> Engine:
    made = tiny.build(arch, w, CACHE)
    return Engine(made, CACHE, [device], Uploaded(w.tensors))


def defined(made: Engine, w: tiny.TinyWeights) -> Array:
    """Logits after each token of both slots by the definitions of the engine's own graph."""
    roots = made.optimized("logits").roots
    dtypes = {"f16": np.float16, "i32": np.int32}
    states = {n.name: np.zeros(n.shape, dtypes[n.type.format]) for n in leaves(roots, "state")}
    n = len(FIRST) + len(SECOND)
    inputs = {
        "ids": np.array(FIRST + SECOND, np.int32),
        "pos": np.array([*range(len(FIRST)), *range(len(SECOND))], np.int32),
        "slot": np.repeat(np.array([0, 1], np.int32), [len(FIRST), len(SECOND)]),
        "rows": np.arange(n, dtype=np.int32),
        "table": np.arange(CACHE.pool, dtype=np.int32).reshape(CACHE.slots, -1),
    }
    return evaluate(roots, {**w.tensors, **states, **inputs})[0]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "qwen3moe"])
# A float32 sum in another order may round one activation the other way, which a block format makes visible.
@pytest.mark.parametrize(("format", "bound"), [("f32", 1e-6), ("bf16", 1e-3), ("q8_0", 1e-3), ("q4_k", 1e-3)])
def test_a_model_gives_what_the_definitions_give(
    arch: str, format: str, bound: float, device: Device
) -> None:
    w = tiny.weights(arch, format, mixed=format == "q4_k", tied=arch != "llama")
    made = engine(arch, w, device)
    got = made.logits([BatchEntry(0, FIRST), BatchEntry(1, SECOND)])
    wanted = defined(made, w)
    made.close()
    assert np.square(got - wanted).sum() <= bound * np.square(wanted).sum()
    assert np.ptp(wanted) > 0


@pytest.mark.parametrize("format", ["f32", "q4_k"])
def test_the_same_bits_however_the_work_is_cut(format: str) -> None:
    w = tiny.weights("llama", format)
    results = []
    for threads, steps in (
        (1, [FIRST]),
        (2, [FIRST]),
        (3, [[t] for t in FIRST]),
        (2, [FIRST[:2], FIRST[2:]]),
    ):
        made = engine("llama", w, find_backend("numba").open(threads=threads))
        results.append(np.concatenate([made.logits([BatchEntry(0, ids)]) for ids in steps]))
        made.close()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_weights_that_are_not_kept_give_the_same_bits(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = tiny.weights("llama", "q8_0")
    kept = engine("llama", w, device)
    wanted = kept.logits([BatchEntry(0, FIRST)])
    kept.close()
    monkeypatch.setattr("satchel.runtime.backends.numba.KEPT", 1 << 60)
    poor = engine("llama", w, find_backend("numba").open(threads=2))
    np.testing.assert_array_equal(poor.logits([BatchEntry(0, FIRST)]), wanted)
    poor.close()


def test_sampled_tokens_feed_the_next_step(device: Device) -> None:
    from satchel.runtime.sampling import GREEDY

    w = tiny.weights("qwen3", "q8_0")
    made = engine("qwen3", w, device)
    tokens = made.step([BatchEntry(0, FIRST, GREEDY)])
    for _ in range(4):
        tokens += made.step([BatchEntry(0, [-1], GREEDY)])
    made.rewind(0, 0)
    logits = made.logits([BatchEntry(0, [*FIRST, *tokens])])
    made.close()
    assert tokens == logits.argmax(-1)[len(FIRST) - 1 : -1].tolist()


@pytest.mark.parametrize("name", ["cpu", "numba", "remote"])
def test_selftest_passes(name: str) -> None:
    try:
        device = find_backend(name).open()
    except DeviceError as error:
        pytest.skip(str(error))
    assert selftest(device) <= BOUND


def test_selftest_sees_a_device_that_computes_nothing() -> None:
    try:
        device = find_backend("null").open()
    except DeviceError as error:
        pytest.skip(str(error))
    with pytest.raises(DeviceError, match="null computes wrong"):
        selftest(device)


@pytest.mark.parametrize(("t", "k", "n"), [(1, 32, 1), (3, 256, 63), (2, 64, 64), (5, 96, 200)])
def test_multiply(t: int, k: int, n: int) -> None:
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((t, k), (n, k)))
    w[0, 0] = 1e30
    packed = panels(w)
    out = np.full((t, len(packed) * PANEL), np.nan, np.float32)
    multiply(x, packed, out, 0, len(packed))
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    limit = 1e-6 * k * (np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64))
    assert (np.abs(out[:, :n] - exact) <= limit).all()
    assert (out[:, n:] == 0).all()


def test_split_covers_each_part_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(3) as pool:
        for threads in (1, 2, 3):
            for n in (1, 2, 3, 7):
                seen: list[int] = []
                Workers(pool, threads, 0).split(lambda a, b, seen=seen: seen.extend(range(a, b)), n)
                assert sorted(seen) == list(range(n))


def test_errors_are_codes_with_a_reason(device: Device) -> None:
    with pytest.raises(DeviceError, match="asked for 7"):
        find_backend("numba").open(7)
    buffer = device.alloc(64, 0)
    with pytest.raises(DeviceError, match="of a buffer of 64"):
        buffer.write(60, bytes(8))
    with pytest.raises(DeviceError, match="of a buffer of 64"):
        buffer.read_into(1 << 40, np.zeros(1, np.uint8))
    buffer.write(8, b"abc")
    out = np.zeros(4, np.uint8)
    buffer.read_into(7, out)
    assert out.tobytes() == b"\0abc"
    buffer.close()
    with pytest.raises(DeviceError, match="MemoryError"):
        device.alloc(1 << 62, 0)
    table = device.backend.table
    assert table.wait(cext.ffi.NULL, 0) == 0
    assert table.run(cext.ffi.cast("hal_exec *", 1), cext.ffi.NULL, 0) == -3
    assert b"not open" in cext.ffi.string(table.error())
    device.close()


@pytest.mark.model
def test_the_bundled_model_says_the_same_as_on_cpu(bundled_model: Path) -> None:
    from satchel.runtime.api.model import Model
    from satchel.runtime.sampling import GREEDY

    question = [{"role": "user", "content": "Hello! Who are you?"}]
    answers = []
    for name in ("numba", "cpu"):
        try:
            with Model.load(bundled_model, device=name, context=128) as model:
                answers.append("".join(model.chat(question, max_tokens=24, sampling=GREEDY)))
        except DeviceError as error:
            pytest.skip(str(error))
    assert answers[0] == answers[1]
    assert "Satchel" in answers[0]


def test_without_numba_and_c_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # an import of it fails
    for name in ("numba", "numba_steps", "numba_kernels"):
        monkeypatch.delitem(sys.modules, f"satchel.runtime.backends.{name}", raising=False)
    monkeypatch.setattr("satchel.runtime.device.libraries.libraries", lambda: ())
    with pytest.raises(DeviceError, match=r"no backend can run: .*pip install 'satchel\[slow\]'"):
        find_backend()
