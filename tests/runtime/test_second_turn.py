"""The second turn of a chat computes only what is new, on models whose layers keep a state, a window or a
chunk of the past as on those that keep all; and so does a turn said anew. The answers are those of a fresh
cache.
"""

from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny_file import write_model

from satchel.runtime.device import libraries
from satchel.runtime.model import Model
from satchel.runtime.sampling import GREEDY

BLOCK = 32  # positions that a page of the cache stands for
# Of each architecture, what makes a conversation longer than its window.
KINDS: dict[str, dict[str, object]] = {
    "llama": {},
    "mamba2": {},
    "qwen3next": {},
    "granitehybrid": {},
    "qwen35": {},
    "gemma3": {"gemma3__attention__sliding_window": 20},
    "gpt_oss": {"gpt_oss__attention__sliding_window": 20},
    "llama4": {},
}
IDS = [int(i) for i in np.random.default_rng(5).integers(0, tiny.VOCAB, 200)]
FIRST, ADDED = IDS[:70], IDS[100:120]

pytestmark = pytest.mark.skipif(
    not any(f.name == "cpu" and not f.reason for f in libraries()), reason="no compiled backend is installed"
)


def answered(model: Model, ids: list[int], salt: str = "") -> tuple[list[int], int]:
    """Tokens of a greedy answer, and how many of the prompt's were in the cache."""
    reply = model.generate(ids, sampling=GREEDY, max_tokens=14, ignore_eos=True, salt=salt)
    reply.read()
    return list(reply.ids), reply.stats.cached


@pytest.mark.parametrize("arch", KINDS)
def test_the_second_turn_of_a_chat_does_not_prefill_again(arch: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", arch, "f32", **KINDS[arch])
    with Model.load(path, context=192, slots=4, threads=1, batch=32) as model:
        answer, cached = answered(model, FIRST)
        assert cached == 0
        held = (len(FIRST) + len(answer) - 1) // BLOCK * BLOCK
        second = FIRST + answer + ADDED
        found = answered(model, second)
        assert found == (answered(model, second, "apart")[0], held), "all whole blocks were kept"
        third = second + found[0] + ADDED
        assert answered(model, third)[1] >= len(second) // BLOCK * BLOCK, "and of the second turn too"
        edited = FIRST + ADDED + ADDED
        again, cached = answered(model, edited)
        assert cached == len(FIRST) // BLOCK * BLOCK, "a turn said anew goes on from the one before it"
        assert again == answered(model, edited, "fresh")[0]
