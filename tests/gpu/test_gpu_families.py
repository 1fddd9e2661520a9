"""Models of every family run on a GPU alone: no step runs elsewhere, and logits equal the CPU's."""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import pytest
from gpu_models import converted, gpu

from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.placement.dryrun import dry_run

__all__ = ["gpu"]
# One for each kind of layer: soft caps, biases and layer norms, sinks, chunked attention and far positions,
# latent
# caches, ALiBi, recurrent states.
RUN = (
    *("gemma2", "gpt2", "gpt_oss", "llama4", "deepseek_v3"),
    *("falcon_alibi", "mamba2", "qwen3next", "qwen35", "qwen35moe"),
    "granitehybrid",
)
PLACED = (
    "gemma3",
    "gemma4_shared",
    "phi3_long",
    "granite",
    "starcoder2",
    "falcon",
    "stablelm",
    "deepseek_v2",
    "bert",
    "jina_bert_v2",
    "falcon_alibi",
    "mamba2",
    "qwen3next",
    "qwen35",
    "granitehybrid",
    "granitehybrid_dense",
)
BOUND = 1e-8  # NMSE of logits with float32 weights and cache
IDS = families.IDS[:14]


def logits(path: Path, device: str) -> np.ndarray:
    with Model.load(path, device=device, context=64, cache_type="f32", threads=1) as model:
        return np.asarray(model.logits(IDS))


@pytest.mark.parametrize("case", PLACED)
def test_no_step_goes_to_another_device(case: str, tmp_path: Path) -> None:
    if not any(f.name == "emulated" and not f.reason for f in libraries()):
        pytest.skip("emulated: its library was not built")
    options = Options(context=64)
    path = converted(tmp_path, case)
    with find_backend("emulated").open() as gpu, find_backend("cpu").open() as cpu, open_gguf(path) as gguf:
        assignment = dry_run(gguf, [gpu, cpu], options).optimized.assignment
    assert assignment.moved == () and set(assignment.device.values()) == {"emulated"}


@pytest.mark.parametrize("case", RUN)
def test_logits_are_those_of_the_cpu(gpu: str, case: str, tmp_path: Path) -> None:
    path = converted(tmp_path, case)
    found, wanted = logits(path, gpu), logits(path, "cpu")
    bound = BOUND if gpu == "emulated" else 1e-3
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= bound
