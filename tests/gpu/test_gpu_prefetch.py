"""Prefetched experts on a real GPU: long steps have the bits that they have where the experts are there, and
the values where the CPU keeps some of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_file
from accuracy import nmse
from gpu_models import gpu
from kept_experts import keep_experts

from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.weights import prefetch
from satchel.runtime.weights.prefetch import WeightPrefetcher

__all__ = ["gpu"]
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 250, 64)]
RULES = ["_exps=cpu"]


@pytest.mark.parametrize("pinned", [True, False])
def test_prompts_have_the_bits_of_experts_on_the_gpu(
    gpu: str, pinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_file.write_model(tmp_path / "mixture.gguf", "qwen3moe", "q4_k")
    ids = IDS if gpu == "cuda" else IDS[:32]
    with Model.load(path, Options(device=gpu, threads=1, gpu_layers="all")) as model:
        expected = model.logits(ids).tobytes()
    monkeypatch.setattr(prefetch, "SLOTS", 2)  # fewer than layers
    options = Options(
        device=gpu,
        threads=1,
        gpu_layers="all",
        override_tensor=RULES,
        expert_cache="off",
        prefetch_weights="on",
    )
    if not pinned:
        monkeypatch.setattr(WeightPrefetcher, "_pin", lambda *given: None)
    with Model.load(path, options) as model:
        residency = model.engine.residency
        assert isinstance(residency, WeightPrefetcher) and residency.plan.pinned
        assert bool(residency._pinned) == pinned
        for _ in range(20 if gpu == "cuda" else 1):
            assert model.logits(ids).tobytes() == expected


def test_the_cpu_keeps_some_of_them(gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sizes = tiny_file.write_model(tmp_path / "mixture.gguf", "qwen3moe", "q4_k"), (16, 32)
    options = Options(
        device=gpu, threads=1, gpu_layers="all", override_tensor=RULES, expert_cache="off", cache_type="f32"
    )
    with Model.load(path, options, prefetch_weights="off") as model:
        expected = [model.logits(IDS[:n]) for n in sizes]
    keep_experts(monkeypatch, (sizes[0], 0.6), (sizes[1], 0.3))
    with Model.load(path, options, prefetch_weights="on") as model:
        residency = model.engine.residency
        assert isinstance(residency, WeightPrefetcher) and residency.plan.host_shares
        for turn in (0, 0, 1, 1, 0) * (4 if gpu == "cuda" else 1):
            assert nmse(model.logits(IDS[: sizes[turn]]), expected[turn]) < 1e-3
