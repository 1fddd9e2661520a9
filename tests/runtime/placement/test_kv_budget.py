"""The KV budget: the size of the cache that all slots share, apart from their number and from the context."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs
from tiny_file import write_model

from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.api.reply import Reply
from satchel.runtime.device.device import Device
from satchel.runtime.placement.options import KVBudget, read_kv_budget
from satchel.runtime.placement.sizing import cache_bytes
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculation import Speculation

TRAINED = 256
IDS = [int(i) for i in np.random.default_rng(7).integers(0, tiny.VOCAB, 400)]
PROMPTS = [IDS[i * 20 : i * 20 + 24 + 7 * i] for i in range(8)]

pytestmark = needs("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("kv") / "m.gguf", qwen3__context_length=TRAINED)


def start(model: Model, ids: list[int], number: int = 0, tokens: int = 40) -> Reply:
    sampling = Sampling(temperature=0.9, seed=number) if number % 2 else GREEDY
    reply = model.generate(ids, sampling=sampling, max_tokens=tokens, ignore_eos=True)
    reply.start()
    return reply


def ids_of(reply: Reply) -> list[int]:
    """The tokens of the whole answer."""
    reply.read()
    return list(reply.ids)


def test_what_a_budget_says() -> None:
    assert read_kv_budget("auto") == KVBudget() and read_kv_budget(" Context ").word == "context"
    assert read_kv_budget(4096) == read_kv_budget("4096") == KVBudget("4096", 4096)
    assert read_kv_budget("4G").bytes == 4 * 10**9 and read_kv_budget("2GiB").bytes == 2 << 30
    for wrong in ("", "0", "0GB", "-5", "much", "4G4"):
        with pytest.raises(
            RequestError, match=r"kv_budget is .*: expected auto, context, a number of tokens"
        ):
            read_kv_budget(wrong)


@pytest.mark.parametrize(
    ("budget", "tokens"), [("auto", 4 * 128), ("context", 128), (320, 320), ("321", 352), (2048, 2048)]
)
def test_the_pool_has_the_size_of_the_budget(path: Path, budget: str | int, tokens: int) -> None:
    with Model.load(path, context=128, slots=4, kv_budget=budget, threads=1) as model:
        assert (model.context, model.cache.capacity) == (128, tokens)
        assert model.stats().kv_blocks * model.cache.block == tokens
        assert len(ids_of(start(model, IDS[:100]))) == 29, "a context may be filled"


def test_a_worker_process_has_the_same_pool(path: Path) -> None:
    with Model.load(path, slots=4, kv_budget=160, threads=1, worker="process") as model:
        assert (model.context, model.cache.capacity, model.arch.cache.capacity) == (160, 160, 160)
        assert len(ids_of(start(model, IDS[:100]))) == 40


def test_a_budget_in_bytes(path: Path) -> None:
    with Model.load(path, context=96, slots=3, kv_budget="200KB", threads=1) as model:
        size = cache_bytes(model.arch, model.cache)
        more = cache_bytes(model.arch, replace(model.cache, blocks=model.cache.blocks + 1))
        assert size <= 200_000 < more and model.cache.capacity >= 96
    with pytest.raises(RequestError, match=r"kv_budget is 10b: expected at least .* MB, room for 32 tokens"):
        Model.load(path, kv_budget="10B", threads=1)


def test_more_slots_than_the_budget_could_hold_at_full_context(path: Path) -> None:
    """Requests give way to each other, and answer as each would alone."""
    with Model.load(path, context=128, slots=8, threads=1) as model:
        alone = [ids_of(start(model, ids, i)) for i, ids in enumerate(PROMPTS)]
    with Model.load(path, context=128, slots=8, kv_budget=256, threads=1) as model:
        replies = [start(model, ids, i) for i, ids in enumerate(PROMPTS)]
        assert [ids_of(reply) for reply in replies] == alone
        assert model.stats().preemptions > 0, "the cache was never full: the test shows nothing"
        model.engine.pages.check()


def test_a_conversation_may_be_longer_than_its_part(path: Path) -> None:
    with Model.load(path, context=192, slots=4, kv_budget=192, threads=1) as model:
        assert len(ids_of(start(model, IDS[:100], tokens=90))) == 90 > 192 // 4


def test_an_automatic_context_is_as_long_as_the_budget(path: Path) -> None:
    with Model.load(path, slots=4, kv_budget=128, threads=1) as model:
        assert model.context == 128
        line = f"context is 128 of the model's {TRAINED} tokens: kv_budget has no room for more"
        assert line in model.notes
        with pytest.raises(RequestError, match="129 tokens"):
            model.generate(IDS[:129])
    with Model.load(path, slots=4, kv_budget=TRAINED, threads=1) as model:
        assert model.context == TRAINED and not any("kv_budget" in note for note in model.notes)


def test_a_context_longer_than_the_budget_is_refused(path: Path) -> None:
    said = "kv_budget is 96: expected room for one conversation of 128 tokens, got 96; raise it, or lower"
    with pytest.raises(RequestError, match=said):
        Model.load(path, context=128, slots=4, kv_budget=96, threads=1)


def test_a_budget_beyond_all_memory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Device.info
    small = {"memory_total": 1 << 24, "memory_free": 1 << 23}
    monkeypatch.setattr(Device, "info", lambda self: real(self)._replace(**small))
    with pytest.raises(RequestError, match=r"^kv_budget: expected a KV cache within 0\.02 GB .* lower it"):
        Model.load(path, kv_budget="1GB", threads=1)


@pytest.mark.parametrize("arch", ["mamba2", "gemma3"])
def test_windows_and_states_have_room_of_their_own(arch: str, tmp_path: Path) -> None:
    near = {"gemma3__attention__sliding_window": 20} if arch == "gemma3" else {}
    file = write_model(tmp_path / "m.gguf", arch, "f32", **near)
    with Model.load(file, context=64, slots=4, kv_budget=64, threads=1) as model:
        none = "kv_budget has no effect: no layer of the model keeps keys and values of all positions"
        assert (none in model.notes) == (arch == "mamba2")
        replies = [start(model, ids[:30], i, 20) for i, ids in enumerate(PROMPTS[:4])]
        assert [len(ids_of(reply)) for reply in replies] == [20] * 4


def test_a_draft_model_has_the_same_budget(path: Path) -> None:
    speculation = Speculation(draft_model=path)
    with Model.load(path, slots=4, kv_budget=128, threads=1, speculation=speculation) as model:
        assert model._speculator is not None and model._speculator.draft_model is not None
        assert model._speculator.draft_model.engine.cache.capacity == 128
        assert len(ids_of(start(model, IDS[:60]))) == 40
