"""On a GPU opened as deterministic, an answer and the bits of its logprobs depend on the request alone, not
on the batch, the size of steps, or the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from devices import skip_without
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
