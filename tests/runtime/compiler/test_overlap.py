"""Devices work at the same time where none waits for the other, shown by marks, not by time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_file

from satchel.runtime import compiler
from satchel.runtime.api.model import Model
from satchel.runtime.compiler.overlap import Ordered, overlap
from satchel.runtime.device.device import Buffer, Exec
from satchel.runtime.device.libraries import libraries
from satchel.runtime.graph import LEAVES, Node
from satchel.runtime.ops import OPS

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
HAVE = {f.name for f in libraries() if not f.reason}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture with shared experts."""
    return tiny_file.write_model(tmp_path_factory.mktemp("overlap") / "m.gguf", "deepseek2", "q8_0")


@pytest.fixture(params=["remote", "emulated"])
def split(request: pytest.FixtureRequest, path: Path) -> Iterator[Model]:
    """Routed experts on the CPU, everything else on the other device."""
    if not {"cpu", request.param} <= HAVE:
        pytest.skip(f"{request.param}: its library was not built")
    with Model.load(path, device=request.param, threads=1, **tiny_file.EXPERTS_STAY) as model:
        yield model


def test_shared_experts_run_while_the_routed_ones_do(split: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    far, marks = split.devices[0].name, list[tuple[str, str, Any]]()
    split.logits(IDS)
    run, read = Exec.run, Buffer.read_into

    def marked_run(self: Exec, *block: Any) -> None:
        marks.append(("run", self.device.name, self))
        run(self, *block)
        marks.append(("ran", self.device.name, self))

    def marked_read(self: Buffer, *rest: Any) -> None:
        marks.append(("read", self.device.name, None))
        read(self, *rest)

    monkeypatch.setattr(Exec, "run", marked_run)
    monkeypatch.setattr(Buffer, "read_into", marked_read)
    wanted = split.engine.program(len(IDS), len(IDS), "logits")
    plans = {exec: segment for (exec, _, _), segment in zip(wanted._execs, wanted.plan.segments, strict=True)}
    split.logits(IDS)
    at_once = 0
    for i, (what, device, exec) in enumerate(marks):
        if what == "ran" and device == far and marks[i + 1][:2] == ("run", "cpu"):
            # The other device was given work, nobody has waited for it, and the CPU begins its own.
            begun = any(OPS[step.op].product for step in plans[exec].steps)
            routed = {step.op for step in plans[marks[i + 1][2]].steps}
            at_once += begun and "expert_linear" in routed
    mixed = sum(1 for name in split.gguf.tensors if name.endswith("ffn_down_exps.weight"))
    assert at_once == mixed > 0


def test_the_order_changes_no_result(path: Path, split: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    far = split.devices[0].name
    found, moved = split.logits(IDS), split.engine.program(1, 1).plan
    monkeypatch.setattr(compiler, "overlap", lambda order, device: Ordered(list(order)))
    with Model.load(path, device=far, threads=1, **tiny_file.EXPERTS_STAY) as model:
        assert model.logits(IDS).tobytes() == found.tobytes()
        plain = model.engine.program(1, 1).plan
    assert len(moved.segments) <= len(plain.segments) and moved.n_steps == plain.n_steps
    assert any(t.before >= 0 for s in moved.segments for t in s.transfers)
    assert not any(t.before >= 0 for s in plain.segments for t in s.transfers)


def test_any_order_keeps_sources_first(split: Model) -> None:
    optimized = split.engine.optimized("tokens")
    order = compiler.toposort(optimized.roots)
    rng, names = np.random.default_rng(1), ["a", "b", "c"]
    for _ in range(20):
        device = {n: str(rng.choice(names)) for n in order if n.op not in LEAVES}
        made = overlap(order, device).order
        assert sorted(map(id, made)) == sorted(map(id, order))
        place: dict[Node, int] = {node: i for i, node in enumerate(made)}
        assert all(place[s] < place[n] for n in made for s in n.src)
