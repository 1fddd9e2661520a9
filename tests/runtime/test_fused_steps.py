"""Ops that are fused for few tokens: which plans have them. The device "dry" has CUDA's host code and kernel
tables, so its plans are those of an H100.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_file import write_model

from satchel.runtime.api.model import Model
from satchel.runtime.device.device import libraries
from satchel.runtime.plan import Plan


def loaded(path: Path, device: str, **options: object) -> Model:
    if not any(f.name == device and not f.reason for f in libraries()):
        pytest.skip(f"{device}: its library was not built")
    return Model.load(path, device=device, context=256, slots=2, **options)  # type: ignore[arg-type]


def ops_of(plan: Plan, label: str) -> list[str]:
    return [step.op for segment in plan.segments for step in segment.steps if step.label == label]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("fused") / "m.gguf", "llama", "q4_k")


@pytest.fixture(scope="module")
def dry(llama: Path) -> Iterator[Model]:
    with loaded(llama, "dry") as model:
        yield model


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_products_of_few_tokens_take_their_norm(dry: Model, tokens: int) -> None:
    found = ops_of(dry.engine.program(tokens, 1).plan, "blk.1")
    assert {"norm_linear", "norm_linear_swiglu"} <= set(found)
    assert not {"rms_norm", "linear", "linear_swiglu"} & set(found)


def test_products_of_many_tokens_keep_their_parts(dry: Model) -> None:
    found = ops_of(dry.engine.program(256, 1).plan, "blk.1")
    assert {"rms_norm", "linear", "linear_swiglu"} <= set(found)
    assert not {"norm_linear", "norm_linear_swiglu"} & set(found)


def test_deterministic_plans_keep_their_parts(llama: Path) -> None:
    with loaded(llama, "dry", deterministic=True) as model:
        assert not [op for op in ops_of(model.engine.program(1, 1).plan, "blk.1") if op.startswith("norm_")]


def test_a_fused_step_has_kernels_to_choose_from(dry: Model) -> None:
    """`satchel tune` measures these, and a kernel override may name any of them."""
    (segment,) = dry.engine.program(1, 1).plan.segments
    (device,) = dry.devices
    steps = [i for i, step in enumerate(segment.steps) if step.op.startswith("norm_")]
    assert steps and all(len(device.kernels(segment, i)) > 1 for i in steps)
