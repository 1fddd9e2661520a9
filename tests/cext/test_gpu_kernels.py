"""Every op on a GPU against its numpy definition: the portable kernels on the emulated GPU, which shuffles
the order of threads, and `pytest -m gpu` on a real one. The cases are those of the CPU's kernels, with
float32 activations.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import fused_cases
import numpy as np
import pytest
from devices import opened, skip_without
from expert_cases import headed, products
from gpus import GPUS, OLDER
from kernel_cases import CUDA_ALONE, FUSED_STEPS, OP_NAMES, PACKED_STEPS, WRONG, check, row, wrong
from one_step import (
    CASES,
    Case,
    cases_of,
    define,
    define_all,
    f32,
    generator,
    pack_inputs,
    plan_of,
    refused,
    run,
    run_all,
)

from satchel import cext
from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array

# Ops that quantize activations. On a GPU activations stay float32, so it has no kernels for these.
QUANTIZED = {"quantize", "norm_quantize", "swiglu_quantize", "linear_swiglu_quantize"}
PRODUCTS = {"linear", "linear_add", "linear_swiglu", "expert_linear", "expert_swiglu", "head_linear"}
# Ops whose operands tensor cores meet in 16 or 8 bits, and the NMSE bound against the definition.
ROUNDED = {"linear", "linear_add", "linear_swiglu", "attention", "sparse_attention", "rope_qkv_attention"}
TENSOR_CORES = 1e-3
TILES = 5e-5  # that of experts' tiles, which meet the activations as bfloat16
LARGE = 600_000  # multiply-adds of a product above which the emulation takes too long
LONG_RUN = 200  # tokens of a sequence; the shorter run passes the border at 512 as well
LONG = 50_000  # positions that all tokens' heads see, beyond which a third of an attention's tokens will do


@pytest.fixture(scope="module", params=[*GPUS, *OLDER])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module")
def name(device: Device) -> str:
    return device.name


def plain(one: Case) -> Case:
    """The call with float32 activations."""
    (x, format), *others = one.inputs
    return replace(one, inputs=((FORMATS[format].decode(x), "f32"), *others))


def bounded(device: Device, op: str, one: Case) -> Case:
    """The call with this device's error bound."""
    return replace(one, bound=TENSOR_CORES) if device.name == "cuda" and op in ROUNDED else one


@functools.cache
def calls_of(op: str, whole: bool = False) -> list[tuple[Case, Array]]:
    """The op's calls with the definition's results. whole: all cases, as on a real GPU; the emulated one
    would take too long. Where EVERY_CASE is set, one case in so many.
    """
    found = [plain(one) for one in CASES[op](generator(op))] if op in PRODUCTS else cases_of(op)
    if op == "attention" and not whole:
        found = [thinned(one, i % 3) for i, one in enumerate(found)]
    if op == "expanded_attention" and not whole:
        found = [one for one in found if one.shape[0] < LONG_RUN]
    found = found[:: int(os.environ.get("EVERY_CASE", "1"))]
    small = [one for one in found if op not in PRODUCTS or one.shape[0] * work(one) < LARGE]
    return [(one, define(op, one)) for one in small]


def thinned(one: Case, first: int) -> Case:
    """Every third token of a long attention, from `first` on. A portable kernel processes each token by
    itself, so the borders that one case skips are in the next.
    """
    q, pos = one.inputs[0][0], one.inputs[4][0]
    if q.shape[0] * q.shape[1] * int(pos.max()) < LONG:
        return one
    chosen = slice(first, None, 3)
    inputs = tuple((a[chosen] if i in (0, 3, 4) else a, f) for i, (a, f) in enumerate(one.inputs))
    return replace(one, inputs=inputs, shape=(len(q[chosen]), *one.shape[1:]))


def work(one: Case) -> int:
    return int(np.prod(one.shape[1:])) * one.inputs[0][0].shape[-1]


@pytest.mark.parametrize("op", [op for op in OP_NAMES if op not in QUANTIZED | CUDA_ALONE | PACKED_STEPS])
def test_op_equals_its_definition(device: Device, op: str) -> None:
    calls = [call for call in calls_of(op, device.name == "cuda") if not refused(device, op, call[0], pad=0)]
    meant = len(calls_of(op, device.name == "cuda"))
    if not calls and device.name == "cuda" and op in FUSED_STEPS:
        pytest.skip(f"{device.info().variant} has no kernel for it")
    assert len(calls) == meant or (device.name == "cuda" and 2 * len(calls) >= meant)
    for one, want in calls:
        check(bounded(device, op, one), run(device, op, one), want)


@pytest.mark.parametrize("op", sorted(QUANTIZED | CUDA_ALONE | PACKED_STEPS))
def test_what_it_lacks_is_refused_by_name(device: Device, op: str) -> None:
    if device.name == "cuda" and op not in QUANTIZED:
        pytest.skip("tests/gpu/test_gpu_fused.py compares it with its parts")
    packs = op in PACKED_STEPS and device.packed(FORMATS["q4_0"].id, 1, 32, 32)
    said = "weights must be packed" if packs else "this backend has no kernel for the op"
    with pytest.raises(DeviceError, match=rf"step 0 \({op}\): {said}"):
        run(device, op, cases_of(op)[0])


@pytest.mark.parametrize(
    ("op", "split"), [("linear", (0,)), ("attention", (0, 3, 4)), ("linear_add", (0, 2))]
)
def test_a_token_does_not_depend_on_its_batch(device: Device, op: str, split: tuple[int, ...]) -> None:
    alone = [one for one, _ in calls_of(op, device.name == "cuda")[::3] if one.args.get("causal", 1)]
    for one in [one for one in alone if not refused(device, op, one, pad=0)]:
        whole = run(device, op, one)
        for t in {0, one.shape[0] - 1}:
            single = row(one, t, split)
            alone = run(device, op, single)
            if device.name == "emulated":
                assert alone[0].tobytes() == whole[t].tobytes(), (one.name, t)
            else:  # kernels for one column and for several columns round differently
                check(bounded(device, op, single), alone, whole[t : t + 1])


@pytest.mark.parametrize("op", ["expert_linear", "expert_swiglu", "head_linear"])
def test_packed_experts_equal_their_definition(device: Device, op: str) -> None:
    """For every format that the device packs, by every kernel that it has for the call: those that meet as
    bfloat16 within its bound, the others more closely.
    """
    seen = set()
    for one, want, weights in packed_experts(device, op):
        seen |= {one.inputs[i][1] for i in weights}
        segment = pack_inputs(device, one, plan_of(op, one, 64)[0], weights)
        for kernel in device.kernels(segment, 0):
            bound = TILES if "expert_tiles" in kernel or "expert_warp" in kernel else 1e-6
            check(
                replace(one, bound=bound, name=f"{one.name} {kernel}"),
                run(device, op, one, packed=weights, kernel=kernel),
                want,
            )
    assert seen == packed_formats(device) or op == "head_linear"


@pytest.mark.parametrize("op", ["expert_linear", "expert_swiglu", "head_linear"])
def test_deterministic_experts_depend_on_their_token_alone(name: str, op: str) -> None:
    """From 43 tokens with three experts on, another kernel gives the same bits."""
    with find_backend(name).open(deterministic=True) as device:
        for one, want, weights in packed_experts(device, op):
            whole = run(device, op, one, packed=weights)
            check(replace(one, bound=1e-6), whole, want)
            last = one.shape[0] - 1
            alone = row(one, last, (0,) if op == "head_linear" else (0, len(one.inputs) - 1))
            assert run(device, op, alone, packed=weights)[0].tobytes() == whole[last].tobytes(), one.name


def packed_formats(device: Device) -> set[str]:
    return {f for f in FORMATS if device.packed(FORMATS[f].id, 6, 16, 256)}


def packed_experts(device: Device, op: str) -> Iterator[tuple[Case, Array, tuple[int, ...]]]:
    """Calls whose weights the device packs, their definition's results, and which inputs are weights."""
    weights = (1, 2) if op == "expert_swiglu" else (1,)
    kept, rng = packed_formats(device), generator(op)
    if not kept:
        pytest.skip(f"{device.name} keeps no stacks in an order of its own")
    if op == "head_linear":
        narrow = [f for f in sorted(kept) if FORMATS[f].block == 32]  # rows shorter than a chunk
        more = [headed(rng, f, t, 150, 128) for f in narrow for t in (40, 300)]
    else:
        sizes = ((2, 512, 150), (90, 512, 150), (300, 256, 550))
        more = [products(rng, f, len(weights), *size, False) for f in sorted(kept) for size in sizes]
    calls = calls_of(op) + [(one, define(op, one)) for one in map(plain, more)]
    yield from ((one, want, weights) for one, want in calls if {one.inputs[i][1] for i in weights} <= kept)


@pytest.mark.parametrize("kind", ["plain", "biases", "norms"])
@pytest.mark.parametrize("format", fused_cases.CACHES)
def test_heads_in_one_step_equal_their_parts(device: Device, format: str, kind: str) -> None:
    """The rotated queries and both caches, bit for bit, where no norm sums in another order."""
    rng = generator(f"{format} {kind}")
    for tokens in (1, 2, 4, 8):
        one = fused_cases.qkv(rng, format, tokens, (4, 2, 64), kind=kind, extreme=tokens > 1)
        found, parts = run_all(device, "rope_qkv_write", one), qkv_parts(device, one)
        wanted = define_all("rope_qkv_write", one)
        for got, part, want in zip(found, parts, wanted, strict=True):
            cached = replace(one, bound=1e-3 if format == "q4_0" else 1e-5, format=format)
            how = one if got is found[0] else cached
            check(how, got, want)
            if kind == "norms":
                check(how, got, part)
            else:
                assert got.tobytes() == part.tobytes()


def qkv_parts(device: Device, one: Case) -> list[Array]:
    """Queries and caches by steps of their own."""
    q, k, v, slot, pos, table, cos_sin, keys, values, *rest = one.inputs
    heads = [q, keys, values]
    for i, extra in enumerate(rest):
        x = heads[i][0]
        if one.args["norms"]:
            heads[i] = (
                run(device, "rms_norm", Case("", (heads[i], extra), x.shape, args={"eps": 1e-6})),
                "f32",
            )
        else:
            flat = x.reshape(len(x), -1)
            heads[i] = (
                run(device, "add", Case("", ((flat, "f32"), extra), flat.shape)).reshape(x.shape),
                "f32",
            )
    args = {"style": one.args["style"]}
    rotated = run(device, "rope", Case("", (heads[0], cos_sin), heads[0][0].shape, args=args))
    place = (slot, pos, table)
    written = run(device, "rope_kv_write", Case("", (k, heads[1], cos_sin, *place), (), k[1], args))
    return [rotated, written, run(device, "kv_write", Case("", (v, heads[2], *place), (), v[1]))]


@pytest.mark.parametrize("kind", ["plain", "biases", "norms"])
@pytest.mark.parametrize("format", fused_cases.CACHES)
def test_attention_of_a_token_in_one_step_equals_its_parts(device: Device, format: str, kind: str) -> None:
    """The result and both caches, bit for bit."""
    if device.name == "cuda":
        pytest.skip("tests/gpu/test_gpu_fused.py compares its kernel with the parts")
    rng = generator(f"{format} {kind}")
    more = ({}, {"window": 7}, {"cap": 5.0, "chunk": 16})
    for i, (past, heads) in enumerate(
        ((0, (2, 2, 64)), (15, (4, 2, 96)), (16, (3, 1, 32)), (70, (6, 2, 128)))
    ):
        one = fused_cases.qkv(rng, format, 1, heads, kind=kind, past=past, style=i % 2)
        args = {**one.args, "scale": heads[2] ** -0.5, **more[i % 3]}
        sinks = (f32(rng, heads[0]),) if i % 2 else ()
        one = replace(one, inputs=(*one.inputs, *sinks), shape=(1, heads[0] * heads[2]), args=args)
        found = run_all(device, "rope_qkv_attention", one)
        for got, part in zip(found, attention_parts(device, one, len(sinks)), strict=True):
            assert got.tobytes() == part.tobytes(), one.name


def attention_parts(device: Device, one: Case, sinks: int) -> list[Array]:
    """rope_qkv_write, then attention over the caches that it has written."""
    own = len(one.inputs) - sinks
    q, keys, values, *place = one.inputs[:6]
    args = {name: one.args[name] for name in ("style", "biases", "norms", "eps")}
    heads = Case("heads", one.inputs[:own], q[0].shape, args=args)
    rotated, *caches = run_all(device, "rope_qkv_write", heads)
    inputs = ((rotated, "f32"), (caches[0], keys[1]), (caches[1], values[1]), *place, *one.inputs[own:])
    args = {name: one.args[name] for name in ("scale", "window", "cap", "chunk") if name in one.args}
    return [run(device, "attention", Case("attention", inputs, one.shape, args=args)), *caches]


@pytest.mark.parametrize(("index", "values"), [(3, [2]), (3, [-1]), (4, [4000]), (4, [-1])])
def test_a_token_outside_of_the_cache_names_the_step(device: Device, index: int, values: list[int]) -> None:
    if device.name == "cuda":
        pytest.skip("it has a kernel of its own")
    one = fused_cases.qkv(generator("outside"), "f16", 1, (4, 2, 64))
    inputs = list(one.inputs)
    inputs[index] = np.array(values, np.int32), "i32"
    one = replace(one, inputs=tuple(inputs), shape=(1, 256), args={**one.args, "scale": 0.1})
    with pytest.raises(DeviceError, match=r"step 0 \(rope_qkv_attention\): .* out of range"):
        run(device, "rope_qkv_attention", one)


def test_attention_in_one_step_is_for_one_token(device: Device) -> None:
    if device.name == "cuda":
        pytest.skip(
            "its kernels take up to 16 tokens, which tests/gpu/test_gpu_fused.py compares with the parts"
        )
    one = fused_cases.qkv(generator("two"), "f16", 2, (4, 2, 64))
    assert refused(
        device, "rope_qkv_attention", replace(one, shape=(2, 256), args={**one.args, "scale": 0.1})
    )


def test_a_limited_gate_equals_its_parts(device: Device) -> None:
    for one in cases_of("expert_gate_limited"):
        gate, gate_bias, up, up_bias, ids = one.inputs
        added = (replace(one, inputs=(x, b, ids), args={}) for x, b in ((gate, gate_bias), (up, up_bias)))
        halves = tuple((run(device, "expert_add", half), "f32") for half in added)
        parts = run(device, "swiglu_limited", replace(one, inputs=halves))
        assert run(device, "expert_gate_limited", one).tobytes() == parts.tobytes(), one.name


def test_an_expert_out_of_range_names_the_limited_gate(device: Device) -> None:
    one = cases_of("expert_gate_limited")[0]
    inputs = (*one.inputs[:4], (np.array([[0, 5]], np.int32), "i32"))
    with pytest.raises(DeviceError, match=r"step 0 \(expert_gate_limited\): .* out of range"):
        run(device, "expert_gate_limited", replace(one, inputs=inputs))


@pytest.mark.parametrize(("index", "values"), [(3, [0, 2]), (4, [0, 4000]), (4, [-1, 0])])
def test_heads_in_one_step_outside_of_the_cache_name_the_step(
    device: Device, index: int, values: list[int]
) -> None:
    one = fused_cases.qkv(generator("outside"), "f16", 2, (4, 2, 64))
    inputs = list(one.inputs)
    inputs[index] = np.array(values, np.int32), "i32"
    with pytest.raises(DeviceError, match=r"step 0 \(rope_qkv_write\): .* out of range"):
        run(device, "rope_qkv_write", replace(one, inputs=tuple(inputs)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, inputs=one.inputs[:-1]), "it takes q, both caches"),
        (lambda one: replace(one, args={**one.args, "norms": 1}), "it takes q, both caches"),
        (lambda one: replace(one, args={**one.args, "style": 2}), "style must be 0 or 1"),
        (lambda one: swapped(one, 7, lambda x: x[:, :1]), "with their caches' H and D"),
        (lambda one: swapped(one, 9, lambda x: x[1:]), "a bias must be f32"),
        (lambda one: swapped(one, 3, lambda x: x[1:]), "slot and pos must be i32"),
        (lambda one: swapped(one, 6, lambda x: x[:, 1:]), "n_rot must be even"),
    ],
)
def test_heads_that_do_not_fit_are_refused(device: Device, change: Callable[[Case], Case], said: str) -> None:
    one = fused_cases.qkv(generator("unfit"), "f16", 2, (4, 2, 64), kind="biases")
    with pytest.raises(DeviceError, match=said):
        run(device, "rope_qkv_write", change(one))


def swapped(one: Case, index: int, change: Callable[[Array], Array]) -> Case:
    inputs = list(one.inputs)
    inputs[index] = np.ascontiguousarray(change(inputs[index][0])), inputs[index][1]
    return replace(one, inputs=tuple(inputs))


@pytest.mark.parametrize(
    ("op", "index", "change", "said"),
    [
        ("absorbed_attention", 0, lambda x: x[:, :, :32], "q must have the keys' D"),
        ("absorbed_attention", 2, lambda x: x[1:], "one cache"),
        ("absorbed_attention", 3, lambda x: x[1:], "slot and pos must be i32"),
        ("sparse_attention", 6, lambda x: x[1:], r"positions must be i32 \(T, k\)"),
        ("expanded_attention", 6, lambda x: x[1:], r"k_b must be \(H, rank, nope\)"),
        ("expanded_attention", 7, lambda x: x[:, :, :32], "disagree about the sizes"),
        ("expanded_attention", 0, lambda x: x[:, :, 32:], "disagree about the sizes"),
        ("expanded_attention", 8, lambda x: x[:, :, :32], "the absorbed rows and the output"),
        ("index_positions", 1, lambda x: x[:, 1:], r"weights f32 \(T, H\)"),
        ("index_positions", 2, lambda x: x[..., :32], "keys must be a cache"),
        ("index_positions", 4, lambda x: x[1:], "slot and pos must be i32"),
    ],
)
def test_latents_that_do_not_fit_are_refused(
    device: Device, op: str, index: int, change: Callable[[Array], Array], said: str
) -> None:
    with pytest.raises(DeviceError, match=said):
        run(device, op, swapped(cases_of(op)[0], index, change))


def test_sparse_attention_to_the_whole_past_is_attention(device: Device) -> None:
    one = next(c for c in cases_of("sparse_attention") if c.inputs[6][0].shape[1] == 400)
    pos = one.inputs[4][0][:, None]
    every = np.where(np.arange(400) <= pos, np.arange(400), -1).astype(np.int32)
    found = run(device, "sparse_attention", replace(one, inputs=(*one.inputs[:6], (every, "i32"))))
    whole = run(device, "attention", replace(one, inputs=one.inputs[:6]))
    if device.name == "cuda":
        check(bounded(device, "attention", one), found, whole)
    else:
        assert found.tobytes() == whole.tobytes()


def test_positions_of_tokens_in_turn_are_the_same(device: Device) -> None:
    """Where scratch has no room for the scores of all tokens, a group makes those of one after the other."""
    for one, want in calls_of("index_positions"):
        check(one, run(device, "index_positions", one, kernel="index_positions"), want)


@pytest.mark.parametrize(
    ("blocks", "first"),
    [(2**16, "index_scores+index_top"), (2**17, "index_positions"), (2**25, "index_positions")],
)
def test_a_far_past_leaves_scratch_for_few_tokens(device: Device, blocks: int, first: str) -> None:
    """16 positions a block: 16 tokens, 8, or less than one fit into the scratch."""
    one = cases_of("index_positions")[0]
    inputs = list(one.inputs)
    for i in (0, 1, 3, 4):
        inputs[i] = np.repeat(inputs[i][0], 2, axis=0), inputs[i][1]
    inputs[5] = np.zeros((1, blocks), np.int32), "i32"
    segment, _ = plan_of("index_positions", replace(one, inputs=tuple(inputs), shape=(16, *one.shape[1:])), 0)
    assert device.kernels(segment, 0)[0] == first


SHARING = (
    "rms_norm",
    "rope_qkv_write",
    "rope_qkv_attention",
    "hadamard",
    "linear",
    "attention",
    "absorbed_attention",
    "expanded_attention",
    "index_positions",
    "sparse_attention",
    "conv_write",
    "gated_scan",
    "scan_write",
    "top_experts",
    "sample",
    "sample_masked",
    "logprobs",
)


@pytest.mark.parametrize("op", SHARING)
def test_the_order_of_threads_changes_nothing(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("emulated")
    found = []
    for seed in ("2", "77"):
        monkeypatch.setenv("SATCHEL_EMULATED_SEED", seed)
        with find_backend("emulated").open() as opened:
            calls = [one for one, _ in calls_of(op)[::5] if not refused(opened, op, one, pad=0)]
            found.append([run(opened, op, one).tobytes() for one in calls])
    assert found[0] == found[1]


@pytest.mark.parametrize(("op", "index", "values"), WRONG)
def test_an_index_out_of_range_names_the_step(device: Device, op: str, index: int, values: list[int]) -> None:
    with pytest.raises(DeviceError, match=rf"step 0 \({op}\): .* out of range"):
        run(device, op, wrong(op, index, values))


# The inputs with a row per token.
RAGGED = {
    "get_rows": (1,), "rms_norm": (0,), "hadamard": (0,), "linear": (0,), "linear_add": (0, 2),
    "linear_swiglu": (0,), "swiglu": (0, 1), "rope": (0, 1), "attention": (0, 3, 4),
    "absorbed_attention": (0, 3, 4), "expanded_attention": (0, 3, 4, 8), "index_positions": (0, 1, 3, 4),
    "sparse_attention": (0, 3, 4, 6),
    "rope_qkv_write": (0, 3, 4, 6, 7, 8),
    "top_experts": (0,), "expert_linear": (0, 2), "sigmoid": (0,), "softplus": (0,),
    "short_conv": (0, 3, 4), "gated_scan": (0, 1, 2, 3, 4, 6, 7),
    "sample": (0, 2, 3, 4),
}  # fmt: skip


@pytest.mark.parametrize("op", RAGGED)
def test_rows_beyond_the_count_are_not_touched(device: Device, op: str) -> None:
    calls = calls_of(op, device.name == "cuda")[:8]
    calls = [call for call in calls if not refused(device, op, call[0], pad=0)]
    one, want = max(calls, key=lambda call: call[0].shape[0])
    rows, n = one.shape[0], max(1, one.shape[0] // 3)
    segment, data = plan_of(op, one, 64)
    for i in (0, *(j + 1 for j in RAGGED[op])):
        segment.view_table[i]["count"] = 0
    buffers = [device.alloc(b.size, b.usage) for b in segment.buffers]
    before = bytes([0x5A]) * buffers[-1].size
    for buffer, raw in zip(buffers, [*data[:-1], before], strict=True):
        buffer.write(0, raw)
    block = cext.ffi.new("uint8_t[]", 32)
    cext.ffi.buffer(block)[:4] = np.int32(n).tobytes()
    program = device.compile(segment, buffers)
    program.run(block, 32)
    program.wait()
    got = np.zeros((rows, buffers[-1].size // rows), np.uint8)
    buffers[-1].read_into(0, got.reshape(-1))
    for child in (program, *buffers):
        child.close()
    assert (got[n:] == 0x5A).all()
    dtype = FORMATS[one.format].dtype
    width = int(np.prod(one.shape[1:])) * dtype.itemsize
    found = np.ascontiguousarray(got[:n, :width]).view(dtype).reshape(n, *one.shape[1:])
    check(replace(bounded(device, op, one), shape=(n, *one.shape[1:])), found, want[:n])
