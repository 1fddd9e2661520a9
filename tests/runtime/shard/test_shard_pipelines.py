"""Models whose layers are on two groups, divided between the members of each: the graphs of the ranks give
the logits of the whole model, with the same bits on each, and what crosses between the groups is whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import shard_cases
import tiny

from satchel.runtime.compiler.apart import apart
from satchel.runtime.compiler.shard import GroupTraits, prepared, rank_of, shardings_of
from satchel.runtime.compiler.verify import verify_graph
from satchel.runtime.graph import LEAVES, Node, Roots, toposort
from satchel.runtime.layers.arch import Cache, architectures
from satchel.runtime.ops import evaluate
from satchel.runtime.shard.division import Division, Home
from satchel.runtime.shard.evaluate import evaluate_ranks

CLOSE = 1e-7
GROUPS = {"first": ("a", "b"), "second": ("c", "d")}


def halves(layers: int) -> Home:
    """The embeddings and the first half of the layers on one group, the others and the head on the other."""

    def home(node: Node) -> str:
        part = node.name.split(".")
        number = int(part[1]) if part[0] == "blk" else 0 if node.name == "embed" else layers
        return "first" if 2 * number < layers else "second"

    return home


def divided(arch: str, shares: Mapping[str, tuple[float, ...]]) -> tuple[tiny.TinyWeights, Roots, Division]:
    """The weights, the graph of an output, and its division."""
    weights = tiny.weights(arch, "f32")
    forward = tiny.build(arch, weights, Cache(96, 2, block=16))
    layers = 1 + max(int(n.split(".")[1]) for n in weights.tensors if n.startswith("blk."))
    roots, home = prepared(forward.roots("logits" if forward.causal else "hidden")), halves(layers)
    traits = {name: GroupTraits(shares[name]) for name in GROUPS}
    return weights, roots, Division(home, GROUPS, shardings_of([roots], home, traits))


def agrees(arch: str, **shares: tuple[float, ...]) -> tuple[Roots, ...]:
    weights, roots, division = divided(arch, {"first": (1.0, 1.0), "second": (1.0, 1.0), **shares})
    ranks = tuple(rank_of(roots, division, rank) for rank in range(division.ranks))
    for own in ranks:
        verify_graph(own)
    whole = evaluate(roots, shard_cases.values(roots, weights))[0]
    found = evaluate_ranks(ranks, [shard_cases.values(own, weights) for own in ranks])
    assert {values[0].tobytes() for values in found} == {found[0][0].tobytes()}, arch
    assert shard_cases.nmse(found[0][0], whole) <= CLOSE, arch
    return ranks


@pytest.mark.parametrize("arch", ["llama", "gemma4", "deepseek2", "phi3", "qwen3next", "bert"])
def test_logits_are_those_of_the_whole_model(arch: str) -> None:
    agrees(arch)


@pytest.mark.nightly
def test_every_architecture() -> None:
    for arch in architectures():
        agrees(arch)


def test_each_group_has_its_own_shares() -> None:
    ranks = agrees("llama", first=(3.0, 1.0))
    shapes = [{w.name.split("[")[0]: w.shape for w in toposort(roots) if w.op == "weight"} for roots in ranks]
    rows = [[shape[f"blk.{i}.ffn_gate.weight"][0] for shape in shapes] for i in (0, 2)]
    assert rows == [[384, 128], [256, 256]]


def test_what_crosses_is_whole() -> None:
    """Nothing that one group computes, and the other reads, is a part of a value."""
    _, roots, division = divided("llama", {"first": (1.0, 1.0), "second": (1.0, 1.0)})
    types = {(n.op, n.name): n.type for n in toposort(roots) if n.op not in LEAVES}
    for rank in range(2):
        found = rank_of(roots, division, rank)
        for node in (n for n in toposort(found) if n.op not in LEAVES):
            for source in (s for s in node.src if s.op not in LEAVES):
                if division.home(source) != division.home(node):
                    # The sum of the ranks' parts stands for the addition to the residual.
                    op = "add" if source.op == "reduce_add" else source.op
                    assert types[op, source.name] == source.type


def test_a_rank_beyond_a_group_has_one_of_its_members_again() -> None:
    members = {"first": ("a", "b", "c"), "second": ("d", "e")}
    division = Division(lambda node: "first", members, {})
    assert division.ranks == 3
    assert [division.device("first", rank) for rank in range(3)] == ["a", "b", "c"]
    assert [division.device("second", rank) for rank in range(3)] == ["d", "e", "d"]
    assert division.device("cpu", 2) == "cpu"


def test_parts_of_a_graph_read_what_others_give_as_inputs() -> None:
    _, roots, division = divided("llama", {"first": (1.0, 1.0), "second": (1.0, 1.0)})
    found = apart(roots, division.home)
    assert found.leaving.keys() == GROUPS.keys()
    for device, own in found.leaving.items():
        order = toposort(own)
        assert {n for n in order if n.op not in LEAVES} == {
            found.own[n] for n in found.order if found.home[n] == device
        }
    assert "first" in {division.home(value) for value in found.brought.values()}
