"""Context parallelism of whole models by the definitions: caches that ranks would repeat are divided by
blocks, the logits stay, and ranks have the same bits.
"""

from __future__ import annotations

import pytest
import shard_cases

from satchel.runtime.compiler.verify import verify_graph
from satchel.runtime.graph import toposort
from satchel.runtime.layers.arch import architectures

CLOSE = 1e-7


def agrees(arch: str, ranks: int, **cache: object) -> shard_cases.Sharded:
    model = shard_cases.sharded(arch, "f32", (1.0,) * ranks, blocks=True, **cache)
    for roots in model.ranks:
        verify_graph(roots)
    whole, found = shard_cases.outputs(model)
    assert {values[0].tobytes() for values in found} == {found[0][0].tobytes()}, arch
    assert shard_cases.nmse(found[0][0], whole) <= CLOSE, arch
    return model


@pytest.mark.parametrize(
    ("arch", "ranks", "caches"),
    [
        ("deepseek2", 2, 3),  # one latent for all heads: keys and values in one cache
        ("llama", 2, 0),  # two KV heads: each member has one
        ("llama", 3, 6),
        ("olmo2", 2, 6),  # a norm over all heads
        ("gpt_oss", 4, 6),  # attention sinks
        ("deepseek32", 2, 0),  # sparse attention reads its caches
        ("bert", 4, 0),  # sight of what follows
    ],
)
def test_which_caches_are_divided(arch: str, ranks: int, caches: int) -> None:
    model = agrees(arch, ranks)
    assert len(model.sharding.blocks) == caches
    states = {s.name: s.shape[0] for s in toposort(model.ranks[0]) if s.op == "state" and len(s.shape) == 4}
    pool = shard_cases.CACHE.pool
    assert all(states[name] == -(-pool // ranks) for name in model.sharding.blocks)


def test_windows_keep_their_caches() -> None:
    """Layers with a window, whose pools are small, hold the same heads on several ranks as before."""
    model = shard_cases.sharded("gemma3", "f32", (1.0,) * 4, blocks=True)
    windows = {
        n.src[1].src[0].name for n in toposort(model.separated) if n.op == "attention" and n.arg("window")
    }
    assert not windows & model.sharding.blocks


@pytest.mark.parametrize("keys", ["q8_0", "q4_0"])
def test_rotated_heads_of_a_quantized_cache(keys: str) -> None:
    assert agrees("qwen3", 4, keys=keys, values=keys).sharding.blocks


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_architecture(ranks: int) -> None:
    for arch in architectures():
        agrees(arch, ranks)
