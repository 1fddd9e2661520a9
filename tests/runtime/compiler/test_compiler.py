"""The passes keep the meaning of the graph, and a finished plan holds no dead step and no overlap."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tiny

from satchel.runtime import ops
from satchel.runtime.compiler import compile, optimize
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.fold import fold
from satchel.runtime.compiler.fuse_steps import fuse_steps
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.memory import assign, storage
from satchel.runtime.compiler.verify import PlanError, verify_graph, verify_plan
from satchel.runtime.device.device import SAMPLING
from satchel.runtime.graph import LEAVES, TOKENS, Array, Graph, Node, Type, leaves, toposort
from satchel.runtime.layers.arch import RECURRENT, Cache, architectures
from satchel.runtime.ops import OPS, evaluate
from satchel.runtime.plan import ONE, Bucket, WeightPlace
from satchel.runtime.sampling.chain import CODE

CACHE = Cache(context=tiny.CONTEXT, slots=2)


class Everything:
    """A device that supports every op except the named ones."""

    def __init__(self, name: str = "cpu", lacks: frozenset[str] = frozenset(), expands: bool = True) -> None:
        self.name, self.lacks, self.expands = name, lacks, expands

    def refusal(self, node, bucket: Bucket = ONE) -> str:
        return f"it has no {node.op}" if node.op in self.lacks else ""

    def is_custom(self, node, bucket: Bucket) -> bool:
        return False


class Places:
    def __init__(self, w: tiny.TinyWeights) -> None:
        self.at, self.offsets = 0, {}
        for name, data in w.tensors.items():
            self.offsets[name] = self.at
            self.at += -(-data.nbytes // 64) * 64

    def place(self, name: str) -> WeightPlace:
        return WeightPlace("weights.0", self.offsets[name])

    def sizes(self) -> dict[str, int]:
        return {"weights.0": self.at}


def context(*targets: Everything, wanted=None) -> Context:
    targets = targets or (Everything(),)
    return Context(targets, wanted or (lambda node: targets[0].name))


def step_values(w: tiny.TinyWeights, forward, tokens: int = 5) -> dict[str, Array]:
    """Weights, empty states and the inputs of a first step with two slots."""
    rng = np.random.default_rng(7)
    values: dict[str, Array] = dict(w.tensors)
    for root in (forward.roots("tokens"), forward.roots("logits")):
        for state in leaves(root, "state"):
            dtype = {"f16": np.float16, "f32": np.float32, "i32": np.int32}[state.type.format]
            values[state.name] = np.zeros(state.shape, dtype)
    split = tokens // 2
    params = np.zeros(2, SAMPLING)
    params["chain"]["stage"][:, 0] = CODE["temperature"]
    table = np.arange(CACHE.slots * CACHE.table_width, dtype=np.int32).reshape(CACHE.slots, -1)
    return {
        **values,
        "ids": rng.integers(0, tiny.VOCAB, tokens).astype(np.int32),
        "pos": np.r_[np.arange(split), np.arange(tokens - split)].astype(np.int32),
        "slot": np.r_[np.zeros(split), np.ones(tokens - split)].astype(np.int32),
        "segment_ids": np.arange(tokens, dtype=np.int32) % 2,
        "rows": np.array([split - 1, tokens - 1], np.int32),
        "params": params,
        "table": table,
        "table.recurrent": table % CACHE.pool_of(RECURRENT),
    }


@pytest.mark.parametrize("arch", architectures())
@pytest.mark.parametrize("output", ["tokens", "logits"])
def test_passes_keep_the_value(arch: str, output: str) -> None:
    w = tiny.weights(arch)
    forward = tiny.build(arch, w, CACHE)
    values = step_values(w, forward)
    before = forward.roots(output)
    optimized = optimize(before, context())
    fused = fuse_steps(optimized, Bucket(8, 2))
    verify_graph(fused.roots)
    wanted = evaluate(before, values)
    for after in (optimized.roots, fused.roots):
        for a, b in zip(wanted, evaluate(after, values), strict=True):
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-4, atol=1e-5)


# A router reads the norm in float32 besides: tests/runtime/layers/test_mixture.py has those.
@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_quantized_weights_share_one_quantized_activation(arch: str) -> None:
    roots = optimize(tiny.build(arch, tiny.weights(arch, "q8_0"), CACHE).roots("tokens"), context()).roots
    products = [n for n in toposort(roots) if n.op.startswith("linear")]
    assert all(n.src[0].type.format == "a8_32" for n in products)
    merged = [n for n in products if n.op == "linear" and len(n.src) > 2]
    gated = [n for n in products if n.op == "linear_swiglu_quantize"]
    layers = 4 if arch == "smollm3" else tiny.LAYERS
    assert len(merged) == len(gated) == layers, "Q, K and V are one step, gate and up another"
    assert not [
        n
        for n in toposort(roots)
        if n.op == "rms_norm" and n.type.shape[1:] == (tiny.WIDTH,) and n.name != "output"
    ]


def test_mixed_formats_merge_by_their_activation() -> None:
    w = tiny.weights("llama", "q4_k", mixed=True)
    roots = optimize(tiny.build("llama", w, CACHE).roots("tokens"), context()).roots
    qkv = next(n for n in toposort(roots) if n.op == "linear" and len(n.src) == 4)
    assert [s.type.format for s in qkv.src] == ["a8_256", "q4_k", "q4_k", "q6_k"]


def test_products_that_a_device_takes_apart_alone_are_not_merged() -> None:
    """As of packed weights beside others: those that are alike stay together."""

    class Alike(Everything):
        def refusal(self, node, bucket: Bucket = ONE) -> str:
            formats = {s.type.format for s in node.src[1:]} if node.op == "linear" else {""}
            return "" if len(formats) == 1 else "they differ"

    w = tiny.weights("llama", "q4_k", mixed=True)
    roots = optimize(tiny.build("llama", w, CACHE).roots("tokens"), context(Alike())).roots
    products = [n for n in toposort(roots) if n.op == "linear" and n.name == "blk.0"]
    assert sorted(tuple(s.type.format for s in n.src[1:]) for n in products) == [("q4_k", "q4_k"), ("q6_k",)]


def test_the_head_computes_gathered_rows_only() -> None:
    roots = optimize(tiny.build("llama", tiny.weights("llama"), CACHE).roots("tokens"), context()).roots
    last = [
        n
        for n in toposort(roots)
        if n.name == f"blk.{tiny.LAYERS - 1}" and n.op in ("linear_swiglu", "linear_add")
    ]
    assert last and all(n.type.shape[0] != TOKENS for n in last), (
        "the last feed-forward computes the gathered rows"
    )


def test_missing_fused_ops_are_decomposed() -> None:
    lacks = frozenset(name for name, op in OPS.items() if op.parts)
    roots = optimize(
        tiny.build("llama", tiny.weights("llama", "q8_0"), CACHE).roots("tokens"),
        context(Everything(lacks=lacks)),
    ).roots
    found = {n.op for n in toposort(roots)}
    assert not found & lacks and {"rms_norm", "quantize", "swiglu", "add", "rope", "kv_write"} <= found


@pytest.mark.parametrize("expands", [True, False])
def test_latent_attention_is_expanded_where_the_device_says_that_it_pays(expands: bool) -> None:
    """The layers that lie on such a device, not those beside them."""
    targets = Everything("cpu"), Everything("gpu", expands=expands)
    forward = tiny.build("deepseek2", tiny.weights("deepseek2"), CACHE)
    split = context(*targets, wanted=lambda node: "gpu" if node.name == "blk.1" else "cpu")
    roots = optimize(forward.roots("logits"), replace(split, long=8)).roots
    found = {(n.op, n.name) for n in toposort(roots) if n.op.endswith("attention")}
    assert ("expanded_attention", "blk.0") in found
    if expands:
        assert {("absorbed_attention", "blk.1"), ("expanded_attention", "blk.1")} <= found
    else:
        assert {op for op, name in found if name == "blk.1"} == {"attention"}


@pytest.mark.parametrize("format", ["f32", "q8_0"])
def test_steps_of_a_layer(format: str) -> None:
    """rope_kv_write rotates keys on their way into the cache, by one cos/sin table for all layers."""
    forward = tiny.build("llama", tiny.weights("llama", format), CACHE)
    nodes = toposort(optimize(forward.roots("tokens"), context()).roots)
    steps = [n.op for n in nodes if n.op in OPS and not OPS[n.op].view]
    gated, norm = {
        "f32": ("linear_swiglu", "rms_norm"),
        "q8_0": ("linear_swiglu_quantize", "norm_quantize"),
    }[format]
    first = ["linear", "rope_table", "rope", "rope_kv_write", "kv_write", "attention"]
    other = [op for op in first if op != "rope_table"]
    rest = [*(["quantize"] if format == "q8_0" else []), "linear_add", norm, gated, "linear_add"]
    layers = [norm, *first, *rest, norm, *other, *rest]
    at = steps.index(norm)
    assert steps[at : at + len(layers)] == layers


def gate_and_up(other: Callable[[Node, Node], Node] | None, weights: int = 2) -> list[str]:
    """Steps of swiglu(x @ w0.T, x @ w1.T) beside `other` of the gate and of x, with so many products of x."""
    g = Graph()
    x = g.node("input", (), Type((TOKENS, 64)), "x")
    gate, up, *more = (ops.linear(x, g.node("weight", (), Type((64, 64)), f"w{i}")) for i in range(weights))
    roots = (ops.swiglu(gate, up), *more, *([other(gate, x)] if other else []))
    values = {n.name: np.ones(n.shape[-1:] * 2, np.float32) for n in toposort(roots) if n.op in LEAVES}
    after = optimize(roots, context()).roots
    for a, b in zip(evaluate(roots, values), evaluate(after, values), strict=True):
        np.testing.assert_array_equal(a, b)
    return [n.op for n in toposort(after) if n.op in OPS and not OPS[n.op].view]


def test_a_gated_product_that_somebody_else_reads_stays_in_parts() -> None:
    assert gate_and_up(None) == ["linear_swiglu"]
    assert gate_and_up(lambda gate, x: ops.add(gate, x)) == ["linear", "swiglu", "add"]
    assert gate_and_up(None, weights=3) == ["linear", "swiglu"], "a third product of x shares their step"


def test_an_op_the_device_lacks_moves_to_the_next_and_says_so() -> None:
    first, second = Everything("gpu", frozenset({"sample"})), Everything("cpu")
    optimized = optimize(
        tiny.build("llama", tiny.weights("llama"), CACHE).roots("tokens"), context(first, second)
    )
    placed = {n.op: d for n, d in optimized.assignment.device.items()}
    assert placed["sample"] == "cpu" and placed["attention"] == "gpu"
    assert any("sample" in line and "moved from gpu to cpu" in line for line in optimized.assignment.moved)
    assert any(n.op == "copy" for n in toposort(optimized.roots))


def test_an_op_that_nobody_has_is_an_error() -> None:
    from satchel.errors import DeviceError

    with pytest.raises(DeviceError, match="no device has attention"):
        optimize(
            tiny.build("llama", tiny.weights("llama"), CACHE).roots("tokens"),
            context(Everything(lacks=frozenset({"attention"}))),
        )


@pytest.mark.parametrize("arch", architectures())
@pytest.mark.parametrize("bucket", [Bucket(1, 1), Bucket(16, 4), Bucket(512, 512)])
def test_no_two_live_values_overlap(arch: str, bucket: Bucket) -> None:
    optimized = optimize(tiny.build(arch, tiny.weights(arch, "q8_0"), CACHE).roots("tokens"), context())
    memory = assign(toposort(optimized.roots), optimized, bucket)
    spans = [
        (p.offset, p.offset + p.size, *memory.live[n])
        for n, p in memory.allocations.items()
        if p.buffer == "arena"
    ]
    assert len(spans) > 10
    for i, (a0, a1, s0, e0) in enumerate(spans):
        for b0, b1, s1, e1 in spans[i + 1 :]:
            assert a1 <= b0 or b1 <= a0 or e0 < s1 or e1 < s0
    assert max(e for _, e, _, _ in spans) <= memory.arena["cpu"]
    assert memory.arena["cpu"] < sum(e - s for s, e, _, _ in spans), "memory is reused"


class Few(Everything):
    """A device whose fused product is made for four tokens."""

    def refusal(self, node, bucket: Bucket = ONE) -> str:
        many = node.op.startswith("norm_linear") and bucket.tokens > 4
        return "it is made for fewer tokens" if many else super().refusal(node, bucket)


@pytest.mark.parametrize(("tokens", "fused"), [(1, True), (4, True), (8, False)])
def test_a_device_is_asked_at_the_shapes_of_the_bucket(tokens: int, fused: bool) -> None:
    w = tiny.weights("llama")
    optimized = optimize(tiny.build("llama", w, CACHE).roots("tokens"), context(Few()))
    plan = compile(optimized, Bucket(tokens, 1), {"cpu": Places(w)}, state_layout(optimized))
    steps = {step.op for segment in plan.segments for step in segment.steps}
    assert ("norm_linear" in steps) == fused
    assert ("linear_swiglu" in steps) != fused


@pytest.mark.parametrize(
    ("arch", "fused", "parts"),
    [
        ("gpt_oss", {"expert_gate_limited"}, {"swiglu_limited"}),
        ("gemma3", {"geglu", "rms_norm_add"}, {"gelu", "mul"}),
    ],
)
def test_gates_and_residuals_take_their_neighbours(arch: str, fused: set[str], parts: set[str]) -> None:
    roots = optimize(tiny.build(arch, tiny.weights(arch), CACHE).roots("tokens"), context()).roots
    found = {n.op for n in toposort(roots) if n.name.startswith("blk.")}
    assert fused <= found and not parts & found


def test_dead_steps_are_never_in_the_plan() -> None:
    w = tiny.weights("llama", "q8_0")
    forward = tiny.build("llama", w, CACHE)
    for output, dead in (("tokens", ()), ("logits", ("sample", "params"))):
        optimized = fuse_steps(optimize(forward.roots(output), context()), Bucket(8, 2))
        plan = compile(optimized, Bucket(8, 2), {"cpu": Places(w)}, state_layout(optimized))
        used = {storage(s) for n in toposort(optimized.roots) for s in n.src} | {
            storage(r) for r in optimized.roots
        }
        computed = [n for n in toposort(optimized.roots) if n.op in OPS and storage(n) is n]
        assert all(n in used for n in computed)
        text = "\n".join(plan.listing())
        assert not [word for word in dead if word in text]
        assert plan.n_steps == sum(n.op in OPS and not OPS[n.op].view for n in toposort(optimized.roots))


@pytest.mark.parametrize("product_first", [True, False])
def test_a_sum_that_broadcasts_is_no_residual(product_first: bool) -> None:
    """linear_add has no broadcast: neither of a bias nor of a product with one row."""
    g = Graph()
    x = g.node("input", (), Type((TOKENS, 64)), "x")
    w = g.node("weight", (), Type((64 if product_first else 1, 64)), "w")
    y = ops.linear(x, w)
    bias = g.node("weight", (), Type((64,)), "bias")
    (root,) = optimize((ops.add(y, bias) if product_first else ops.add(x, y),), context()).roots
    assert root.op == "add" and root.type == x.type


def test_two_devices_take_turns_through_copies() -> None:
    w = tiny.weights("llama", "q8_0")
    targets = Everything("cpu"), Everything("gpu")
    optimized = optimize(
        tiny.build("llama", w, CACHE).roots("tokens"),
        context(*targets, wanted=lambda node: "gpu" if node.name == "blk.1" else "cpu"),
    )
    plan = compile(optimized, Bucket(8, 2), {"cpu": Places(w), "gpu": Places(w)}, state_layout(optimized))
    assert [s.device for s in plan.segments] == ["cpu", "gpu", "cpu"]
    assert [len(s.transfers) for s in plan.segments] == [0, 1, 1], (
        "the residual stream; the rope table is made anew"
    )
    assert all(step.label == "blk.1" or step.op == "rope_table" for step in plan.segments[1].steps)


def test_the_listing_names_every_step() -> None:
    w = tiny.weights("qwen3", "q8_0")
    optimized = optimize(tiny.build("qwen3", w, CACHE).roots("tokens"), context())
    plan = compile(optimized, Bucket(1, 1), {"cpu": Places(w)}, state_layout(optimized))
    lines = list(plan.listing())
    assert len(lines) == plan.n_steps + 1
    assert any("blk.1.attn_q.weight:q8_0" in line for line in lines)
    assert plan.weight_bytes > sum(d.nbytes for n, d in w.tensors.items() if n.startswith("blk"))


def test_verify_finds_what_a_pass_could_break() -> None:
    g = Graph()
    x = g.node("input", (), Type((TOKENS, 4)), "x")
    with pytest.raises(PlanError, match="no such op"):
        verify_graph((g.node("frobnicate", (x,), x.type),))
    with pytest.raises(PlanError, match="the shape rule gives"):
        verify_graph((g.node("add", (x, x), Type((TOKENS, 5))),))
    with pytest.raises(PlanError, match="unknown format"):
        verify_graph((g.node("input", (), Type((1,), "q3_zz"), "y"),))
    i = [g.node("input", (), Type((TOKENS,), "i32"), n) for n in ("ids", "slot", "pos")]
    ring = g.node("state", (), Type((2, 8), "i32"), "tokens")
    put = ops.tokens_put(ring, *i)
    late = ops.tokens_get(ring, i[1], i[2])
    with pytest.raises(PlanError, match="after tokens_put"):
        verify_graph((put, late))
    with pytest.raises(PlanError, match="overwritten twice"):
        verify_graph((put, ops.tokens_put(ring, *i, shift=1)))


def test_verify_finds_a_view_outside_its_buffer() -> None:
    w = tiny.weights("llama", "q8_0")
    optimized = optimize(tiny.build("llama", w, CACHE).roots("tokens"), context())
    plan = compile(optimized, Bucket(4, 1), {"cpu": Places(w)}, state_layout(optimized))
    plan.segments[0].view_table["offset"][3] = 1 << 40
    with pytest.raises(PlanError, match="ends at"):
        verify_plan(plan)


def test_constants_are_folded() -> None:
    g = Graph()
    one, two = g.const(np.ones(4, np.float32), "f32"), g.const(np.full(4, 2, np.float32), "f32")
    x = g.node("input", (), Type((TOKENS, 4)), "x")
    (root,) = fold((ops.mul(x, ops.add(one, two)),), context())
    assert root.src[1].op == "const" and root.src[1].arg("value").array.tolist() == [3] * 4
