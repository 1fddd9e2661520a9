"""The work of a plan's steps, counted from its tables, against the shapes of the weights."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import tiny

from satchel.runtime.compiler.cost import Attention, CostModel, PlanCost, TokenSpan, kind_of
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.layers.arch import Cache
from satchel.runtime.tasks.bench import Test, cost_of

Test.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a class of tests
HAVE = {f.name for f in libraries() if not f.reason}
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


PAIRS = tiny.LAYERS * tiny.HEADS * 2 * tiny.HEAD_DIM  # multiply-adds of a query with a position


def macs_of_a_token(weights: tiny.TinyWeights, head: str) -> tuple[int, int]:
    """Multiply-adds with weights of each token, and of each row that is sampled: what follows the last
    layer's attention, where no token looks at another any more.
    """
    each = late = 0
    for name, shape in weights.shapes.items():
        if len(shape) < 2 or not (name.startswith("blk.") or name == head):
            continue
        count = math.prod(shape) if len(shape) == 2 else tiny.USED * math.prod(shape[1:])
        last = name.startswith(f"blk.{tiny.LAYERS - 1}.") and ("ffn" in name or "attn_output" in name)
        each, late = (each, late + count) if last or name == head else (each + count, late)
    return each, late


@needs_cpu
@pytest.mark.parametrize("format", ["q8_0", "q4_k", "f16", "bf16", "f32"])
@pytest.mark.parametrize("tied", [False, True])
def test_each_weight_is_multiplied_once_a_token(format: str, tied: bool) -> None:
    weights = tiny.weights("llama", format, tied=tied)
    engine = tiny.engine(
        "llama", weights, Cache(context=tiny.CONTEXT), find_backend("cpu").open(threads=1), batch=16
    )
    each, late = macs_of_a_token(weights, "token_embd.weight" if tied else "output.weight")
    try:
        for n in (1, 5, 16):
            cost = cost_of(engine, Test(n, 0))
            assert cost.total == n * each + late + PAIRS * n * (n + 1) // 2
        two = cost_of(engine, Test(21, 0))
        assert two.total == 21 * each + late + PAIRS * 21 * 22 // 2, "two steps, one of them sampled"
    finally:
        engine.close()


@needs_cpu
def test_a_token_meets_the_experts_that_it_uses() -> None:
    weights = tiny.weights("qwen3moe", "q8_0", tied=False)
    engine = tiny.engine(
        "qwen3moe", weights, Cache(context=tiny.CONTEXT), find_backend("cpu").open(threads=1), batch=16
    )
    used = (a.nbytes for n, a in weights.tensors.items() if len(weights.shapes[n]) == 3)
    each, late = macs_of_a_token(weights, "output.weight")
    experts = sum(used) / tiny.EXPERTS
    try:
        one, three = (cost_of(engine, Test(n, 0)) for n in (1, 3))
        assert (one.total, three.total) == (each + late + PAIRS, 3 * each + late + 6 * PAIRS)
        row = tiny.WIDTH // 32 * 34
        position = tiny.LAYERS * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * 2
        more = (min(tiny.EXPERTS, 3 * tiny.USED) - tiny.USED) * (tiny.LAYERS - 1) / tiny.LAYERS
        assert three.bytes - one.bytes == pytest.approx(more * experts + 2 * row + 2 * position)
    finally:
        engine.close()


@needs_cpu
def test_steps_add_up_to_the_plan() -> None:
    engine = tiny.engine(
        "llama",
        tiny.weights("llama", "q8_0"),
        Cache(context=tiny.CONTEXT),
        find_backend("cpu").open(threads=1),
    )
    try:
        plan, costs, span = engine.program(7, 1).plan, CostModel(engine), TokenSpan(7, 3)
        whole = PlanCost()
        for segment in plan.segments:
            steps = costs.steps(segment, plan.bucket, span)
            assert len(steps) == len(segment.steps)
            for cost in steps:
                whole.add(cost)
        assert [cost for _, cost in costs.plan(plan, span)] == [
            cost for segment in plan.segments for cost in costs.steps(segment, plan.bucket, span)
        ]
        assert {device for device, _ in costs.plan(plan, span)} == {"cpu"}
        assert whole.times(3).total == 3 * whole.total
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("window", "span", "seen", "pairs"),
    [
        (0, TokenSpan(1, 0), 1, 1),
        (0, TokenSpan(1, 9), 10, 10),
        (0, TokenSpan(4, 2), 6, 3 + 4 + 5 + 6),
        (3, TokenSpan(4, 2), 6, 3 * 4),
        (3, TokenSpan(2, 50), 5, 6),
        (100, TokenSpan(3, 0), 3, 6),
    ],
)
def test_attention_sees_its_window(window: int, span: TokenSpan, seen: int, pairs: int) -> None:
    assert Attention(10, 7, window).cost(span) == PlanCost(10 * seen, Counter(f32=7 * pairs))


def test_ranks_share_the_positions_of_a_cache_by_blocks() -> None:
    assert Attention(10, 6, 0, ranks=2).cost(TokenSpan(1, 9)) == PlanCost(50, Counter(f32=30))


@pytest.mark.parametrize(
    ("weight", "act", "kind"),
    [
        ("q4_k", "a8_256", "int8"),
        ("q8_0", "a8_32", "int8"),
        ("bf16", "bf16x2", "bf16x2"),
        ("f16", "bf16x2", "f32"),
        ("bf16", "f32", "f32"),
        ("f32", "f32", "f32"),
    ],
)
def test_kinds_of_products(weight: str, act: str, kind: str) -> None:
    assert kind_of(weight, act) == kind
