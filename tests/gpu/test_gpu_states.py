"""Recurrent models and ALiBi encoders on a GPU alone: they give the CPU's results, a prompt cut anywhere
leaves the same bits, and the next turn finds the states.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from devices import skip_without
from gpu_models import converted, gpu

from satchel.runtime.api.model import Model
from satchel.runtime.sampling import GREEDY

__all__ = ["gpu"]
IDS = [int(i) for i in np.random.default_rng(2).integers(3, 250, 60)]


def loaded(path: Path, device: str, **more: object) -> Model:
    return Model.load(path, device=device, context=96, cache_type="f32", slots=1, threads=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["mamba2", "qwen3next", "qwen35", "granitehybrid"])
def test_turns_of_a_chat_are_those_of_the_cpu(gpu: str, case: str, tmp_path: Path) -> None:
    path, found = converted(tmp_path, case), []
    for device in (gpu, "cpu"):
        with loaded(path, device) as model:
            turns, ids = [], IDS[:29]
            for _ in range(2):
                reply = model.generate(ids, sampling=GREEDY, max_tokens=5, ignore_eos=True)
                reply.read()
                turns.append((list(reply.ids), reply.stats.cached))
                ids = ids + list(reply.ids) + IDS[40:43]
        found.append(turns)
    assert found[0] == found[1]
    assert [cached for _, cached in found[0]] == [0, 32]


@pytest.mark.parametrize("case", ["mamba2", "qwen35", "granitehybrid"])
def test_a_prompt_cut_anywhere_leaves_the_same_bits(case: str, tmp_path: Path) -> None:
    skip_without("emulated")
    path, found = converted(tmp_path, case), []
    for batch in (32, 5, 1):
        with loaded(path, "emulated", batch=batch, deterministic=True) as model:
            found.append(np.asarray(model.logits(IDS[:21])).tobytes())
    assert found[0] == found[1] == found[2]


def test_vectors_of_an_encoder_with_slopes_are_those_of_the_cpu(gpu: str, tmp_path: Path) -> None:
    path, found = converted(tmp_path, "jina_bert_v2"), []
    for device in (gpu, "cpu"):
        with loaded(path, device) as model:
            found.append(np.asarray(model.embed([IDS[:9], IDS[20:50]])))
    assert np.square(found[0] - found[1]).sum() / np.square(found[1]).sum() <= (
        1e-8 if gpu == "emulated" else 1e-3
    )
