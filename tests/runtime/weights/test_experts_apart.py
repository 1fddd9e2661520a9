"""Every mixture computes the same where a second device has a part of its experts: those that an expert cache
holds, or those that are sent for a long step while the CPU keeps the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_file
import tiny_grown
from accuracy import nmse
from kept_experts import keep_experts

from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs
from satchel.runtime.device.libraries import libraries
from satchel.runtime.placement.prefetch import LEAST
from satchel.runtime.weights.expert_cache.cache import ExpertCache
from satchel.runtime.weights.prefetch import WeightPrefetcher

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
IDS = [(7 * i) % 250 + 3 for i in range(LEAST)]
MIXTURES = sorted(
    {"qwen3moe", *(a for a, spec in tiny_grown.SPECS.items() if "expert_count" in spec.metadata)}
)
USUAL: LoadKwargs = {
    "device": "remote",
    "threads": 1,
    "gpu_layers": "all",
    "override_tensor": ["_exps=cpu"],
    "cache_type": "f32",
}


@pytest.mark.parametrize("arch", MIXTURES)
def test_a_mixture_is_the_same_with_experts_apart(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", arch, "f32")
    with Model.load(path, expert_cache="off", prefetch_weights="off", **USUAL) as model:
        wanted = model.logits(IDS)
    with Model.load(path, expert_cache=2, prefetch_weights="off", **USUAL) as model:
        assert isinstance(model.engine.residency, ExpertCache)
        assert nmse(model.logits(IDS), wanted) < 1e-9
    keep_experts(monkeypatch, (LEAST, 0.4))
    with Model.load(path, expert_cache="off", prefetch_weights="on", **USUAL) as model:
        residency = model.engine.residency
        assert isinstance(residency, WeightPrefetcher) and residency.plan.host_shares
        assert nmse(model.logits(IDS), wanted) < 1e-9
