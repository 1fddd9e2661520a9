"""A mixture of experts from its file to its logits: bad files are named, each pass does its part, weights are
counted as they are read, and llama.cpp computes the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file
import toy_vocab
from devices import needs
from peer import peer_logits

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata, TensorSource, open_gguf, write_gguf
from satchel.formats.quantize import find_recipe, quantize_file
from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import LEAVES, ROWS, TOKENS, Type, toposort
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.layers.mixture import gated_row, rescaled
from satchel.runtime.ops import evaluate
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.weights.weights import check_tensors

ARCH = "qwen3moe"
CACHE = Cache(context=tiny.CONTEXT)
compiled = needs("cpu")


# --- contradictory files


def build(changed: dict[str, Any], w: tiny.TinyWeights | None = None) -> None:
    values = dict(tiny.metadata(ARCH).items()) | {f"{ARCH}.{k}": v for k, v in changed.items()}
    meta = Metadata.of({k: v for k, v in values.items() if v is not None}, "x.gguf")
    find_arch(ARCH)(HParams(meta, ARCH), w or tiny.weights(ARCH), CACHE).build()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("expert_used_count", tiny.EXPERTS + 1, r"expert_used_count: 8 of 7 experts \(expert_count\)"),
        ("expert_used_count", 0, "expert_used_count"),
        ("expert_used_count", None, "expert_used_count"),
        ("expert_count", 0, "expert_count"),
        ("expert_count", -1, "expert_count"),
        ("expert_count", 1 << 20, "expert_count"),
        ("expert_count", None, "expert_count"),
        ("expert_count", tiny.EXPERTS + 1, r"blk.0.ffn_gate_inp.weight: expected shape \(8, 256\)"),
        ("expert_feed_forward_length", None, "expert_feed_forward_length"),
        ("expert_feed_forward_length", 512, r"blk.0.ffn_gate_exps.weight: expected shape \(7, 512, 256\)"),
    ],
)
def test_bad_values_name_the_key_or_the_tensor(key: str, value: int | None, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build({key: value})


@pytest.mark.parametrize("part", ["gate_inp", "gate_exps", "up_exps", "down_exps"])
def test_a_missing_part_is_named(part: str) -> None:
    w = tiny.weights(ARCH)
    del w.tensors[f"blk.1.ffn_{part}.weight"]
    with pytest.raises(ModelError, match=f"blk.1.ffn_{part}.weight is missing"):
        build({}, w)


def test_experts_of_a_flat_matrix_are_refused() -> None:
    w = tiny.weights(ARCH)
    w.put("blk.1.ffn_up_exps.weight", np.zeros((tiny.EXPERTS * tiny.EXPERT_FFN, tiny.WIDTH), np.float32))
    with pytest.raises(ModelError, match=r"ffn_up_exps.weight: expected shape \(7, 256, 256\)"):
        build({}, w)


def test_a_value_that_is_no_number_is_found_in_any_expert(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "x.gguf", ARCH)
    name = "blk.1.ffn_up_exps.weight"
    with open_gguf(path) as gguf:
        check_tensors(gguf)
        info = gguf.tensors[name]
        at = info.offset + 3 * (info.nbytes // tiny.EXPERTS)
    data = bytearray(path.read_bytes())
    data[at : at + 2] = b"\x00\x7e"
    path.write_bytes(data)
    with open_gguf(path) as gguf, pytest.raises(ModelError, match=f"{name}: row {3 * tiny.EXPERT_FFN} "):
        check_tensors(gguf)


# --- the definitions


def test_experts_are_a_weighted_sum_of_feed_forwards() -> None:
    """The ops together, against each token's experts one after the other."""
    rng = np.random.default_rng(0)
    t, e, k, d, n = 6, 5, 2, 8, 4
    x, logits = rng.standard_normal((t, d)).astype(np.float32), rng.standard_normal((t, e)).astype(np.float32)
    gate, up = (rng.standard_normal((e, n, d)).astype(np.float32) for _ in range(2))
    down = rng.standard_normal((e, d, n)).astype(np.float32)
    ids = ops.top_experts.define(logits, k=k)
    inner = ops.expert_swiglu.define(x, gate, up, ids)
    weights = ops.expert_weights.define(logits, ids, norm=1)
    got = ops.expert_sum.define(ops.expert_linear.define(inner, down, ids), weights)
    for i in range(t):
        best = np.argsort(-logits[i])[:k]
        p = np.exp(logits[i, best])
        want = np.zeros(d)
        for chosen, share in zip(best, p / p.sum(), strict=True):
            g, u = gate[chosen] @ x[i], up[chosen] @ x[i]
            want += share * (down[chosen] @ (g / (1 + np.exp(-g)) * u))
        np.testing.assert_allclose(got[i], want, rtol=1e-4, atol=1e-5)


def test_shapes_that_do_not_meet_are_refused() -> None:
    g = tiny.build(ARCH, tiny.weights(ARCH), CACHE).logits.graph
    types = {"x": Type((4, 8)), "own": Type((4, 3, 8)), "w": Type((5, 6, 8)), "ids": Type((4, 2), "i32")}
    node = {name: g.node("weight", (), type, name) for name, type in types.items()}
    assert ops.expert_linear(node["x"], node["w"], node["ids"]).shape == (4, 2, 6)
    for operands in (("own", "w", "ids"), ("x", "x", "ids"), ("x", "ids", "ids")):
        with pytest.raises(TypeError, match="expert product"):
            ops.expert_linear(*(node[n] for n in operands))
    for k in (0, 9):
        with pytest.raises(TypeError, match="top_experts"):
            ops.top_experts(node["x"], k=k)


@pytest.mark.parametrize("flat", [True, False])
def test_a_shared_expert_is_gated_by_one_number_of_each_token(flat: bool) -> None:
    rng, w, name = np.random.default_rng(3), tiny.TinyWeights(), "blk.0.ffn_gate_inp_shexp.weight"
    weight = rng.standard_normal(tiny.WIDTH).astype(np.float32)
    w.put(name, weight if flat else weight.reshape(1, -1))
    a = find_arch("qwen2moe")(HParams(tiny.metadata("qwen2moe"), "qwen2moe"), w, CACHE)
    x, y = (rng.standard_normal((5, tiny.WIDTH)).astype(np.float32) for _ in range(2))
    gated = gated_row(a, *(a.input(n, Type((TOKENS, tiny.WIDTH))) for n in "xy"), 0, flat)
    (got,) = evaluate((gated,), {"x": x, "y": y, **w.tensors})
    np.testing.assert_allclose(got, y / (1 + np.exp(-(x @ weight)))[:, None], rtol=1e-5, atol=1e-6)
    assert [n.op for n in toposort((gated,)) if n.op not in LEAVES] == ["linear", "sigmoid", "mul"]


def test_weights_of_experts_are_multiplied_with_the_factor_of_each() -> None:
    rng, w, name = np.random.default_rng(4), tiny.TinyWeights(), "blk.0.ffn_down_exps.scale"
    factors, share = rng.standard_normal(8).astype(np.float32), rng.random((5, 3)).astype(np.float32)
    w.put(name, factors)
    a = find_arch("qwen2moe")(HParams(tiny.metadata("qwen2moe"), "qwen2moe"), w, CACHE)
    ids = rng.integers(0, 8, (5, 3)).astype(np.int32)
    inputs = a.input("share", Type((TOKENS, 3))), a.input("chosen", Type((TOKENS, 3), "i32"))
    made = rescaled(a, *inputs, 0, 8)
    (got,) = evaluate((made,), {"share": share, "chosen": ids})
    np.testing.assert_array_equal(got, share * factors[ids])
    assert [n.op for n in toposort((made,)) if n.op not in LEAVES] == ["gather", "mul"]


# --- passes, plans, counts


@compiled
def test_the_plan_fuses_gate_and_up_and_quantizes_each_row_once(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "x.gguf", ARCH, "q4_k")
    with open_gguf(path) as gguf, find_backend("cpu").open(threads=1) as device:
        run = dry_run(gguf, [device])
        plan = run.plan(4)
        share = next(iter(run.shares()))
    nodes = [n for n in toposort(run.optimized.roots) if n.name == "blk.1"]
    steps = [n.op for n in nodes if n.op.startswith(("expert", "top", "swiglu"))]
    assert steps == ["top_experts", "expert_swiglu", "expert_linear", "expert_weights", "expert_sum"]
    gated = next(n for n in nodes if n.op == "expert_swiglu")
    assert gated.src[0].op == "quantize" and len(gated.src[0].shape) == 2
    last = [n for n in toposort(run.optimized.roots) if n.name == f"blk.{tiny.LAYERS - 1}"]
    assert all(n.shape[0] == ROWS for n in last if n.op.startswith(("expert", "top")))
    assert plan and share.weights > 0


@compiled
def test_only_the_experts_that_are_used_count_as_read(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "x.gguf", ARCH, "q8_0")
    with open_gguf(path) as gguf, find_backend("cpu").open(threads=1) as device:
        one = gguf.tensors["blk.0.ffn_down_exps.weight"].nbytes // tiny.EXPERTS
        run = dry_run(gguf, [device])
        for tokens, experts in ((1, tiny.USED), (2, 2 * tiny.USED), (4, tiny.EXPERTS), (64, tiny.EXPERTS)):
            steps = [s for s in run.plan(tokens).segments[0].steps if s.label == "blk.0"]
            read = {s.op: s.weight_bytes for s in steps if s.op.startswith("expert")}
            assert (read["expert_swiglu"], read["expert_linear"]) == (2 * experts * one, experts * one)


# --- quantizing


def test_each_expert_is_quantized_as_a_matrix_of_its_own(tmp_path: Path) -> None:
    source = tiny_file.write_model(tmp_path / "f32.gguf", ARCH, "f32")
    quantize_file(source, tmp_path / "q.gguf", find_recipe("Q4_K_M"))
    with open_gguf(source) as before, open_gguf(tmp_path / "q.gguf") as after:
        for name, info in after.tensors.items():
            if "gate_inp" in name:
                assert info.format == "f32"
            elif "_exps" in name:
                assert info.format in ("q4_k", "q6_k")
                encode = FORMATS[info.format].encode
                assert encode is not None
                wanted = encode(before.array(name)[3], None)
                np.testing.assert_array_equal(after.array(name)[3], wanted)


# --- llama.cpp on the same file

SHAPE = {"embedding_length": 512, "block_count": 2, "expert_count": 16, "expert_used_count": 4,
         "expert_feed_forward_length": 256, "feed_forward_length": 1024, "attention.head_count": 8,
         "attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64,
         "context_length": 256, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}  # fmt: skip


def write_random(path: Path, format: str) -> Path:
    """A random qwen3moe file with a byte-level vocabulary; its router decides clearly."""
    rng, vocabulary = np.random.default_rng(0), toy_vocab.byte_level()
    encode = FORMATS[format].encode
    assert encode is not None
    d, e, n = (SHAPE[k] for k in ("embedding_length", "expert_count", "expert_feed_forward_length"))
    heads, kv = 8 * 64, 2 * 64
    tensors = []

    def put(name: str, *shape: int, norm: bool = False, kind: str = format, gain: float = 1.0) -> None:
        x = rng.standard_normal(shape) * (0.1 if norm else gain / np.sqrt(shape[-1])) + (1 if norm else 0)
        x = np.ascontiguousarray(x, np.float32)
        tensors.append(TensorSource(f"{name}.weight", shape, kind, x if kind == "f32" else encode(x, None)))

    put("token_embd", len(vocabulary["tokenizer.ggml.tokens"]), int(d), gain=np.sqrt(d))
    put("output_norm", int(d), norm=True, kind="f32")
    put("output", len(vocabulary["tokenizer.ggml.tokens"]), int(d))
    for i in range(2):
        for name, width in (("attn_norm", d), ("ffn_norm", d), ("attn_q_norm", 64), ("attn_k_norm", 64)):
            put(f"blk.{i}.{name}", int(width), norm=True, kind="f32")
        for name, rows, columns in (("q", heads, d), ("k", kv, d), ("v", kv, d), ("output", d, heads)):
            put(f"blk.{i}.attn_{name}", int(rows), int(columns))
        put(f"blk.{i}.ffn_gate_inp", int(e), int(d), kind="f32", gain=3)
        for name, rows, columns in (("gate", n, d), ("up", n, d), ("down", d, n)):
            put(f"blk.{i}.ffn_{name}_exps", int(e), int(rows), int(columns))
    keys = {f"{ARCH}.{k}": v for k, v in SHAPE.items()}
    write_gguf(path, {"general.architecture": ARCH, **keys, **vocabulary}, tensors)
    return path


@compiled
@pytest.mark.parametrize("format", ["f32", "bf16"])
def test_logits_are_those_of_llama_cpp(format: str, tmp_path: Path) -> None:
    path = write_random(tmp_path / "x.gguf", format)
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 250, 40)]
    wanted = peer_logits(path, ids)
    with Model.load(path, cache_type="f32", threads=2) as model:
        got = model.logits(ids)
    # llama.cpp rounds what meets BF16 weights to BF16, which may tip a router's choice
    power, bound = np.mean(wanted**2, axis=-1), 1e-4
    errors = np.mean((got - wanted) ** 2, axis=-1) / power
    assert np.ptp(wanted) > 1 and np.median(errors) < bound and (format != "f32" or errors.max() < bound)
