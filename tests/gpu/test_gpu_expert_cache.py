"""The expert cache on a real GPU, before and after experts are swapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_file
from gpu_models import gpu

from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.weights.expert_cache.cache import ExpertCache

__all__ = ["gpu"]
IDS = [int(i) for i in np.random.default_rng(2).integers(3, 250, 40)]


@pytest.mark.parametrize("format", ["f32", "q4_k"])
def test_answers_are_those_of_experts_on_the_cpu(gpu: str, format: str, tmp_path: Path) -> None:
    if gpu != "cuda" and format != "f32":
        pytest.skip("the emulation takes its time: other formats are in the tests of the ops")
    path, found = tiny_file.write_model(tmp_path / "mixture.gguf", "qwen3moe", format), []
    rules, ids = ["_exps=cpu"], IDS if gpu == "cuda" else IDS[:16]
    for cache in ("off", 2):
        options = Options(
            device=gpu,
            threads=1,
            cache_type="f32",
            override_tensor=rules,
            gpu_layers="all",
            expert_cache=cache,
            prefetch_weights="off",
        )
        with Model.load(path, options) as model:
            found.append(model.logits(ids))
            if isinstance(experts := model.engine.residency, ExpertCache):
                for usage in experts.usage.values():
                    usage.counts[-1] = 1e6  # from now on everybody's favourite
                for _ in range(4):
                    found.append(model.logits(ids))
                    experts.wait()
                assert experts.moved
    assert len(found) == 6
    for got in found[1:]:
        assert np.square(got - found[0]).sum() / np.square(found[0]).sum() < 1e-3
