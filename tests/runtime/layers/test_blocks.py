"""The blocks of runtime/layers/blocks.py, each with one flag at a time and alone, against float64 from the
papers' formulas. Rotary embeddings: test_rope.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import tiny

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata
from satchel.quant import FORMATS
from satchel.runtime.graph import TOKENS, Array, Node, Type, leaves
from satchel.runtime.layers import blocks
from satchel.runtime.layers.arch import Cache, HParams
from satchel.runtime.models.llama import Llama
from satchel.runtime.ops import evaluate

WIDTH, FFN, HEADS, KV, DIM, VALUE, T, BASE, EPS = 40, 56, 6, 2, 10, 14, 23, 100.0, 1e-5
RNG = np.random.default_rng(8)
X = RNG.standard_normal((T, WIDTH)).astype(np.float32)


@dataclass(frozen=True)
class Flags:
    """The kind of attention of a family."""

    window: int = 0
    chunk: int = 0
    causal: bool = True
    rope: bool = True
    part: int = DIM
    style: int = 1
    alibi: float = 0.0
    sinks: bool = False
    cap: float = 0.0
    scale: float = 0.0
    bias: bool = False
    joined: bool = False
    norm: str = ""  # shape of the weights on queries and keys, without heads
    centered: bool = False
    heads: int = HEADS
    kv: int = KV
    more: dict[str, object] = field(default_factory=dict)


class Bare(Llama):
    """An architecture that is defined by its flags."""

    flags = Flags()

    def window(self, i: int) -> int:
        return self.flags.window

    def chunk(self, i: int) -> int:
        return self.flags.chunk

    def rotates(self, i: int) -> bool:
        return self.flags.rope

    def alibi(self, i: int) -> float:
        return self.flags.alibi


def bare(f: Flags, w: tiny.TinyWeights, **more: object) -> Bare:
    values: dict[str, object] = {
        "block_count": 1,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "context_length": 64,
        "attention.head_count": f.heads,
        "attention.head_count_kv": f.kv,
        "attention.key_length": DIM,
        "attention.value_length": VALUE,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.layer_norm_epsilon": EPS,
        "attention.causal": f.causal,
        "rope.freq_base": BASE,
        "rope.dimension_count": f.part,
        **f.more,
        **more,
    }
    kind = type(
        "Made", (Bare,), {"flags": f, "causal": f.causal, "centered": f.centered, "rope_style": f.style}
    )
    meta = Metadata.of({f"llama.{k}": v for k, v in values.items()}, "x.gguf")  # type: ignore[misc]
    return kind(HParams(meta, "llama"), w, Cache(context=64, block=8, keys="f32", values="f32"))


def result(a: Bare, y: Node, w: tiny.TinyWeights, x: Array = X) -> Array:
    """y of x, whose rows are the positions from 0 of one slot."""
    values: dict[str, Array] = {"x": x, **w.tensors}
    for state in leaves((y,), "state"):
        values[state.name] = np.full(state.shape, np.nan, FORMATS[state.type.format].dtype)
    values |= {"pos": np.arange(len(x), dtype=np.int32), "slot": np.zeros(len(x), np.int32)}
    for leaf in leaves((y,), "input"):
        if leaf.name.startswith("table"):
            values[leaf.name] = np.arange(a.cache.table_width, dtype=np.int32)[None]
    return evaluate((y,), values)[0]


def given(a: Bare, width: int = WIDTH) -> Node:
    return a.input("x", Type((TOKENS, width)))


def put(w: tiny.TinyWeights, name: str, *shape: int, shift: float = 0.0, scale: float = 0.3) -> Array:
    values = (RNG.standard_normal(shape) * scale + shift).astype(np.float32)
    w.put(name, values)
    return values.astype(np.float64)


# --- attention


def weights_of(f: Flags) -> tuple[tiny.TinyWeights, dict[str, Array]]:
    """A layer's tensors, and the same in float64 by GGUF's name without the layer."""
    w, found = tiny.TinyWeights(), {}
    sizes = {"q": f.heads * DIM, "k": f.kv * DIM, "v": f.kv * VALUE}
    for part, size in sizes.items():
        found[f"{part}.weight"] = RNG.standard_normal((size, WIDTH)) * 0.3
        found[f"{part}.bias"] = RNG.standard_normal(size) * (1.0 if f.bias else 0.0)
    found = {name: values.astype(np.float32).astype(np.float64) for name, values in found.items()}
    for end in ("weight", "bias") if f.bias else ("weight",):
        if f.joined:
            w.put(f"blk.0.attn_qkv.{end}", np.concatenate([found[f"{part}.{end}"] for part in sizes]))
        else:
            for part in sizes:
                w.put(f"blk.0.attn_{part}.{end}", found[f"{part}.{end}"])
    found["output"] = put(w, "blk.0.attn_output.weight", WIDTH, f.heads * VALUE)
    if f.bias:
        found["output.bias"] = put(w, "blk.0.attn_output.bias", WIDTH)
    if f.sinks:
        found["sinks"] = put(w, "blk.0.attn_sinks.weight", f.heads, scale=3.0)
    for part, heads in (("q", f.heads), ("k", f.kv)):
        shape = {"": (), "head": (DIM,), "all": (heads * DIM,), "own": (heads, DIM)}[f.norm]
        if shape:
            found[f"{part}_norm"] = put(w, f"blk.0.attn_{part}_norm.weight", *shape, shift=1.0)
    return w, found


def normed(x: Array, centered: bool) -> Array:
    """RMSNorm (arXiv 1910.07467), or LayerNorm, over the last dimension, without a weight."""
    x = x - x.mean(-1, keepdims=True) if centered else x
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)


def heads_of(f: Flags, w: dict[str, Array], part: str, heads: int, x: Array) -> Array:
    """Queries or keys (T, H, D), normed and rotated."""
    flat = x.astype(np.float64) @ w[f"{part}.weight"].T + w[f"{part}.bias"]
    y = flat.reshape(T, heads, DIM)
    if f.norm == "all":
        y = normed(flat, f.centered).reshape(T, heads, DIM) * w[f"{part}_norm"].reshape(heads, DIM)
    elif f.norm:
        y = normed(y, f.centered) * w[f"{part}_norm"]
    if not f.rope:
        return y
    n = f.part
    one, other = (slice(0, n, 2), slice(1, n, 2)) if f.style == 0 else (slice(0, n // 2), slice(n // 2, n))
    angle = np.arange(T)[:, None, None] / BASE ** (2 * np.arange(n // 2) / n)
    whole, out = (y[..., one] + 1j * y[..., other]) * np.exp(1j * angle), y.copy()
    out[..., one], out[..., other] = whole.real, whole.imag
    return out


def sees(f: Flags, t: int, s: int) -> bool:
    """Whether the token at t sees the one at s."""
    if not f.causal:
        return not f.window or abs(t - s) <= f.window // 2
    near = not f.window or t - s < f.window
    return s <= t and near and (not f.chunk or t // f.chunk == s // f.chunk)


def slopes_of(heads: int) -> list[float]:
    """ALiBi's slopes as its authors' code has them: of a number that is no power of 2, those of the power
    below, then every second of those of the power above.
    """
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]
    below = 1 << (heads.bit_length() - 1)
    return slopes_of(below) + slopes_of(2 * below)[0::2][: heads - below]


def attention64(f: Flags, w: dict[str, Array], x: Array = X) -> Array:
    q, k = heads_of(f, w, "q", f.heads, x), heads_of(f, w, "k", f.kv, x)
    v = (x.astype(np.float64) @ w["v.weight"].T + w["v.bias"]).reshape(T, f.kv, VALUE)
    out, scale = np.zeros((T, f.heads, VALUE)), f.scale or DIM**-0.5
    for h in range(f.heads):
        score = q[:, h] @ k[:, h * f.kv // f.heads].T * scale
        score = f.cap * np.tanh(score / f.cap) if f.cap else score
        if f.alibi:
            score -= f.alibi * slopes_of(f.heads)[h] * np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
        seen = np.array([[sees(f, t, s) for s in range(T)] for t in range(T)])
        p = np.where(seen, np.exp(score), 0.0)
        total = p.sum(-1, keepdims=True) + (np.exp(w["sinks"][h]) if f.sinks else 0.0)
        out[:, h] = p / total @ v[:, h * f.kv // f.heads]
    return out.reshape(T, -1) @ w["output"].T + w.get("output.bias", 0.0)


ATTENTION: dict[str, Flags] = {
    "grouped": Flags(),
    "one key head": Flags(kv=1),
    "a key head each": Flags(kv=6),
    "neighbours": Flags(style=0),
    "no positions": Flags(rope=False),
    "partial rotary": Flags(part=4),
    "partial neighbours": Flags(part=6, style=0),
    "window": Flags(window=5),
    "window of one": Flags(window=1),
    "window as long as the text": Flags(window=T),
    "chunks": Flags(chunk=7),
    "chunks of one": Flags(chunk=1),
    "both ways": Flags(causal=False),
    "both ways, window": Flags(causal=False, window=6),
    "sinks": Flags(sinks=True),
    "sinks, window": Flags(sinks=True, window=3),
    "soft cap": Flags(cap=1.5),
    "scale": Flags(scale=0.7),
    "ALiBi": Flags(alibi=1.0, rope=False, heads=8),
    "ALiBi, heads no power of 2": Flags(alibi=1.0, rope=False),
    "ALiBi scaled": Flags(alibi=0.25, rope=False, cap=2.0),
    "biases": Flags(bias=True),
    "joined": Flags(joined=True),
    "joined, biases": Flags(joined=True, bias=True),
    "norm of each head": Flags(norm="head"),
    "norm of all heads": Flags(norm="all"),
    "norm of its own for each head": Flags(norm="own"),
    "norm of its own, centered": Flags(norm="own", centered=True),
    "norm of each head, centered": Flags(norm="head", centered=True),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_with_one_flag(name: str) -> None:
    f = ATTENTION[name]
    w, values = weights_of(f)
    a = bare(f, w)
    got = result(a, blocks.attention(a, given(a), 0, scale=f.scale, cap=f.cap), w)
    np.testing.assert_allclose(got, attention64(f, values), rtol=0, atol=3e-5)


def test_a_scale_that_the_file_states_counts_before_the_family_s() -> None:
    f = Flags(more={"attention.scale": 0.31})
    w, values = weights_of(f)
    a = bare(f, w)
    got = result(a, blocks.attention(a, given(a), 0, scale=0.9), w)
    np.testing.assert_allclose(got, attention64(Flags(scale=0.31), values), rtol=0, atol=3e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20, 33, 71, 128])
def test_slopes_are_those_of_alibis_authors(heads: int) -> None:
    np.testing.assert_allclose(blocks.alibi_slopes(heads, 0.5), 0.5 * np.array(slopes_of(heads)), rtol=1e-6)


def test_other_slopes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"max_alibi_bias: expected 8\.0, got 16\.0"):
        blocks.usual_alibi(bare(Flags(more={"attention.max_alibi_bias": 16.0}), tiny.TinyWeights()))


@pytest.mark.parametrize(("part", "shape"), [("q_norm", (DIM + 1,)), ("k_norm", (HEADS, DIM))])
def test_a_norm_of_another_shape_is_refused(part: str, shape: tuple[int, ...]) -> None:
    w, _ = weights_of(Flags())
    put(w, f"blk.0.attn_{part}.weight", *shape)
    a = bare(Flags(), w)
    with pytest.raises(ModelError, match=f"attn_{part}.weight: expected shape"):
        blocks.attention(a, given(a), 0)


# --- feed-forward


def gelu64(x: Array, style: int) -> Array:
    if style == blocks.TANH:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS: dict[str, tuple[blocks.Part, Callable[[Array], Array], bool]] = {
    "SwiGLU": (blocks.swiglu, lambda x: x / (1 + np.exp(-x)), True),
    "GeGLU by tanh": (blocks.geglu, lambda x: gelu64(x, blocks.TANH), True),
    "GeGLU by erf": (blocks.geglu_erf, lambda x: gelu64(x, blocks.ERF), True),
    "GELU by tanh": (blocks.mlp_tanh, lambda x: gelu64(x, blocks.TANH), False),
    "GELU by erf": (blocks.mlp_erf, lambda x: gelu64(x, blocks.ERF), False),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("name", "joined"), [*((n, False) for n in ACTIVATIONS), *((n, True) for n in ACTIVATIONS if "GLU" in n)]
)
def test_feed_forward_with_one_flag(name: str, joined: bool, bias: bool) -> None:
    part, act, gated = ACTIVATIONS[name]
    w, x = tiny.TinyWeights(), X.astype(np.float64)
    made = [put(w, f"blk.0.ffn_{n}.weight", FFN, WIDTH) for n in (("gate", "up") if gated else ("up",))]
    shift = [put(w, f"blk.0.ffn_{n}.bias", FFN) for n in (("gate", "up") if gated else ("up",))]
    if joined:
        for end, parts in (("weight", made), ("bias", shift)):
            w.tensors.pop(f"blk.0.ffn_gate.{end}")
            w.put(f"blk.0.ffn_up.{end}", np.concatenate(parts))
    down, last = put(w, "blk.0.ffn_down.weight", WIDTH, FFN), put(w, "blk.0.ffn_down.bias", WIDTH)
    if not bias:
        shift, last = [np.zeros(FFN)] * len(shift), np.zeros(WIDTH)
        for n in [n for n in w.tensors if n.endswith("bias")]:
            w.tensors.pop(n)
    products = [x @ m.T + b for m, b in zip(made, shift, strict=True)]
    want = act(products[0]) * (products[1] if gated else 1) @ down.T + last
    a = bare(Flags(), w)
    np.testing.assert_allclose(result(a, part(a, given(a), 0), w), want, rtol=0, atol=5e-5)


# --- layers: what is added to the residual stream


def times(by: float) -> blocks.Part:
    """Stands for a part of a layer."""
    return lambda a, x, i: blocks.scaled(a, x, by)


def residuals(kind: str, n: dict[str, Array], x: Array) -> Array:
    """x after one layer whose attention is 3 times what it sees, and whose feed-forward -2 times."""
    if kind == "before":
        x = x + 3 * normed(x, False) * n["attn_norm"]
        return x - 2 * normed(x, False) * n["ffn_norm"]
    if kind == "before, scaled":
        x = x + 0.22 * 3 * normed(x, False) * n["attn_norm"]
        return x - 0.22 * 2 * normed(x, False) * n["ffn_norm"]
    first = normed(x, False) * n["attn_norm"] if kind == "around" else x
    x = x + normed(3 * first, False) * n["post_attention_norm"]
    second = normed(x, False) * n["ffn_norm"] if kind == "around" else x
    return x + normed(-2 * second, False) * n["post_ffw_norm"]


@pytest.mark.parametrize("kind", ["before", "before, scaled", "around", "behind"])
def test_norms_and_residuals_of_a_layer(kind: str) -> None:
    w = tiny.TinyWeights()
    names = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
    n = {name: put(w, f"blk.0.{name}.weight", WIDTH, shift=1.0) for name in names}
    a, parts = bare(Flags(), w), {"attend": times(3.0), "feed": times(-2.0)}
    if kind.startswith("before"):
        y = blocks.pre_norm_layer(a, given(a), 0, residual=0.22 if "scaled" in kind else 1.0, **parts)
    else:
        y = blocks.post_norm_layer(a, given(a), 0, before=kind == "around", **parts)
    np.testing.assert_allclose(result(a, y, w), residuals(kind, n, X.astype(np.float64)), rtol=0, atol=2e-5)


@pytest.mark.parametrize("norms", [1, 2])
def test_parallel_parts_see_what_came_in(norms: int) -> None:
    """x + attention(norm(x)) + feed_forward(norm(x)): one norm for both (GPT-J, Command R), or two (Falcon
    40B).
    """
    f = Flags(centered=True)
    w, values = weights_of(f)
    first = put(w, "blk.0.attn_norm.weight", WIDTH, shift=1.0)
    shift = put(w, "blk.0.attn_norm.bias", WIDTH)
    other = put(w, "blk.0.attn_norm_2.weight", WIDTH, shift=1.0)
    seen = "attn_norm" if norms == 1 else "attn_norm_2"
    a, x = bare(f, w), X.astype(np.float64)
    got = result(a, blocks.parallel_layer(a, given(a), 0, feed=times(-2.0), seen=seen), w)
    fed = normed(x, True) * first + shift
    heard = fed if norms == 1 else normed(x, True) * other
    want = x + attention64(f, values, heard) - 2 * fed
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-5)


# --- outside the layers


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_heads_tied_and_of_their_own(tied: bool, bias: bool) -> None:
    """A bias of the head counts where the head is one."""
    w, x = tiny.TinyWeights(), X.astype(np.float64)
    rows = put(w, "token_embd.weight", 33, WIDTH)
    norm = put(w, "output_norm.weight", WIDTH, shift=1.0)
    if not tied:
        rows = put(w, "output.weight", 33, WIDTH)
    shift = put(w, "output.bias", 33) if bias else np.zeros(33)
    a = bare(Flags(), w)
    want = normed(x, False) * norm @ rows.T + (0 if tied else shift)
    np.testing.assert_allclose(result(a, a.head(given(a)), w), want, rtol=0, atol=3e-5)


@pytest.mark.parametrize("factor", [1.0, 12.0, 0.5, math.sqrt(WIDTH)])
def test_embeddings_times_a_factor(factor: float) -> None:
    w = tiny.TinyWeights()
    rows = put(w, "token_embd.weight", 33, WIDTH)
    a, ids = bare(Flags(), w), np.array([0, 32, 7, 7], np.int32)
    y = blocks.scaled(a, a.embed(a.ids), factor)
    (got,) = evaluate((y,), {"ids": ids, **w.tensors})
    np.testing.assert_allclose(got, rows[ids] * factor, rtol=1e-6)


@pytest.mark.parametrize("cap", [0.0, 2.0, 30.0])
def test_logits_within_a_soft_cap(cap: float) -> None:
    a = bare(Flags(more={"final_logit_softcapping": cap}), tiny.TinyWeights())
    x = np.concatenate((X, [[1e-30, -1e-3, 1e30, -1e30, 0.0] * (WIDTH // 5)])).astype(np.float32)
    got = result(a, blocks.capped(a, given(a)), tiny.TinyWeights(), x)
    want = cap * np.tanh(x.astype(np.float64) / cap) if cap else x
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_token_types_are_added(rows: int) -> None:
    w = tiny.TinyWeights()
    types = put(w, "token_types.weight", rows, WIDTH) if rows else np.zeros((1, WIDTH))
    a, which = bare(Flags(), w), np.arange(T, dtype=np.int32) % max(rows, 1)
    (got,) = evaluate((blocks.with_segments(a, given(a)),), {"x": X, "segment_ids": which, **w.tensors})
    np.testing.assert_allclose(got, X + types[which], atol=1e-6)


@pytest.mark.parametrize(
    ("stated", "want"),
    [(None, "nnnfnn"), (2, "nfnfnf"), (1, "ffffff"), ([True, False, False, True, True, False], "nffnnf")],
)
def test_which_layers_have_the_window(stated: object, want: str) -> None:
    more = {"block_count": 6} | ({} if stated is None else {"attention.sliding_window_pattern": stated})
    a = bare(Flags(), tiny.TinyWeights(), **more)
    assert "".join("n" if blocks.alternating(a, i, 4) else "f" for i in range(6)) == want


@pytest.mark.parametrize("stated", [0, [True, False], "often", -1])
def test_a_pattern_of_windows_that_is_none_is_refused(stated: object) -> None:
    a = bare(Flags(), tiny.TinyWeights(), block_count=6, **{"attention.sliding_window_pattern": stated})
    with pytest.raises(ModelError, match="sliding_window_pattern"):
        blocks.alternating(a, 0, 4)
