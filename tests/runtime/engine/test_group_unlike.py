"""Groups whose members do not compute the same bits: the first member's discrete choices count where devices
are unlike, and SATCHEL_GROUP_CHECK names the op where members begin to differ.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.errors import DeviceError
from satchel.runtime.api.model import Model
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY

pytestmark = needs("remote")
GROUP = "remote:0+remote:1"
PROMPT = "the cat sat on"


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "2")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


def collectives(path: Path) -> list[tuple[str, str]]:
    """(op, label) of the collectives of a step, in order."""
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        steps = model.engine.program(1, 1).plan.segments[0].steps
        return [(s.op, s.label) for s in steps if s.op in ("reduce_add", "gather_columns", "first")]


def text(path: Path) -> str:
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        return model.generate(PROMPT, max_tokens=8, temperature=0.0).read()


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek32"])
def test_discrete_choices_of_unlike_devices_are_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", arch, "f32")
    assert not any(op == "first" for op, _ in collectives(path))
    monkeypatch.setenv("SATCHEL_REMOTE_UNLIKE", "1")
    with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
        steps = model.engine.program(1, 1).plan.segments[0].steps
        found = [s.inputs[0] for s in steps if s.op == "first"]
        chosen = sum(s.op in ("sample", "top_experts", "index_positions") for s in steps)
        assert len(found) == chosen > (arch != "llama")


def sampled() -> list[bytes]:
    """What each member of a group has sampled in a step."""
    backend = find_backend("remote")
    group = GroupDevice([backend.open(i, threads=1) for i in range(2)])
    engine = tiny.engine("llama", tiny.weights("llama", "f32"), Cache(64, 2, block=16), group)
    try:
        engine.step([BatchEntry(0, [5], GREEDY)])
        program = engine.program(1, 1)
        out = np.empty(4, np.uint8)
        found = []
        for member in group.members:
            program.inner[member.name, program.plan.output.buffer].read_into(program.plan.output.offset, out)
            found.append(out.tobytes())
        return found
    finally:
        engine.close()


def test_members_go_on_with_the_first_ones_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member's logits are wrong, so it samples another token, unless it takes the first one's."""
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    gathers = [i for i, (op, _) in enumerate(collectives(path), 1) if op == "gather_columns"]
    wanted = sampled()
    monkeypatch.setenv("SATCHEL_REMOTE_DRIFT", f"1:{gathers[-1]}")
    drifted = sampled()
    assert drifted[0] == wanted[0] != drifted[1]
    monkeypatch.setenv("SATCHEL_REMOTE_UNLIKE", "1")
    assert sampled() == wanted


def test_the_check_names_the_first_op_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")
    wanted = text(path)
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    assert text(path) == wanted
    op, label = collectives(path)[2]
    monkeypatch.setenv("SATCHEL_REMOTE_DRIFT", "1:3")
    with pytest.raises(DeviceError, match=rf"{op} of {label} has other bits on remote:1 than on remote;"):
        text(path)


def test_the_check_passes_for_all_kinds_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtures by experts have constants of each member's own, latent attention whole caches."""
    monkeypatch.setenv("SATCHEL_GROUP_CHECK", "1")
    for arch in ("qwen3moe", "deepseek2", "gemma2"):
        path = tiny_file.write_model(tmp_path / f"{arch}.gguf", arch, "f32")
        with Model.load(path, device=GROUP, threads=1, worker="thread") as model:
            for n in (1, 20):
                assert model.generate("a b " * n, max_tokens=3, temperature=0.0).read() is not None
