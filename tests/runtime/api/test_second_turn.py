"""The second turn of a chat computes only new tokens, also on models with recurrent states, sliding windows
or chunked attention; so does a regenerated turn. Answers equal those of a fresh cache.
"""

from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs
from tiny_file import write_model

from satchel.runtime.api.model import Model
from satchel.runtime.layers.arch import windows_of
from satchel.runtime.placement.sizing import cache_bytes
from satchel.runtime.sampling import GREEDY

BLOCK = 32  # positions that a page of the cache stands for
SEEN = 20  # positions of a window or a chunk: fewer than a conversation has
STATES = ("mamba2", "qwen3next", "granitehybrid", "qwen35")
NEAR = (
    "gemma2",
    "gemma3",
    "gemma4",
    "gpt_oss",
    "olmo2",
    "cohere2",
    "exaone4",
    "phi3",
    "mistral",
    "starcoder2",
)
KINDS = ("llama", *STATES, *NEAR, "llama4")
IDS = [int(i) for i in np.random.default_rng(5).integers(0, tiny.VOCAB, 200)]
FIRST, ADDED = IDS[:70], IDS[100:120]

pytestmark = needs("cpu")


def answered(model: Model, ids: list[int], salt: str = "") -> tuple[list[int], int]:
    """Tokens of a greedy answer, and the number of cached prompt tokens."""
    reply = model.generate(ids, sampling=GREEDY, max_tokens=14, ignore_eos=True, salt=salt)
    reply.read()
    return list(reply.ids), reply.stats.cached


def written(folder: Path, arch: str) -> Path:
    near = {f"{arch}__attention__sliding_window": SEEN} if arch in (*NEAR, "llama4") else {}
    return write_model(folder / "m.gguf", arch, "f32", **near)


@pytest.mark.parametrize("arch", KINDS)
def test_the_second_turn_of_a_chat_does_not_prefill_again(arch: str, tmp_path: Path) -> None:
    with Model.load(written(tmp_path, arch), context=192, slots=4, threads=1, batch=32) as model:
        assert (windows_of(model.engine.optimized("tokens").roots)[-1] > 0) == (arch in (*STATES, *NEAR))
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


@pytest.mark.parametrize("arch", ["mamba2", "granitehybrid", "qwen35", "gemma3", "gpt_oss", "gemma4"])
def test_many_chats_in_turns_over_few_slots(arch: str, tmp_path: Path) -> None:
    """Evicted blocks are recomputed; memory never exceeds the plan."""
    with Model.load(written(tmp_path, arch), context=192, slots=2, threads=1, batch=32) as model:
        engine, chats = model.engine, [IDS[i * 9 : i * 9 + 40] for i in range(6)]
        sizes = [group.pool.size for group in engine.pages.groups]
        whole = sum(n * each for n, each in zip(sizes, engine.states.block_bytes, strict=True))
        assert whole == cache_bytes(model.arch, model.cache)
        for turn in range(3):
            for i, ids in enumerate(chats):
                answer, _ = answered(model, ids, "chats")
                assert answer == answered(model, ids, f"alone {turn} {i}")[0]
                engine.pages.check()
                again, cached = answered(model, [*ids, *answer, 7], "chats")
                assert cached >= len(ids) // BLOCK * BLOCK, "the turn that follows at once finds this one"
                chats[i] = [*ids, *answer, 7, *again, *IDS[150 + turn : 153]]
        assert [group.pool.size for group in engine.pages.groups] == sizes
