"""Whole models on a GPU against the CPU: the same logits within a bound, the same answers; `pytest -m gpu`.
Without a GPU, the emulated one runs the same host code and the same portable kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import skip_without
from gpus import GPUS
from tiny_file import write_model
from waiting import until

from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array
from satchel.runtime.sampling import GREEDY

BOUND, MARGIN = 1e-3, 0.1  # NMSE of logits; how far ahead the likeliest token must be
USUAL = ("f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
OTHERS = ("iq4_nl", "iq4_xs", "mxfp4", "iq3_s", "tq1_0", "nvfp4", "f8_e4m3", "i8_g128")
IDS = list(range(5, 29))


@pytest.fixture(scope="module", params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    skip_without(request.param)
    yield request.param


def logits(path: Path, device: str, cache: str = "f16") -> Array:
    """On the CPU with 16-bit activations, whose rounding error is smaller."""
    activations = 16 if device == "cpu" else 8
    with Model.load(
        path, device=device, context=256, slots=2, cache_type=cache, activations=activations
    ) as model:
        return model.logits(IDS)


def agree(found: Array, wanted: Array, bound: float = BOUND) -> None:
    assert np.isfinite(found).all()
    error = np.square(found - wanted, dtype=np.float64).sum() / np.square(wanted, dtype=np.float64).sum()
    assert error <= bound
    first, second = np.sort(wanted, axis=-1)[:, -1], np.sort(wanted, axis=-1)[:, -2]
    clear = first - second > MARGIN * np.sqrt(bound / BOUND)
    assert (found.argmax(-1) == wanted.argmax(-1))[clear].all()


@pytest.mark.parametrize("format", [*USUAL, *OTHERS])
def test_logits_are_those_of_the_cpu(gpu: str, format: str, tmp_path: Path) -> None:
    if gpu != "cuda" and format not in ("f32", "q8_0", "q4_k", "q6_k"):
        pytest.skip("the emulation takes its time: other formats are in the tests of the ops")
    path = write_model(tmp_path / "m.gguf", "llama", format)
    agree(logits(path, gpu), logits(path, "cpu"))


@pytest.mark.parametrize("format", ["q4_k", "q6_k", "q8_0", "i8_g128", "f16", "bf16", "q2_k"])
def test_any_number_of_tokens_agrees(gpu: str, format: str, tmp_path: Path) -> None:
    """There are kernels for 1 to 4, up to 8, 16, 32, 64 and 128 columns, and for more."""
    if gpu != "cuda":
        pytest.skip("emulated: the portable kernels take any number alike")
    path = write_model(tmp_path / "m.gguf", "llama", format)
    ids = [5 + i * 7 % 40 for i in range(150)]
    with Model.load(path, device="cpu", context=256, activations=16) as model:
        wanted = model.logits(ids)
    with Model.load(path, device=gpu, context=256) as model:
        for n in (1, 3, 5, 8, 9, 16, 27, 32, 33, 64, 65, 128, 150):
            agree(model.logits(ids[:n]), wanted[:n])


def test_norms_of_heads_agree(gpu: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3", "q4_k")
    agree(logits(path, gpu), logits(path, "cpu"))


def test_mixtures_agree(gpu: str, tmp_path: Path) -> None:
    """Except for tokens whose experts' scores are nearly equal: rounding routes them to other experts."""
    path = write_model(tmp_path / "m.gguf", "qwen3moe", "q4_k")
    found, wanted = logits(path, gpu), logits(path, "cpu")
    errors = np.square(found - wanted).sum(-1) / np.square(wanted).sum(-1)
    assert np.median(errors) <= BOUND and (errors <= 50 * BOUND).all()


UNGROUPED = {"deepseek2__expert_group_count": 1, "deepseek2__expert_group_used_count": 1}


@pytest.mark.parametrize(
    ("arch", "keys"), [("qwen3moe", {}), ("deepseek2", {}), ("deepseek2", UNGROUPED)], ids=str
)
def test_mixtures_of_few_tokens_agree(gpu: str, arch: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """There are kernels for the experts of one token, of 2 to 16, and of more. Routers as above; the last
    token of each step counts.
    """
    if gpu != "cuda":
        pytest.skip("the portable kernels take any number alike")
    path = write_model(tmp_path / "m.gguf", arch, "q4_k", **keys)
    with Model.load(path, device="cpu", context=256, activations=16) as model:
        wanted = model.logits(IDS)
    with Model.load(path, device=gpu, context=256, slots=16) as model:
        found = [model.logits(IDS[:n])[-1] for n in (1, 2, 4, 5, 8, 13, 16, 24)]
    rows = wanted[[n - 1 for n in (1, 2, 4, 5, 8, 13, 16, 24)]]
    errors = np.square(np.array(found) - rows).sum(-1) / np.square(rows).sum(-1)
    assert np.median(errors) <= BOUND and (errors <= 50 * BOUND).all()


@pytest.mark.parametrize(("cache", "times"), [("f32", 1), ("bf16", 1), ("q8_0", 1), ("fp8", 2), ("q4_0", 6)])
def test_every_type_of_cache_agrees(gpu: str, cache: str, times: int, tmp_path: Path) -> None:
    """Weights are float32, so differences come from rounding to the cache's format."""
    path = write_model(tmp_path / "m.gguf", "llama", "f32")
    agree(logits(path, gpu, cache), logits(path, "cpu", cache), times * BOUND)


def test_a_batch_gives_what_each_gives_alone(gpu: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", "q4_k")
    prompts = [[5, 6, 7], list(range(10, 40)), [9], [40, 3, 12, 8, 5]]
    with Model.load(path, device=gpu, context=512, slots=4) as model:
        alone = [model.generate_many([p], max_tokens=5, sampling=GREEDY)[0].ids for p in prompts]
        assert [r.ids for r in model.generate_many(prompts, max_tokens=5, sampling=GREEDY)] == alone


def test_closing_gives_all_memory_back(gpu: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", "q4_k")

    def free() -> int:
        with find_backend(gpu).open() as device:
            return device.info().memory_free

    def gives_back() -> bool:
        before = free()
        logits(path, gpu)
        return free() >= before

    logits(path, gpu)  # the driver keeps what it needs for itself after the first use
    until(gives_back, "a closed model's memory is free")  # other processes take memory of a card in between
