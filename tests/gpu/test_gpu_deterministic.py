"""On a GPU opened as deterministic, an answer and the bits of its logprobs depend on the request alone, not
on the batch, the size of steps, or the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from devices import skip_without
from make_shape import make
from tiny_file import write_model

from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.sampling import GREEDY, Sampling

Answer = tuple[list[int], bytes]
PROMPTS = [
    [5, 6, 7],
    list(range(3, 60)),
    [9, 8],
    list(range(3, 45)),
    [1] * 20,
    [40, 3],
    [7] * 33,
    [2, 4, 6, 8],
]
VOCABULARY = 1 << 15  # of the large model; the bundled tokenizer, which it has, has fewer tokens
KINDS = (GREEDY, Sampling(temperature=1.2, top_k=0, seed=3))


def read(model: Model, prompts: Sequence[Sequence[int]], together: bool, most: int) -> list[Answer]:
    how = [(list(p), KINDS[i % 2]) for i, p in enumerate(prompts)]
    replies = [model.generate(p, sampling=s, max_tokens=most, ignore_eos=True, logprobs=1) for p, s in how]
    for reply in replies:
        reply.start()
        if not together:
            reply.read()
    for reply in replies:
        reply.read()
    return [(r.ids, np.array([p.logprob for p in r.logprobs], np.float32).tobytes()) for r in replies]


def answers(path: Path, device: str, prompts: Sequence[Sequence[int]], most: int) -> None:
    """All settings give the answer of each request alone."""
    wanted: list[Answer] = []
    for slots, batch in ((1, 0), (4, 32), (8, 512), (1, 32), (8, 32)):
        options = Options(device=device, context=128, slots=slots, batch=batch, deterministic=True)
        with Model.load(path, options) as model:
            found = read(model, prompts, slots > 1, most)
            wanted = wanted or found
            assert found == wanted, f"{slots} slots, steps of {batch}"
            if batch:
                assert read(model, prompts, slots > 1, most) == wanted, "from the cache"
    assert len({ids[0] for ids, _ in wanted}) > 1 or len(wanted) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["q4_k", "bf16", "q8_0"])
def test_answers_depend_on_their_request_alone(format: str, tmp_path: Path) -> None:
    skip_without("cuda")
    answers(write_model(tmp_path / "m.gguf", "llama", format), "cuda", PROMPTS, 16)


@pytest.mark.gpu
def test_sixteen_at_once_have_the_bits_of_each_alone(tmp_path: Path) -> None:
    """Products as wide as a real model's, sixteen layers of them behind each other, so that kernels which may
    start early do: one step of some hundred was wrong where a conversion did.
    """
    skip_without("cuda")
    path = make("llama-3.2-1b", "Q4_K_M", tmp_path / "1b.gguf", vocab=VOCABULARY)
    prompts = [[100 + 7 * i, 200 + i, 300] for i in range(16)]
    options = Options(device="cuda", context=96, slots=16, deterministic=True)
    with Model.load(path, options) as model:
        alone = read(model, prompts, False, 64)
        for _ in range(12):
            assert read(model, prompts, True, 64) == alone


def test_the_emulated_device_keeps_the_promise_too(tmp_path: Path) -> None:
    skip_without("emulated")
    path = write_model(tmp_path / "m.gguf", "llama", "q8_0")
    wanted: list[Answer] = []
    for slots, batch in ((1, 64), (2, 3)):
        options = Options(device="emulated", context=64, slots=slots, batch=batch, deterministic=True)
        with Model.load(path, options) as model:
            found = read(model, [[5, 6, 7, 8, 9, 1], [3, 2]], slots > 1, 3)
            wanted = wanted or found
            assert found == wanted


def test_who_does_not_promise_it_is_not_opened_so() -> None:
    with pytest.raises(RequestError, match="deterministic: null does not promise"):
        find_backend("null").open(deterministic=True)
