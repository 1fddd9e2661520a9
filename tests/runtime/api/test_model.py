"""The library's interface on a tiny file: answers, prefix caching, limits, and that close() frees
everything.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny_file import write_model

from satchel import Model
from satchel.errors import ModelError, RequestError
from satchel.runtime.device.device import Device
from satchel.runtime.sampling import GREEDY, Sampling

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def resident() -> int:
    """Anonymous resident memory of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def test_pieces_make_the_text_and_the_counts(path: Path) -> None:
    with Model.load(path) as model:
        reply = model.generate("hello there", max_tokens=12, sampling=GREEDY, ignore_eos=True)
        pieces = list(reply)
        assert "".join(pieces) == reply.text
        assert len(reply.ids) == 12 == reply.stats.generated and reply.stats.finish == "length"
        assert reply.stats.prompt == len(model.tokenize("hello there")) and reply.stats.cached == 0


def test_the_second_turn_reuses_the_whole_blocks_of_the_first(path: Path) -> None:
    with Model.load(path) as model:
        block = model.cache.block
        first = model.generate("abcdefgh" * 5, max_tokens=40, sampling=GREEDY, ignore_eos=True)
        first.read()
        ids = [*first.prompt, *first.ids, 5, 6]
        second = model.generate(ids, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        second.read()
        held = len(first.prompt) + len(first.ids) - 1  # the last token was not fed
        assert second.stats.cached == held // block * block > len(first.prompt)
    with Model.load(path) as fresh:
        alone = fresh.generate(ids, max_tokens=4, sampling=GREEDY, ignore_eos=True)
        alone.read()
        assert alone.ids == second.ids


def test_a_seed_decides(path: Path) -> None:
    hot = Sampling(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0)
    with Model.load(path) as model:

        def ids(seed: int) -> list[int]:
            reply = model.generate("x", max_tokens=10, sampling=hot.with_seed(seed), ignore_eos=True)
            reply.read()
            return reply.ids

        assert ids(1) == ids(1) != ids(2)


def test_logits_are_the_same_in_chunks(path: Path) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 250, 50)]
    with Model.load(path) as whole, Model.load(path, batch=8) as chunks:
        np.testing.assert_array_equal(whole.logits(ids), chunks.logits(ids))
        assert whole.logits(ids).shape == (50, whole.arch.vocab)


def test_what_cannot_be_done_is_refused(path: Path) -> None:
    with Model.load(path, context=32) as model:
        for ids, said in (([], "no token"), ([1, 10**6], "1000000"), ([-1], "-1"), ([1] * 33, "33 tokens")):
            with pytest.raises(RequestError, match=said):
                model.generate(ids)
        with pytest.raises(RequestError, match="max_tokens"):
            model.generate([1], max_tokens=-2)
        full = model.generate([1] * 30, sampling=GREEDY, ignore_eos=True)
        full.read()
        assert len(full.ids) == 3 and "context of 32" in full.stats.reason
    for wrong in ({"threads": -1}, {"slots": 0}, {"batch": -1}):
        with pytest.raises(RequestError):
            Model.load(path, **wrong)


def test_a_context_beyond_all_memory_is_refused_with_one_that_fits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Device.info
    small = {"memory_total": 1 << 24, "memory_free": 1 << 23}
    monkeypatch.setattr(Device, "info", lambda self: real(self)._replace(**small))
    with pytest.raises(
        RequestError, match=r"^context 10000000: expected a KV cache within 0\.02 GB"
    ) as error:
        Model.load(path, context=10_000_000)
    found = re.search(r"a context \(-c\) of (\d+) fits the 0\.01 GB beside the weights", str(error.value))
    assert found is not None
    with Model.load(path, context=int(found[1])) as model:
        assert model.context == int(found[1]) >= 512


def test_a_stop_string_ends_the_reply_and_is_not_shown(path: Path) -> None:
    with Model.load(path) as model:
        free = model.generate("abc", max_tokens=12, sampling=GREEDY, ignore_eos=True).read()
        stop = free[4:6]
        reply = model.generate("abc", max_tokens=12, sampling=GREEDY, ignore_eos=True, stop=[stop])
        assert reply.read() == free[: free.index(stop)] and reply.stats.finish == "stop"


def test_loading_and_closing_50_times_keeps_memory_flat(path: Path) -> None:
    def once() -> None:
        with Model.load(path) as model:
            model.generate("hello", max_tokens=2, sampling=GREEDY).read()

    for _ in range(10):
        once()
    gc.collect()
    before = resident()
    for _ in range(50):
        once()
    gc.collect()
    assert resident() - before < 8 << 20


def test_a_closed_model_says_so(path: Path) -> None:
    model = Model.load(path)
    model.close()
    model.close()
    with pytest.raises(RequestError, match="closed"):
        model.generate("hello").read()


def test_a_file_that_is_no_model_is_refused_and_closed(tmp_path: Path) -> None:
    bad = write_model(tmp_path / "bad.gguf", general__architecture="martian")
    with pytest.raises(ModelError, match="martian"):
        Model.load(bad)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_the_cache_type_holds_with_any_context(path: Path, kind: str) -> None:
    for context in (0, 64):
        with Model.load(path, context=context, cache_type=kind) as model:
            assert model.cache.keys == model.cache.values == kind
            assert model.context == (context or tiny.CONTEXT)
            assert f"{kind}[" in next(iter(model.engine.forward.after)).type.__repr__()


def test_a_tokenizer_of_another_size_is_refused_when_it_is_used(tmp_path: Path) -> None:
    few = {"tokenizer__ggml__tokens": ["a", "b"], "tokenizer__ggml__token_type": np.array([1, 1], np.int32)}
    path = write_model(tmp_path / "few.gguf", **few, tokenizer__ggml__merges=["a b"])
    with Model.load(path) as model, pytest.raises(ModelError, match=r"2 tokens, token_embd\.weight 288 rows"):
        model.tokenize("a")
