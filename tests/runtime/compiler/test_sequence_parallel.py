"""Sequence parallelism: which values of a member's graph are divided by rows, and that dividing them changes
no bit of what the members have together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import shard_cases

from satchel.errors import RequestError
from satchel.runtime.compiler.optimized import DeviceAssignment, Optimized
from satchel.runtime.compiler.sequence_parallel import LEAST, divide_rows, divided, least_tokens
from satchel.runtime.compiler.verify import verify_graph
from satchel.runtime.graph import LEAVES, TOKENS, Graph, Node, Roots, Type, toposort
from satchel.runtime.ops import reduce_add, rms_norm
from satchel.runtime.plan import Bucket
from satchel.runtime.shard.evaluate import evaluate_ranks

LONG = Bucket(4096, 1)


@dataclass
class Target:
    """A device that lacks some ops."""

    name: str = "d"
    lacks: tuple[str, ...] = ()
    expands = False

    def refusal(self, node: Node, bucket: Bucket = LONG) -> str:
        return "it lacks it" if node.op in self.lacks else ""

    def is_custom(self, node: Node, bucket: Bucket) -> bool:
        return False


def by_rows(roots: Roots, ranks: int, lacks: tuple[str, ...] = ()) -> Roots:
    device = {node: "d" for node in toposort(roots) if node.op not in LEAVES}
    graph = Optimized(roots, DeviceAssignment(roots, device, ()), (Target(lacks=lacks),))
    made = divide_rows(graph, LONG, ("d", "e", "f", "g")[:ranks])
    verify_graph(made.roots)
    assert all(node in made.assignment.device for node in toposort(made.roots) if node.op not in LEAVES)
    return made.roots


def ops_of(roots: Roots) -> Counter[str]:
    return Counter(node.op for node in toposort(roots))


@pytest.mark.parametrize("lacks", [(), ("norm_all_gather",)])
@pytest.mark.parametrize(
    ("arch", "ranks"),
    [
        ("llama", 2),
        ("llama", 3),
        ("command_r", 4),
        ("gemma2", 3),
        ("qwen3moe", 2),
        ("deepseek2", 3),
        ("bert", 2),
    ],
)
def test_members_have_the_same_bits_with_divided_rows(arch: str, ranks: int, lacks: tuple[str, ...]) -> None:
    """Five tokens: uneven rows for each number of ranks."""
    model = shard_cases.sharded(arch, "f32", (1.0,) * ranks)
    values = [shard_cases.values(roots, model.weights) for roots in model.ranks]
    want = evaluate_ranks(model.ranks, values)
    split = [by_rows(roots, ranks, lacks) for roots in model.ranks]
    assert ops_of(split[0])["reduce_scatter"] > 0
    assert (ops_of(split[0])["norm_all_gather"] > 0) == (
        not lacks and arch not in ("bert", "command_r")
    )  # their norms are others
    for mine, whole in zip(evaluate_ranks(split, values), want, strict=True):
        for a, b in zip(mine, whole, strict=True):
            assert np.array_equal(np.asarray(a), np.asarray(b))


def test_every_reduce_of_a_prompt_is_divided() -> None:
    """All but those of the last layer, whose rows are the sampled ones; its residual is gathered once."""
    model = shard_cases.sharded("llama", "f32")
    before, after = ops_of(model.ranks[0]), ops_of(by_rows(model.ranks[0], 2))
    long = sum(n.op == "reduce_add" and n.shape[0] == TOKENS for n in toposort(model.ranks[0]))
    assert after["reduce_scatter"] == long > 0
    assert after["reduce_add"] == before["reduce_add"] - long
    assert after["all_gather"] == 1
    assert after["norm_all_gather"] + after["rms_norm"] == before["rms_norm"]


def small(read: str) -> Roots:
    """A sum that a norm reads, and one more op."""
    graph = Graph()
    graph.label = "blk.0"
    x = graph.node("input", (), Type((TOKENS, 64)), "x")
    w = graph.node("weight", (), Type((64,)), "w")
    y = reduce_add(x)
    normed = rms_norm(y, w, eps=1e-5)
    return (normed, *({"root": (y,), "sum": (reduce_add(y),), "norm": ()}[read]))


@pytest.mark.parametrize(("read", "count"), [("norm", 2), ("root", 0), ("sum", 0)])
def test_a_sum_that_all_need_whole_stays_whole(read: str, count: int) -> None:
    assert len(divided(small(read))) == count


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_a_device_without_the_collectives_keeps_its_graph(op: str) -> None:
    roots = small("norm")
    assert by_rows(roots, 2, (op, "norm_all_gather")) == roots


@pytest.mark.parametrize(("text", "tokens"), [("", LEAST), ("0", 0), ("1", LEAST), ("7", 7)])
def test_from_how_many_tokens_on(text: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", text)
    assert least_tokens() == tokens


@pytest.mark.parametrize("told", ["on", "-1", "1.5", "²"])
def test_a_threshold_that_is_no_number_is_refused(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_GROUP_SEQUENCE", told)
    with pytest.raises(RequestError, match="SATCHEL_GROUP_SEQUENCE is"):
        least_tokens()
