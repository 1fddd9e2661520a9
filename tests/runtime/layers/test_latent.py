"""The forms of MLA: a long run of a prompt in the expanded form equals its tokens one by one in the absorbed
form, whatever runs beside it; sparse attention to all positions equals dense attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tiny
from accuracy import nmse
from devices import needs, skip_without

from satchel.errors import ModelError, RequestError
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine import engine as engines
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.placement.sizing import cache_bytes
from satchel.runtime.weights.resident import Uploaded

pytestmark = needs("cpu")
LONG, TOP = 24, 40
IDS = [int(i) for i in np.random.default_rng(3).integers(0, tiny.VOCAB, 90)]
EXPANDED, SPARSE = "expanded_attention", "sparse_attention"


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "LONG", LONG)
    yield


def open_engine(
    format: str = "f32",
    arch: str = "deepseek2",
    *,
    kind: str = "f16",
    long: bool = True,
    top: int = TOP,
    dense: bool = False,
    repack: bool = True,
    on: str = "cpu",
) -> Engine:
    """long: False: without the expanded form, as with `deterministic`. top: the indexer's top k. on: the
    device.
    """
    w = tiny.weights(arch, format)
    extra = {"attention__indexer__top_k": top} if arch == "deepseek32" else {}
    made = tiny.build(arch, w, Cache(96, 3, keys=kind, values=kind, dense=dense), **extra)
    device = find_backend(on).open(threads=2, deterministic=not long)
    return Engine(
        made, Cache(96, 3, keys=kind, values=kind, dense=dense), [device],
        Uploaded(w.tensors, repack), batch=64,
    )  # fmt: skip


def ops_of(engine: Engine, tokens: int) -> set[str]:
    return {step.op for segment in engine.program(tokens, 1).plan.segments for step in segment.steps}


def one_by_one(engine: Engine, slot: int, ids: list[int]) -> Array:
    return np.concatenate([engine.logits([BatchEntry(slot, [i])]) for i in ids])


@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize(
    ("format", "kind", "bound"), [("f32", "f16", 1e-9), ("f32", "bf16", 1e-8), ("q8_0", "f16", 5e-3)]
)  # fmt: skip
def test_a_long_prompt_is_its_tokens_one_by_one(format: str, kind: str, bound: float, repack: bool) -> None:
    """q8_0: the absorbed form rounds queries and results to 8 bits for their weights, this one nothing."""
    engine = open_engine(format, kind=kind, repack=repack)
    whole = engine.logits([BatchEntry(0, IDS[:60])])
    steps = one_by_one(engine, 1, IDS[:60])
    engine.close()
    assert 0 < nmse(whole, steps) < bound


def test_only_plans_for_long_prompts_have_it() -> None:
    engine, plain = open_engine(), open_engine(long=False)
    assert EXPANDED in ops_of(engine, LONG + 8) and EXPANDED not in ops_of(engine, 16)
    assert EXPANDED not in ops_of(plain, 64)
    engine.close()
    plain.close()


@pytest.mark.parametrize("on", ["emulated", "remote"])
def test_a_gpu_keeps_the_absorbed_form(on: str) -> None:
    skip_without(on)
    engine = open_engine(on=on)
    assert (EXPANDED in ops_of(engine, LONG + 8)) == (on == "remote")
    engine.close()


@pytest.mark.parametrize("format", ["f32", "q4_k"])
def test_tokens_beside_a_long_prompt_keep_their_bits(format: str) -> None:
    """One sequence decodes, another verifies a draft, a third continues its prompt."""
    engine, alone = open_engine(format), open_engine(format)
    for e in (engine, alone):
        e.logits([BatchEntry(0, IDS[:9])])
        e.logits([BatchEntry(1, IDS[:30])])
        e.logits([BatchEntry(2, IDS[40:50])])
    mixed = engine.logits([BatchEntry(0, [5]), BatchEntry(2, IDS[:40]), BatchEntry(1, [7, 8, 9])])
    entries = (BatchEntry(0, [5]), BatchEntry(2, IDS[:40]), BatchEntry(1, [7, 8, 9]))
    apart = np.concatenate([alone.logits([entry]) for entry in entries])
    again = engine.logits([BatchEntry(slot, [3]) for slot in range(3)])
    np.testing.assert_array_equal(mixed, apart)
    np.testing.assert_array_equal(
        again, np.concatenate([alone.logits([BatchEntry(s, [3])]) for s in range(3)])
    )
    engine.close()
    alone.close()


def test_a_cached_prefix_goes_on_in_the_other_form() -> None:
    engine, plain = open_engine(), open_engine(long=False)
    engine.logits([BatchEntry(0, IDS[:50])])
    engine.publish(0, IDS[:50])
    cached, _ = engine.begin(1, IDS)
    assert cached == 32
    got = engine.logits([BatchEntry(1, IDS[cached:])])
    want = np.concatenate([plain.logits([BatchEntry(0, IDS[at : at + 10])]) for at in range(0, 90, 10)])
    assert 0 < nmse(got, want[cached:]) < 1e-9
    engine.close()
    plain.close()


def test_a_rotated_cache_keeps_the_absorbed_form() -> None:
    engine = open_engine(kind="q8_0")
    assert EXPANDED not in ops_of(engine, 64)
    engine.close()


# --- DeepSeek V3.2


def test_sparse_attention_to_all_positions_is_dense() -> None:
    """Every bit, in a prompt and token by token; behind that they part."""
    sparse, dense = (open_engine(arch="deepseek32", long=False, dense=d) for d in (False, True))
    assert SPARSE in ops_of(sparse, 1) and SPARSE not in ops_of(dense, 1)
    for ids in (IDS[:TOP], IDS[:7]):
        a, b = (e.logits([BatchEntry(0, ids)]) for e in (sparse, dense))
        np.testing.assert_array_equal(a, b)
        for e in (sparse, dense):
            e.rewind(0, 0)
    a, b = (one_by_one(e, 1, IDS[: TOP + 3]) for e in (sparse, dense))
    np.testing.assert_array_equal(a[:TOP], b[:TOP])
    assert nmse(a[TOP:], b[TOP:]) > 1e-6
    sparse.close()
    dense.close()


def test_a_context_of_at_most_top_k_has_no_indexer() -> None:
    few, all_ = open_engine(arch="deepseek32", top=95), open_engine(arch="deepseek32", top=96)
    assert SPARSE in ops_of(few, 1)
    assert not {SPARSE, "index_positions"} & ops_of(all_, 1) and EXPANDED in ops_of(all_, 64)
    few.close()
    all_.close()


def test_the_indexers_keys_are_part_of_the_cache() -> None:
    """A prefix that another request left gives the same bits as one's own; its memory is counted."""
    engine = open_engine(arch="deepseek32", top=8)
    own = engine.logits([BatchEntry(0, IDS[:60])])
    engine.publish(0, IDS[:60])
    cached, _ = engine.begin(1, IDS[:60])
    assert cached == 32
    np.testing.assert_array_equal(engine.logits([BatchEntry(1, IDS[cached:60])]), own[cached:])
    w, cache = tiny.weights("deepseek32"), Cache(96, 3)
    arch = find_arch("deepseek32")(HParams(tiny.metadata("deepseek32"), "deepseek32"), w, cache)
    assert cache_bytes(arch, cache) == sum(map(sum, [engine.states.block_bytes])) * cache.pool
    engine.close()


@pytest.mark.parametrize("kind", ["q8_0", "bf16", "f32"])
def test_sparse_attention_in_other_caches(kind: str) -> None:
    engine = open_engine(arch="deepseek32", kind=kind, top=8)
    whole = engine.logits([BatchEntry(0, IDS[:40])])
    np.testing.assert_array_equal(one_by_one(engine, 1, IDS[:40]), whole)
    engine.close()


def test_what_an_indexer_cannot_be_is_said() -> None:
    w, cache = tiny.weights("deepseek32"), Cache(96, 1)
    with pytest.raises(
        ModelError, match=r"attention.indexer.key_length: expected at least rope.dimension_count 32"
    ):
        tiny.build("deepseek32", w, cache, attention__indexer__key_length=16)
    with pytest.raises(ModelError, match=r"blk.0.indexer.attn_q_b.weight: expected shape \(144, 128\)"):
        tiny.build("deepseek32", w, cache, attention__indexer__key_length=48)
    with pytest.raises(ModelError, match=r"attention\.indexer\.top_k"):
        tiny.build("deepseek32", w, cache, attention__indexer__top_k=0)
    with pytest.raises(RequestError, match="heads of a multiple of 32"):
        odd = tiny.weights("deepseek32")
        for i in range(tiny.LAYERS):
            p = f"blk.{i}.indexer."
            odd.put(f"{p}attn_q_b.weight", np.ones((3 * 40, 128)))
            odd.put(f"{p}attn_k.weight", np.ones((40, 256)))
            odd.put(f"{p}k_norm.weight", np.ones(40))
            odd.put(f"{p}k_norm.bias", np.ones(40))
        tiny.build(
            "deepseek32", odd, Cache(96, 1, keys="q8_0", values="q8_0"), attention__indexer__key_length=40
        )
