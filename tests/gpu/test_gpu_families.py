"""Models of every family run on a GPU alone: no step runs elsewhere, and logits equal the CPU's."""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import pytest
import tiny_file
from devices import skip_without
from gpu_models import converted, gpu

from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.sampling import GREEDY

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


def made(folder: Path, case: str) -> Path:
    """The case's file; sparse: DeepSeek V3.2, whose tokens attend to 8 positions that an indexer selects."""
    if case != "sparse":
        return converted(folder, case)
    top = {"deepseek32__attention__indexer__top_k": 8}
    return tiny_file.write_model(folder / "sparse.gguf", "deepseek32", "f32", **top)


def logits(path: Path, device: str, ids: list[int] = IDS, cache: str = "f32") -> np.ndarray:
    with Model.load(path, device=device, context=64, cache_type=cache, threads=1) as model:
        return np.asarray(model.logits(ids))


@pytest.mark.parametrize("case", [*PLACED, "sparse"])
def test_no_step_goes_to_another_device(case: str, tmp_path: Path) -> None:
    skip_without("emulated")
    options = Options(context=64)
    path = made(tmp_path, case)
    with find_backend("emulated").open() as gpu, find_backend("cpu").open() as cpu, open_gguf(path) as gguf:
        assignment = dry_run(gguf, [gpu, cpu], options).optimized.assignment
    assert assignment.moved == () and set(assignment.device.values()) == {"emulated"}


@pytest.mark.parametrize("case", RUN)
def test_logits_are_those_of_the_cpu(gpu: str, case: str, tmp_path: Path) -> None:
    path = converted(tmp_path, case)
    found, wanted = logits(path, gpu), logits(path, "cpu")
    bound = BOUND if gpu == "emulated" else 1e-3
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= bound


@pytest.mark.parametrize("cache", ["f32", "f16"])
def test_sparse_attention_is_that_of_the_cpu(gpu: str, cache: str, tmp_path: Path) -> None:
    """In a prompt, of which most tokens see more positions than they attend to. A GPU that rounds activations
    may select other positions of nearly equal scores.
    """
    path = made(tmp_path, "sparse")
    found, wanted = (logits(path, device, families.IDS, cache) for device in (gpu, "cpu"))
    bound = BOUND if gpu == "emulated" else 1e-2
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= bound


def test_an_answer_with_sparse_attention_is_that_of_the_cpu(tmp_path: Path) -> None:
    skip_without("emulated")
    path, found = made(tmp_path, "sparse"), []
    for device in ("emulated", "cpu"):
        with Model.load(path, device=device, context=64, cache_type="f32", threads=1) as model:
            reply = model.generate(families.IDS, sampling=GREEDY, max_tokens=9, ignore_eos=True)
            reply.read()
            found.append(list(reply.ids))
    assert len(found[0]) == 9 and found[0] == found[1]


@pytest.mark.parametrize("case", ["gemma2", "gpt_oss", "llama4", "falcon_alibi", "phi3_long"])
def test_attention_over_a_16_bit_cache_agrees(gpu: str, case: str, tmp_path: Path) -> None:
    """Soft caps, sinks, chunks, ALiBi: on CUDA by tensor cores, which take no cache in float32."""
    path = converted(tmp_path, case)
    found, wanted = logits(path, gpu, cache="f16"), logits(path, "cpu", cache="f16")
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= 1e-3
