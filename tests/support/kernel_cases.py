"""Test cases of every kernel, and the comparison of a result with the op's definition. Cases of plain ops are
here; those of attention, experts, fused ops and sampling are in the files beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

import attention_cases
import context_cases
import elementwise_cases
import expert_cases
import fused_cases
import latent_cases
import numpy as np
import recurrent_cases
from accuracy import nmse
from one_step import (
    ACTIVATIONS,
    CASES,
    MORE_WEIGHTS,
    WEIGHTS,
    Case,
    case,
    cases_of,
    encode,
    extremes,
    f32,
    i32,
    random_blocks,
)
from sampling_cases import masked_cases, report_cases, sample_cases

from satchel.quant import FORMATS
from satchel.runtime.graph import Array
from satchel.runtime.ops import OPS

CASES.update(attention_cases.CASES)
CASES.update(context_cases.CASES)
CASES.update(elementwise_cases.CASES)
CASES.update(expert_cases.CASES)
CASES.update(fused_cases.CASES)
CASES.update(latent_cases.CASES)
CASES.update(recurrent_cases.CASES)

# Collectives need a group of devices; tests/runtime/engine/test_group.py runs them.
OP_NAMES = [name for name, op in OPS.items() if not op.view and name != "copy" and not op.collective]
# Fused ops that the CPU lacks, which has no launches to save: steps for few tokens. GPUs that pack weights
# have those of packed ones.
PACKED_STEPS = {
    f"{norm}_linear{gate}" for norm in ("norm", "post_norm") for gate in ("", "_swiglu", "_geglu")
}
# CUDA alone has the others for few tokens, and that of recurrent layers.
CUDA_ALONE = {
    "norm_expert_swiglu",
    "expert_linear_sum",
    "expert_sum_add",
    "rope_latent_write",
    "gated_scan_write",
}
FUSED_STEPS = (
    CUDA_ALONE
    | PACKED_STEPS
    | {"rope_qkv_attention", "rope_qkv_write", "rms_norm_add", "geglu", "expert_gate_limited"}
)
CPU_OPS = [name for name in OP_NAMES if name not in FUSED_STEPS]


@case("get_rows")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in (*WEIGHTS, *MORE_WEIGHTS):
        w = random_blocks(rng, format, 9, 512)
        yield Case(format, ((w, format), i32(3, 0, 8, 3)), (4, 512), bound=0)


@case("get_rows_part")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ("f32", "q8_0", "q4_k"):
        w = random_blocks(rng, format, 9, 512)
        yield Case(format, ((w, format), i32(9, 4, 5, 13, 14, 0)), (6, 512), bound=0, args={"first": 5})


@case("pad")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for before, after in ((0, 128), (128, 0), (3, 5)):
        args = {"before": before, "after": after}
        yield Case(f"{before} {after}", (f32(rng, 4, 384),), (4, 384 + before + after), bound=0, args=args)
        heads = (4, 3, 40 + before + after)
        yield Case(f"{before} {after} heads", (f32(rng, 4, 3, 40),), heads, bound=0, args=args)


@case("gather")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for tokens, n, k in ((1, 8, 2), (40, 300, 7), (3, 1, 1)):
        ids = (rng.integers(0, n, (tokens, k)).astype(np.int32), "i32")
        table = (rng.integers(-(2**31), 2**31, n).astype(np.int32), "i32")
        yield Case(f"{tokens}x{n}", (ids, table), (tokens, k), "i32", bound=0)
        yield Case(f"{tokens}x{n} f32", (ids, f32(rng, n)), (tokens, k), bound=0)
    few = np.array([0.0, -0.0, 3e38, 1e-45, np.inf, -np.inf, np.nan], np.float32)
    every = (np.arange(14, dtype=np.int32).reshape(2, 7) % 7, "i32")
    yield Case("extremes", (every, (few, "f32")), (2, 7), bound=0)


@case("gather_rows")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("f32", (f32(rng, 6, 40), i32(5, 0)), (2, 40), bound=0)
    yield Case("q8_0", ((encode("q8_0", f32(rng, 6, 64)[0]), "q8_0"), i32(2, 2, 1)), (3, 64), "q8_0", bound=0)


def linear_cases(
    rng: np.random.Generator, format: str, t: int, k: int, rows: tuple[int, ...], by: str = ""
) -> Case:
    """Rows that are not a multiple of the activation format's block have float32 activations; so do formats
    for whose activations some instruction sets lack products.
    """
    act = FORMATS[format].act or "f32"
    act = "f32" if act == "bf16x2" else act
    act = by or ("f32" if k % FORMATS[act].block else act)
    x = encode(act, f32(rng, t, k)[0])
    weights = tuple((random_blocks(rng, format, n, k), format) for n in rows)
    return Case(f"{format}-{t}x{k}{by}", ((x, act), *weights), (t, sum(rows)), bound=1e-10)


@case("linear")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in WEIGHTS:
        block = max(FORMATS[format].block, 32)
        for t, k, rows in (
            (1, 2 * block, (33,)),
            (13, 768, (70, 5)),
            (3, 3 * block, (1, 2, 16)),
            (15, 256, (130,)),
        ):
            yield linear_cases(rng, format, t, k, rows)
    for format in MORE_WEIGHTS:
        block = max(FORMATS[format].block, 32)
        yield linear_cases(rng, format, 1, 2 * block, (33,))
        yield linear_cases(rng, format, 13, 768, (18, 5))
    for format in (*WEIGHTS[3:], *MORE_WEIGHTS[:-1]):
        yield linear_cases(rng, format, 11, 3 * FORMATS[format].block, (17,), "bf16")
    for format in ("f32", "f16", "bf16"):
        yield linear_cases(rng, format, 2, 78, (5,))
    x = (encode("a8_256", f32(rng, 5, 512)[0]), "a8_256")
    mixed = tuple((random_blocks(rng, f, n, 512), f) for f, n in (("q4_k", 32), ("q6_k", 48), ("q5_k", 3)))
    yield Case("mixed", (x, *mixed), (5, 83), bound=1e-10)


@case("linear_add")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in WEIGHTS:
        for t in (1, 6):
            plain = linear_cases(rng, format, t, 512, (40,))
            yield Case(plain.name, (*plain.inputs, f32(rng, t, 40)), (t, 40), bound=plain.bound)


@case("quantize")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ACTIVATIONS:
        for k in (256, 1536):
            yield Case(f"{format}-{k}", (f32(rng, 5, k),), (5, k), format, {"format": format}, 0)
        bad = extremes(rng, 9, 512)
        yield Case(f"{format}-extreme", ((bad, "f32"),), (9, 512), format, {"format": format}, 0)
        bad = f32(rng, 4, 256)[0]
        bad[0, 3], bad[1, 200], bad[2, 31] = np.inf, np.nan, -np.inf
        yield Case(f"{format}-not-finite", ((bad, "f32"),), (4, 256), format, {"format": format}, 0)


@case("rms_norm")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for shape in ((1, 512), (5, 77), (3, 4, 64), (40, 300)):
        yield Case(str(shape), (f32(rng, *shape), f32(rng, shape[-1])), shape, args={"eps": 1e-6})
    for scale in (0.0, 1e-18, 1e15):
        yield Case(f"x{scale}", (f32(rng, 2, 64, scale=scale), f32(rng, 64)), (2, 64), args={"eps": 1e-5})


@case("rms_norm_add")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for shape in ((1, 512), (2, 1024), (5, 77), (3, 4, 64), (40, 300)):
        inputs = (f32(rng, *shape), f32(rng, shape[-1]), f32(rng, *shape))
        yield Case(str(shape), inputs, shape, args={"eps": 1e-6})
    for scale in (0.0, 1e-18, 1e15):
        inputs = (f32(rng, 2, 64, scale=scale), f32(rng, 64), f32(rng, 2, 64, scale=scale))
        yield Case(f"x{scale}", inputs, (2, 64), args={"eps": 1e-5})


@case("norm_quantize")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ACTIVATIONS:
        args = {"eps": 1e-6, "format": format}
        yield Case(format, (f32(rng, 5, 768), f32(rng, 768)), (5, 768), format, args, 1e-5)


@case("swiglu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("random", (f32(rng, 5, 77, scale=3), f32(rng, 5, 77)), (5, 77))
    wide = np.linspace(-110, 110, 4096, dtype=np.float32).reshape(2, -1)
    yield Case("wide", ((wide, "f32"), f32(rng, 2, 2048)), (2, 2048))


@case("swiglu_quantize")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for format in ACTIVATIONS:
        yield Case(
            format, (f32(rng, 3, 2304), f32(rng, 3, 2304)), (3, 2304), format, {"format": format}, 1e-5
        )


def pair_cases(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("same", (f32(rng, 5, 33), f32(rng, 5, 33)), (5, 33), bound=0)
    yield Case("row", (f32(rng, 5, 33), f32(rng, 33)), (5, 33), bound=0)
    yield Case("one", (f32(rng, 5, 3, 11), f32(rng, 1, 3, 11)), (5, 3, 11), bound=0)
    yield Case("large", (f32(rng, 50, 512), f32(rng, 50, 512)), (50, 512), bound=0)
    yield from broadcast_cases(rng)


def broadcast_cases(rng: np.random.Generator) -> Iterator[Case]:
    """Second operands of every shape that broadcasts to the first; square ones, whose sizes do not reveal the
    dimension; and values whose sums and products overflow, underflow or are NaN.
    """
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((5, 33), (5, 1)), ((5, 33), (1, 33)), ((5, 33), (1,)), ((5, 33), (1, 1)), ((9,), (9,)), ((9,), (1,)),
        ((7, 7), (7,)), ((7, 7), (7, 1)), ((50, 512), (50, 1)), ((1, 300), (1, 1)),
        ((5, 3, 11), (5, 1, 1)), ((5, 3, 11), (3, 11)), ((5, 3, 11), (3, 1)), ((5, 3, 11), (11,)),
        ((5, 3, 11), (5, 3, 1)), ((5, 3, 11), (5, 1, 11)), ((6, 6, 6), (6,)), ((6, 6, 6), (6, 1)),
        ((6, 6, 6), (6, 1, 1)), ((6, 6, 6), (6, 6)), ((5, 2, 3, 4), (5, 1, 3, 1)), ((5, 2, 3, 4), (2, 1, 4)),
    ]  # fmt: skip
    for a, b in shapes:
        yield Case(f"{a} {b}", (f32(rng, *a), f32(rng, *b)), a, bound=0)
    few = np.array([0.0, -0.0, 3e38, -3e38, 1e-15, np.inf, -np.inf, np.nan, 1.0], np.float32)
    wide = (np.tile(few, (9, 5)), "f32")
    yield Case("extreme numbers of rows", (wide, (few.reshape(9, 1), "f32")), (9, 45), bound=0)
    yield Case("extreme rows", (wide, (np.resize(few[::-1], 45), "f32")), (9, 45), bound=0)


CASES["add"] = CASES["mul"] = pair_cases


@case("tokens_put")
def _(rng: np.random.Generator) -> Iterator[Case]:
    ring = rng.integers(0, 99, (3, 8)).astype(np.int32)
    for shift in (0, 1):
        inputs = ((ring, "i32"), i32(7, -1, 9, 11), i32(0, 1, 2, 2), i32(0, 3, 7, 20))
        yield Case(str(shift), inputs, (), "i32", {"shift": shift}, 0)


@case("tokens_get")
def _(rng: np.random.Generator) -> Iterator[Case]:
    ring = rng.integers(0, 99, (3, 8)).astype(np.int32)
    yield Case("ring", ((ring, "i32"), i32(0, 1, 2), i32(0, 7, 20)), (3,), "i32", bound=0)


CASES["sample"], CASES["sample_masked"], CASES["logprobs"] = sample_cases, masked_cases, report_cases


def check(one: Case, got: Array, want: Array) -> None:
    if one.bound == 0:
        same = got.tobytes() == np.ascontiguousarray(want, got.dtype).tobytes()
        assert same or np.array_equal(got, want, equal_nan=got.dtype.kind == "f"), one.name
        return
    decode = FORMATS[one.format].decode
    found, meant = decode(got), decode(want)
    assert np.array_equal(np.isnan(found), np.isnan(meant)), one.name
    assert nmse(np.nan_to_num(found), np.nan_to_num(meant)) <= one.bound, one.name


def row(one: Case, t: int, split: tuple[int, ...]) -> Case:
    """The same call for token t alone. split: the inputs that have a row per token."""
    inputs = tuple((a[t : t + 1], f) if i in split else (a, f) for i, (a, f) in enumerate(one.inputs))
    return Case(one.name, inputs, (1, *one.shape[1:]), one.format, one.args)


def wrong(op: str, index: int, values: list[int] | list[list[int]]) -> Case:
    one = cases_of(op)[0]
    inputs = list(one.inputs)
    inputs[index] = (np.array(values, np.int32), "i32")
    return Case(one.name, tuple(inputs), one.shape, one.format, one.args)


# Calls of `wrong`: step-block values that point out of bounds.
WRONG: list[tuple[str, int, list[int] | list[list[int]]]] = [
    ("get_rows", 1, [3, 9, 0, 0]),
    ("get_rows", 1, [-1, 0, 0, 0]),
    ("get_rows_part", 1, [-1, 0, 0, 0, 0, 0]),
    ("gather", 0, [[0, 8]]),
    ("gather", 0, [[-1, 0]]),
    ("gather_rows", 1, [6, 0]),
    ("gather_rows", 1, [-1, 0]),
    ("kv_write", 2, [0, 2, 1, 0]),
    ("kv_write", 3, [0, 15, 16, 4000]),
    ("kv_write", 3, [-1, 0, 0, 0]),
    ("kv_write_part", 2, [0, 2, 1, 0]),
    ("kv_write_part", 3, [-1, 0, 0, 0]),
    ("attention_parts", 3, [9] * 14),
    ("attention_parts", 4, [2**31 - 1] * 14),
    ("attention_parts", 5, [[-1] * 48] * 2),
    ("attention_parts", 5, [[2**20] * 48] * 2),
    ("attention", 3, [9] * 40),
    ("attention", 4, [2**31 - 1] * 40),
    ("attention", 4, [-5] * 40),
    ("absorbed_attention", 3, [-1] * 83),
    ("absorbed_attention", 4, [2**31 - 1] * 83),
    ("absorbed_attention", 5, [[2**20] * 8] * 3),
    ("expanded_attention", 3, [9] * 83),
    ("expanded_attention", 4, [2**30] * 83),
    ("expanded_attention", 5, [[-1] * 8] * 3),
    ("index_positions", 3, [9] * 8),
    ("index_positions", 4, [-1] * 8),
    ("index_positions", 5, [[2**20] * 30] * 3),
    ("sparse_attention", 3, [3] * 8),
    ("sparse_attention", 4, [-1] * 8),
    ("sparse_attention", 5, [[2**20] * 30] * 3),
    ("sparse_attention", 6, [[0, 2**30]] * 8),
    ("sparse_attention", 6, [[-1, 0]] * 8),
    ("tokens_put", 2, [0, 1, 2, 3]),
    ("tokens_get", 1, [0, -1, 2]),
    ("short_conv", 3, [3]),
    ("short_conv", 4, [40]),
    ("short_conv", 4, [-1]),
    ("conv_write", 2, [1] * 30 + [9] * 5),
    ("gated_scan", 6, [-1]),
    ("gated_scan", 7, [2**31 - 1]),
    ("scan_write", 5, [40] * 35),
]
