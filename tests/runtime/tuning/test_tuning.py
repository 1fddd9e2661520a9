"""Tuning: kernels are measured, stored and used from then on; an invalid file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from devices import skip_without

from satchel.errors import RequestError
from satchel.runtime.device.device import (
    Exec,
)
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.graph import Array
from satchel.runtime.kernels.call import call_of
from satchel.runtime.kernels.registry import NOT_ALONE
from satchel.runtime.layers.arch import Cache
from satchel.runtime.plan import Bucket
from satchel.runtime.tuning import Tuned, device_key, forget, read, remember, shape_of, tuned_for
from satchel.runtime.tuning.measure import measure, steps_of

SERIAL, USUAL = "rms_norm_serial", "rms_norm"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    skip_without("emulated")
    path = tmp_path / "some" / "tuning.json"
    monkeypatch.setenv("SATCHEL_TUNING", str(path))
    monkeypatch.setenv("SATCHEL_MATRIX_UNITS", "0")  # so norms alone have a choice of kernels
    return path


def engine_of(*, profile: bool = False, backend: str = "emulated") -> Any:
    device = find_backend(backend).open(profile=profile)
    return tiny.engine("llama", tiny.weights("llama"), Cache(32, 2), device), device


def logits() -> Array:
    engine, _ = engine_of()
    try:
        return np.array(engine.logits([BatchEntry(0, (5, 9, 77))]))
    finally:
        engine.close()


@pytest.fixture
def slow_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated times: the default norm kernel takes ten times as long as the serial one, everything else no
    time.
    """

    def compiled(self: Any, segment: Any, buffers: Any, overrides: Any = None) -> Exec:
        asked = {c.step: c.name for c in (self.overrides_of(segment) if overrides is None else overrides)}
        made = real(self, segment, buffers, overrides)
        ops = [call_of(segment, i).op for i in range(len(segment.step_table))]
        cost = [1000 * (op == USUAL) * (1 if asked.get(i) == SERIAL else 10) for i, op in enumerate(ops)]
        total = [0] * len(cost)

        def times() -> list[int]:
            total[:] = [a + b for a, b in zip(total, cost, strict=True)]
            return list(total)

        made.times = times  # type: ignore[method-assign]
        return made

    from satchel.runtime.device.device import Device

    real = Device.compile
    monkeypatch.setattr(Device, "compile", compiled)


def tuned(tokens: int, depths: tuple[int, ...] = (0,)) -> Any:
    engine, device = engine_of(profile=True)
    try:
        rows = list(measure(engine, device, [tokens], 1, depths))
        remember(device, {k: t for m in rows for k, t in m.steps.items()}, "2026-01-01")
        return rows
    finally:
        engine.close()


def test_the_faster_kernel_is_found_remembered_and_used(file: Path, slow_usual: None) -> None:
    before = logits()
    rows = tuned(3)
    assert [m.tokens for m in rows] == [3] and not any(m.doubted for m in rows)
    found = {k: t for m in rows for k, t in m.steps.items()}
    assert found and all(t == Tuned(SERIAL, USUAL, 1.0, 10.0) for t in found.values())
    assert all(k.startswith("rms_norm f32:") for k in found)
    assert all(m.us < m.own_us for m in rows)
    after = logits()
    assert after.tobytes() != before.tobytes(), "another order of sums"
    assert np.allclose(after, before, rtol=1e-3, atol=1e-4)
    assert logits().tobytes() == after.tobytes(), "and always that one"
    engine, device = engine_of()
    kept = tuned_for(device)
    assert kept is not None and kept.name != "none" and len(kept.steps) == len(found)
    engine.close()
    assert forget() and not forget() and read() == {}
    assert logits().tobytes() == before.tobytes()


def test_real_times_choose_something_that_can_do_it() -> None:
    rows = tuned(1, (0, 7))
    assert {t.kernel for m in rows for t in m.steps.values()} <= {SERIAL, SERIAL + "@3", USUAL}
    assert all(0 < m.us <= m.own_us for m in rows)


def test_kernels_that_compute_something_else_are_not_believed(
    slow_usual: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from satchel.runtime.tuning import measure as measuring

    runs: list[Array] = []

    def broken(program: Any) -> Array:
        runs.append(real(program))
        return runs[-1] if len(runs) % 2 else -runs[-1]

    real = measuring._run
    monkeypatch.setattr(measuring, "_run", broken)
    engine, device = engine_of(profile=True)
    row = next(measure(engine, device, [2], 2))
    engine.close()
    assert row.doubted == 1 and not any(t.changes for t in row.steps.values())


def test_another_library_or_driver_is_another_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine, device = engine_of()
    key = device_key(device)
    assert key == device_key(device)
    other = tmp_path / "library.so"
    other.write_bytes(b"another build")
    monkeypatch.setattr(device.backend, "path", str(other))
    assert device_key(device) != key
    engine.close()


def test_a_device_without_times_or_several_kernels() -> None:
    engine, device = engine_of()
    with pytest.raises(RequestError, match="emulated was not opened with profile"):
        next(measure(engine, device, [1]))
    engine.close()
    engine, device = engine_of(profile=True, backend="cpu")
    (row,) = measure(engine, device, [1], 1)
    assert row.steps == {} and row.us == row.own_us > 0
    engine.close()


def test_classes_leave_out_what_has_no_say() -> None:
    shapes = []
    for blocks in (32, 64):
        device = find_backend("emulated").open()
        engine = tiny.engine("llama", tiny.weights("llama"), Cache(blocks, 2), device)
        segment = engine.plan(Bucket(2, 2)).segments[0]
        calls = [call_of(segment, i) for i in range(len(segment.step_table))]
        shapes.append([shape_of(call) for call in calls if call.op not in NOT_ALONE])
        assert set(steps_of(engine.plan(Bucket(2, 2)), device).kernels) and len(set(shapes[-1])) > 8
        engine.close()
    assert shapes[0] == shapes[1]


GOOD = {"kernel": "a+b", "own": "c", "us": 1, "own_us": 2.5}


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[]", "7", '{"a": 7}', '{"a": {}}', '{"a": {"steps": []}}', "[" * 100_000,
        *(json.dumps({"a": {"steps": {"s": {**GOOD, **wrong}}}}) for wrong in (
            {"kernel": "a b"}, {"kernel": ""}, {"own": None}, {"kernel": "x" * 128}, {"us": -1}, {"us": "1"},
            {"own_us": 1e300}, {"us": float("nan")}, {"own_us": float("inf")}, {"us": None},
        )),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused_by_name(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(RequestError, match=r"tuning\.json: cannot read the tuning: .*; `satchel tune"):
        read()
    assert forget()


def test_a_good_file_of_unknown_kernels_changes_nothing(file: Path) -> None:
    before = logits()
    engine, device = engine_of()
    segment = engine.plan(Bucket(4, 4), "logits").segments[0]
    shapes = {shape_of(call_of(segment, i)) for i in range(len(segment.step_table))}
    remember(device, {s: Tuned("another", "linear", 1, 2) for s in shapes}, "2026-01-01")
    engine.close()
    assert logits().tobytes() == before.tobytes()


def test_no_file_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_TUNING", "")
    engine, device = engine_of()
    with pytest.raises(RequestError, match="SATCHEL_TUNING is empty"):
        remember(device, {}, "2026-01-01")
    assert tuned_for(device) is None and read() == {}
    engine.close()
