"""Every architecture divided among ranks gives the logits of the whole model, with the same bits on each
rank.
"""

from __future__ import annotations

import pytest
import shard_cases
import shard_page

from satchel.runtime.compiler.verify import verify_graph
from satchel.runtime.graph import toposort
from satchel.runtime.layers.arch import architectures

CLOSE = 1e-7


def agrees(arch: str, format: str, shares: tuple[float, ...], **cache: object) -> shard_cases.Sharded:
    model = shard_cases.sharded(arch, format, shares, **cache)
    for roots in model.ranks:
        verify_graph(roots)
    whole, ranks = shard_cases.outputs(model)
    assert {values[0].tobytes() for values in ranks} == {ranks[0][0].tobytes()}, arch
    assert shard_cases.nmse(ranks[0][0], whole) <= CLOSE, arch
    return model


SAMPLE = [
    ("bert", "f32", 3),
    ("deepseek32", "q8_0", 3),
    ("gemma4", "q4_k", 4),
    ("gpt_oss", "q4_k", 2),  # by experts, whose biases are divided too
    ("gpt_oss", "q8_0", 3),
    ("granitehybrid", "f32", 2),
    ("llama4", "q4_k", 2),  # by experts, whose sum is reshaped
    ("phi3", "q4_k", 3),
]


@pytest.mark.parametrize(("arch", "format", "ranks"), SAMPLE)
def test_logits_are_those_of_the_whole_model(arch: str, format: str, ranks: int) -> None:
    agrees(arch, format, (1.0,) * ranks)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("format", ["f32", "q8_0", "q4_k"])
def test_every_architecture(format: str, ranks: int) -> None:
    for arch in architectures():
        agrees(arch, format, (1.0,) * ranks)


@pytest.mark.parametrize("keys", ["q8_0", "q4_0"])
def test_rotated_heads_of_a_quantized_cache(keys: str) -> None:
    agrees("qwen3", "f32", (1.0, 1.0), keys=keys, values=keys)


def test_uneven_shares() -> None:
    model = agrees("llama", "f32", (3.0, 1.0))
    sizes = [
        {w.name.split("[")[0]: w.shape for w in toposort(roots) if w.op == "weight"} for roots in model.ranks
    ]
    rows = [size["blk.0.ffn_gate.weight"][0] for size in sizes]
    assert rows == [384, 128]
    heads = [size["blk.0.attn_q.weight"][0] for size in sizes]  # the two KV heads cannot be dealt 3 to 1
    assert heads == [128, 128]


def test_kv_heads_are_shared_where_they_are_fewer_than_ranks() -> None:
    model = agrees("llama", "f32", (1.0,) * 4)
    found = [{s.name: s.shape for s in toposort(roots) if s.op == "state"} for roots in model.ranks]
    assert {states[min(states)][1] for states in found} == {1}
    cut = model.sharding.cuts["blk.0.attn_k.weight"]
    assert [tuple(r) for r in cut.ranges] == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_a_mixture_is_divided_by_experts_where_columns_are_uneven() -> None:
    """256 columns are a single block of q4_k, and seven experts are dealt three and four."""
    model = agrees("qwen3moe", "q4_k", (1.0, 1.0))
    cut = model.sharding.experts["blk.0.ffn_up_exps.weight"]
    assert [tuple(r) for r in cut.ranges] == [(0, 4), (4, 7)]
    names = {w.name for w in toposort(model.ranks[1]) if w.op == "weight"}
    assert {f"blk.0.ffn_{part}_exps.weight[4:7]" for part in ("gate", "up", "down")} <= names


def test_what_is_divided_in_every_architecture() -> None:
    """A change of the inference that divides less is seen here; write the table anew where it is meant."""
    assert shard_page.page() == shard_page.PAGE.read_text(encoding="utf-8")
