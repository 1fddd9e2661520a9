"""Models of every family stand on a GPU alone: no step goes elsewhere, and logits are those of the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import families
import mixed_families as mixed
import numpy as np
import pytest

from satchel.formats.convert.write import write_source
from satchel.formats.gguf import open_gguf
from satchel.runtime.device import find_backend, libraries
from satchel.runtime.dryrun import dry_run
from satchel.runtime.model import Model
from satchel.runtime.options import Options
from satchel.runtime.sources import open_checkpoint

DENSE, MIXED = families.shapes(), json.loads(mixed.STEM.with_suffix(".json").read_text())
# One for each kind of layer: soft caps, biases and means, sinks, chunks and far positions, latent caches.
RUN = ("gemma2", "gpt2", "gpt_oss", "llama4", "deepseek_v3")
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
)
BOUND = 1e-8  # NMSE of logits with float32 weights and cache
IDS = families.IDS[:14]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> str:
    if not any(f.name == request.param and not f.reason for f in libraries()):
        pytest.skip(f"{request.param}: it cannot be used here")
    return str(request.param)


def converted(folder: Path, case: str) -> Path:
    if case in MIXED:
        source = families.write(folder / case, mixed.config(case), families.values_of(MIXED[case]))
    else:
        source = families.write(folder / case, families.config(case), families.tensors(case, DENSE[case]))
    with open_checkpoint(source) as opened:
        return write_source(opened, folder / f"{case}.gguf")[0]


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
        placement = dry_run(gguf, [gpu, cpu], options).optimized.placement
    assert placement.moved == () and set(placement.device.values()) == {"emulated"}


@pytest.mark.parametrize("case", RUN)
def test_logits_are_those_of_the_cpu(gpu: str, case: str, tmp_path: Path) -> None:
    path = converted(tmp_path, case)
    found, wanted = logits(path, gpu), logits(path, "cpu")
    bound = BOUND if gpu == "emulated" else 1e-3
    assert np.square(found - wanted).sum() / np.square(wanted).sum() <= bound
