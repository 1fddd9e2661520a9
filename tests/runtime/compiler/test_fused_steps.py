"""Ops that are fused for few tokens: which plans have them. The device "dry" has CUDA's host code and kernel
tables, so its plans are those of an H100.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from devices import skip_without
from gpu_models import converted
from kernel_cases import cases_of
from one_step import kernels_of, plan_of, run
from tiny import KV_HEADS, TinyWeights
from tiny_file import write_model

from satchel import kernels
from satchel.errors import DeviceError, RequestError
from satchel.runtime import ops
from satchel.runtime.api.model import Model
from satchel.runtime.compiler.check import check_steps
from satchel.runtime.compiler.fuse_experts import experts_of
from satchel.runtime.compiler.fuse_heads import layers_of
from satchel.runtime.compiler.fuse_post_norm import post_norms_of
from satchel.runtime.compiler.fuse_scan import scans_of
from satchel.runtime.device.device import Device, KernelOverride
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import TOKENS, Graph, Type, toposort
from satchel.runtime.ops import OPS
from satchel.runtime.plan import Bucket, Plan, Segment

PACKING = ("emulated", "hip", "sycl")  # devices whose portable kernels read packed weights
PARTS, STEPS = {"rms_norm", "linear", "linear_swiglu"}, {"norm_linear", "norm_linear_swiglu"}


def loaded(path: Path, device: str, **options: object) -> Model:
    skip_without(device)
    return Model.load(path, device=device, context=256, slots=2, **options)  # type: ignore[arg-type]


def opened(name: str) -> Device:
    skip_without(name)
    return find_backend(name).open()


def ops_of(plan: Plan, label: str) -> list[str]:
    return [step.op for segment in plan.segments for step in segment.steps if step.label == label]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("fused") / "m.gguf", "llama", "q4_k")


@pytest.fixture(scope="module")
def dry(llama: Path) -> Iterator[Model]:
    with loaded(llama, "dry") as model:
        yield model


def launches(model: Model, tokens: int, label: str) -> int:
    """Launches of a layer: an entry of the kernel tables has the names of its kernels, joined by "+"."""
    (segment,), (device,) = model.engine.program(tokens, 1).plan.segments, model.devices
    steps = (i for i, step in enumerate(segment.steps) if step.label == label)
    return sum(device.kernels(segment, i)[0].count("+") + 1 for i in steps)


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_products_of_few_tokens_take_their_norm(dry: Model, tokens: int) -> None:
    found = set(ops_of(dry.engine.program(tokens, 1).plan, "blk.1"))
    assert found >= STEPS and not PARTS & found


@pytest.mark.parametrize("device", PACKING)
def test_portable_products_of_packed_weights_take_their_norm(llama: Path, device: str) -> None:
    """The steps that CUDA has, of up to four tokens, and the parts for more."""
    with loaded(llama, device) as model:
        for tokens in (1, 2, 4, 8):
            found = ops_of(model.engine.program(tokens, 1).plan, "blk.1")
            assert (set(found) >= STEPS) == (tokens <= 4) and bool(PARTS & set(found)) == (tokens > 4)
        assert found.count("linear_add") == 2
        reports = check_steps(model, [5, 6, 7, 8])
    assert {report.op for report in reports} >= STEPS


def other_values(w: TinyWeights) -> None:
    rng = np.random.default_rng(1)
    for name in [n for n in w.names if "attn_v.w" in n or "ffn_up.w" in n]:
        w.put(name, (rng.standard_normal(w.shapes[name]) * 0.05).astype(np.float32), "q3_k")


@pytest.mark.parametrize("device", ["dry", *PACKING])
def test_packed_weights_beside_others_stay_on_the_device(tmp_path: Path, device: str) -> None:
    """As in files of Q3_K_M: what is not packed is a step of its own."""
    with loaded(write_model(tmp_path / "m.gguf", "llama", "q4_k", change=other_values), device) as model:
        (segment,) = model.engine.program(1, 1).plan.segments
        assert segment.device == device
        products = [s.op for s in segment.steps if s.label == "blk.1" and "linear" in s.op]
        assert products.count("linear") == 4 and products.count("linear_add") == 2
        if device != "dry":
            assert check_steps(model, [5, 6, 7, 8])


@pytest.mark.parametrize("device", PACKING)
def test_portable_products_take_a_post_norm(tmp_path: Path, device: str) -> None:
    path = write_model(tmp_path / "m.gguf", "gemma3", "q8_0")
    with loaded(path, device) as model:
        steps = {report.op for report in check_steps(model, [5, 6, 7, 8])}
    assert steps >= {"post_norm_linear", "post_norm_linear_geglu"}


def test_products_of_many_tokens_take_a_norm_where_a_device_can(
    dry: Model, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cards with wgmma do, others not."""
    parts, fused = {"rms_norm", "linear", "linear_swiglu"}, {"norm_linear", "norm_linear_swiglu"}
    found = set(ops_of(dry.engine.program(256, 1).plan, "blk.1"))
    assert fused <= found and not parts & found
    monkeypatch.setenv("SATCHEL_DRY_ARCH", "75")
    with loaded(llama, "dry") as model:
        found = set(ops_of(model.engine.program(256, 1).plan, "blk.1"))
    assert parts <= found and not fused & found


@pytest.mark.parametrize("device", ["dry", "emulated"])
def test_deterministic_plans_keep_their_parts(llama: Path, device: str) -> None:
    with loaded(llama, device, deterministic=True) as model:
        assert not [op for op in ops_of(model.engine.program(1, 1).plan, "blk.1") if op.startswith("norm_")]


def test_a_fused_step_has_kernels_to_choose_from(dry: Model) -> None:
    """`satchel tune` measures these, and a kernel override may name any of them."""
    (segment,) = dry.engine.program(1, 1).plan.segments
    (device,) = dry.devices
    steps = [i for i, step in enumerate(segment.steps) if step.op.startswith("norm_")]
    assert steps and all(len(device.kernels(segment, i)) > 1 for i in steps)


@pytest.mark.parametrize(("tokens", "rows"), [(2, 1), (16, 1), (17, 17), (128, 128)])
def test_the_heads_of_few_tokens_or_of_many_sequences_are_one_step(
    dry: Model, tokens: int, rows: int
) -> None:
    found = ops_of(dry.engine.program(tokens, rows).plan, "blk.1")
    assert found == ["norm_linear", "rope_qkv_attention", "linear_add", "norm_linear_swiglu", "linear_add"]


@pytest.mark.parametrize("device", ["dry", *PACKING])
def test_a_layer_of_one_token_is_five_steps_for_every_vendor(llama: Path, device: str) -> None:
    with loaded(llama, device) as model:
        found = ops_of(model.engine.program(1, 1).plan, "blk.1")
    assert found == ["norm_linear", "rope_qkv_attention", "linear_add", "norm_linear_swiglu", "linear_add"]


@pytest.mark.parametrize(
    ("device", "tokens", "rows"),
    [("dry", 17, 1), ("dry", 64, 1), ("dry", 129, 129), ("emulated", 2, 1), ("emulated", 64, 64)],
)
def test_the_heads_of_a_prompt_are_one_step_before_attention(
    llama: Path, device: str, tokens: int, rows: int
) -> None:
    with loaded(llama, device) as model:
        found = ops_of(model.engine.program(tokens, rows).plan, "blk.1")
    at = found.index("attention")
    assert found[at - 1] == "rope_qkv_write"
    assert not {"rope", "kv_write", "rope_kv_write"} & set(found)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
@pytest.mark.parametrize("tokens", [1, 4, 8, 64])
def test_biases_and_norms_of_heads_take_no_launch(tmp_path: Path, dry: Model, arch: str, tokens: int) -> None:
    with loaded(write_model(tmp_path / "m.gguf", arch, "q4_k"), "dry") as model:
        assert launches(model, tokens, "blk.1") == launches(dry, tokens, "blk.1")


def one_kv_head(w: TinyWeights) -> None:
    for name in [n for n in w.names if "attn_k.w" in n or "attn_v.w" in n]:
        w.put(name, w.array(name)[: w.shapes[name][0] // KV_HEADS], w.formats[name])


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_norm_of_a_single_key_head_takes_no_launch(tmp_path: Path, tokens: int) -> None:
    """It is a norm of whole rows, before the heads are made of them."""
    keys = {"qwen3__attention__head_count_kv": 1}
    with loaded(
        write_model(tmp_path / "m.gguf", "qwen3", "q4_k", change=one_kv_head, **keys), "dry"
    ) as model:
        found = ops_of(model.engine.program(tokens, 1).plan, "blk.1")
    assert "rms_norm" not in found and found[1].startswith("rope_qkv_")


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_fused_steps_of_the_emulated_gpu_pass_the_check(tmp_path: Path, arch: str) -> None:
    """Each step beside its definition, with what it writes to the caches."""
    with loaded(write_model(tmp_path / "m.gguf", arch, "q8_0"), "emulated") as model:
        reports = check_steps(model, list(range(5, 17)))
    assert "rope_qkv_write" in {report.op for report in reports}


def test_a_cache_that_another_layer_reads_keeps_its_write() -> None:
    g = Graph()
    q, k, v, r = (g.node("input", (), Type((TOKENS, 2, 8)), name) for name in "qkvr")
    slot, pos = (g.node("input", (), Type((TOKENS,), "i32"), name) for name in ("slot", "pos"))
    table = g.node("input", (), Type((1, 4), "i32"), "table")
    caches = [g.node("state", (), Type((4, 2, 16, 8)), name) for name in ("k.0", "v.0")]
    turn = ops.rope_table(pos, g.const(np.ones(4, np.float32), "f32", "f"))
    place = (slot, pos, table)
    written = (
        ops.rope_kv_write(caches[0], k, turn, *place, style=0),
        ops.kv_write(caches[1], v, *place),
    )
    first, second = (ops.attention(ops.rope(x, turn, style=0), *written, *place, scale=1.0) for x in (q, r))
    assert set(layers_of((first, *written))) == {first}
    assert layers_of((first, second, *written)) == {}


@pytest.mark.parametrize("causal", [0, 1])
def test_the_step_of_heads_has_sinks_caps_and_chunks(causal: int) -> None:
    """And no sight of what follows: its one token is the last."""
    g = Graph()
    q, k, v = (g.node("input", (), Type((TOKENS, 2, 8)), name) for name in "qkv")
    slot, pos = (g.node("input", (), Type((TOKENS,), "i32"), name) for name in ("slot", "pos"))
    table, sinks = (
        g.node("input", (), Type((1, 4), "i32"), "table"),
        g.node("weight", (), Type((2,)), "sinks"),
    )
    caches = [g.node("state", (), Type((4, 2, 16, 8)), name) for name in ("k.0", "v.0")]
    turn = ops.rope_table(pos, g.const(np.ones(4, np.float32), "f32", "f"))
    place = (slot, pos, table)
    keys = ops.rope_kv_write(caches[0], k, turn, *place, style=0)
    written = keys, ops.kv_write(caches[1], v, *place)
    seen = {"scale": 0.5, "window": 9, "cap": 5.0, "chunk": 16 * causal}
    node = ops.attention(ops.rope(q, turn, style=0), *written, *place, sinks, causal=causal, **seen)
    (layer,) = layers_of((node, *written)).values()
    made = layer.fused({n: n for n in toposort((node, *written))}, layer.plain, whole=True)
    if not causal:
        assert made is None
        return
    assert made is not None and made.op == "rope_qkv_attention" and made.src[-1] is sinks
    assert {name: made.arg(name) for name in seen} == seen
    parts = OPS[made.op].parts
    assert parts is not None
    whole = parts(*made.src, **dict(made.args))
    assert whole.op == "attention" and whole.src[-1] is sinks and dict(whole.args) == dict(node.args)


@pytest.mark.parametrize("tokens", [1, 4, 8, 64])
def test_gelu_gates_and_post_norms_take_no_launch(tmp_path: Path, dry: Model, tokens: int) -> None:
    """Gemma 3 has two norms more than Llama, which the products after them compute."""
    with loaded(write_model(tmp_path / "m.gguf", "gemma3", "q4_k"), "dry") as model:
        assert launches(model, tokens, "blk.1") == launches(dry, tokens, "blk.1")
        found = ops_of(model.engine.program(tokens, 1).plan, "blk.1")
    assert [op for op in found if op.startswith("post_")] == ["post_norm_linear", "post_norm_linear_geglu"]


UNGROUPED = {"deepseek2__expert_group_count": 1, "deepseek2__expert_group_used_count": 1}
EXPERTS = ["norm_linear", "norm_expert_swiglu", "expert_linear_sum"]


@pytest.mark.parametrize(("tokens", "count"), [(1, 6), (4, 7), (8, 9), (16, 9)])
def test_a_mixture_is_three_steps(tmp_path: Path, tokens: int, count: int) -> None:
    """The router with its norm, gate and up, and the down products with their sum and the residual."""
    with loaded(write_model(tmp_path / "m.gguf", "qwen3moe", "q4_k"), "dry") as model:
        assert ops_of(model.engine.program(tokens, 1).plan, "blk.1")[-3:] == EXPERTS
        assert launches(model, tokens, "blk.1") == count


def test_a_shared_expert_stands_between_the_steps_of_a_mixture(tmp_path: Path) -> None:
    """It takes the norm into its own product, and its sum is the residual of the others."""
    with loaded(write_model(tmp_path / "m.gguf", "deepseek2", "q4_k", **UNGROUPED), "dry") as model:
        found = ops_of(model.engine.program(1, 1).plan, "blk.1")
        assert launches(model, 1, "blk.1") == 11
    assert found[2:5] == ["rope_latent_write", "attention", "head_linear"]
    assert found[-5:] == [*EXPERTS[:2], "norm_linear_swiglu", "linear_add", EXPERTS[2]]


@pytest.mark.parametrize(("arch", "tokens"), [("deepseek2", 1), ("qwen3moe", 64)])
def test_experts_in_groups_and_of_more_tokens_keep_their_products(
    tmp_path: Path, arch: str, tokens: int
) -> None:
    """Their weights, sum and residual are one step."""
    with loaded(write_model(tmp_path / "m.gguf", arch, "q4_k"), "dry") as model:
        found = ops_of(model.engine.program(tokens, 1).plan, "blk.1")
    assert {"top_experts", "expert_swiglu", "expert_linear", "expert_sum_add"} <= set(found)
    assert not {"expert_weights", "expert_sum", "add"} & set(found)


def test_a_mixture_whose_sum_others_read_keeps_its_steps() -> None:
    g = Graph()
    x = g.node("input", (), Type((TOKENS, 8)), "x")
    w, router = g.node("weight", (), Type((8,)), "w"), g.node("weight", (), Type((4, 8)), "router")
    gate, up, down = (g.node("weight", (), Type((4, 8, 8)), name) for name in ("gate", "up", "down"))
    y = ops.rms_norm(x, w, eps=1e-6)
    logits = ops.linear(y, router)
    ids = ops.top_experts(logits, k=2)
    share = ops.expert_weights(logits, ids, norm=1)
    total = ops.expert_sum(ops.expert_linear(ops.expert_swiglu(y, gate, up, ids), down, ids), share)
    end = ops.add(x, total)
    (found,) = experts_of((end,)).values()
    assert (found.norm, found.end, found.residual, found.shared) == (y, end, x, None)
    assert experts_of((end, total)) == {} and experts_of((end, ops.add(logits, logits))) == {}
    parts = ops.expert_linear_sum.parts
    assert parts is not None
    made = found.trial({n: n for n in toposort((end,))})[-1]
    whole = parts(*made.src, **dict(made.args))
    assert (whole.op, whole.src[0].op, whole.src[1]) == ("add", "expert_sum", x)


def test_a_post_norm_that_an_earlier_step_reads_keeps_its_own() -> None:
    g = Graph()
    x, r = (g.node("input", (), Type((TOKENS, 8)), name) for name in "xr")
    w, other = (g.node("weight", (), Type((8, 8)), name) for name in ("w", "other"))
    post = g.node("weight", (), Type((8,)), "post")
    h = ops.rms_norm_add(x, post, r, eps=1e-6)
    y, z = ops.linear(ops.rms_norm(h, post, eps=1e-6), w), ops.linear(h, other)
    assert set(post_norms_of((ops.add(y, h),))) == {y}
    assert set(post_norms_of((ops.add(y, z),))) == {y}
    assert post_norms_of((ops.add(z, y),)) == {}
    assert post_norms_of((y, y.src[0])) == {}


@pytest.mark.parametrize("case", ["qwen3next", "mamba2"])
def test_a_scan_and_the_write_of_its_state_are_one_step(tmp_path: Path, case: str) -> None:
    parts, path = {"gated_scan", "scan_write"}, converted(tmp_path, case)
    for device, options in (("dry", {}), ("dry", {"deterministic": True}), ("emulated", {})):
        with loaded(path, device, **options) as model:
            for tokens in (1, 64, 128):
                found = set(ops_of(model.engine.program(tokens, 1).plan, "blk.0"))
                if device == "dry" and not options:
                    assert "gated_scan_write" in found and not found & parts
                else:
                    assert found >= parts and "gated_scan_write" not in found


def test_a_scan_with_another_reader_keeps_its_parts() -> None:
    g = Graph()
    q, k = (g.node("input", (), Type((TOKENS, 2, 8)), name) for name in "qk")
    v = g.node("input", (), Type((TOKENS, 4, 16)), "v")
    decay, beta = (g.node("input", (), Type((TOKENS, 4)), name) for name in ("g", "beta"))
    slot, pos = (g.node("input", (), Type((TOKENS,), "i32"), name) for name in ("slot", "pos"))
    table = g.node("input", (), Type((1, 4), "i32"), "table")
    first, second = (g.node("state", (), Type((4, 4, 8, 16)), name) for name in ("scan.0", "scan.1"))
    how = {"block": 16, "tiled": 0}
    made = ops.gated_scan(q, k, v, decay, beta, first, slot, pos, table, delta=1, **how)
    outputs = ops.take(made, start=0, size=16)
    mine, other = (ops.scan_write(s, k, made, decay, slot, pos, table, **how) for s in (first, second))
    (found,) = scans_of((outputs, mine)).values()
    assert (found.outputs, found.written) == (outputs, mine)
    fused = found.fused({n: n for n in toposort((outputs, mine))})
    parts = OPS[fused.op].parts
    assert parts is not None and parts(*fused.src, **dict(fused.args)) is ops.ordered_after(outputs, mine)
    assert scans_of((outputs, other)) == {}
    assert scans_of((outputs, mine, made)) == {}
    assert scans_of((outputs, mine, ops.take(made, start=16, size=16))) == {}
    assert scans_of((ops.take(made, start=16, size=16), mine)) == {}


@pytest.mark.parametrize("op", ["rms_norm", "linear", "rope", "kv_write"])
def test_a_step_that_a_kernel_of_the_user_computes_is_not_fused(
    dry: Model, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = dry.devices

    def overrides(segment: Segment) -> tuple[KernelOverride, ...]:
        return (KernelOverride(0, kernel=1),) if segment.op_table["name"][0] == op.encode() else ()

    monkeypatch.setattr(device, "overrides_of", overrides)
    found = ops_of(dry.engine.plan(Bucket(1, 1)), "blk.1")
    assert op in found
    fused = {"rope_qkv_attention"} if op in ("rms_norm", "linear") else {"norm_linear"}
    assert fused <= set(found)


def test_a_kernel_of_the_user_cannot_write_caches_unseen() -> None:
    """The check of such a kernel sees a step's result alone."""
    with pytest.raises(RequestError, match="is not an op that a kernel can be registered for"):
        kernels.register("rope_qkv_write", "", "mine", lambda call: kernels.LaunchGrid((1,), 32))


@pytest.mark.parametrize("op", ["norm_linear", "norm_linear_geglu", "rope_qkv_attention", "gated_scan_write"])
def test_kernels_of_fused_ops_are_chosen_by_name(op: str) -> None:
    with opened("dry") as device:
        one = next(one for one in cases_of(op) if not device.refusal(plan_of(op, one, 64)[0]))
        (segment, _), shown = plan_of(op, one, 64), ""
        for shown in device.kernels(segment, 0):
            run(device, op, one, kernel=shown)
        assert shown
        with pytest.raises(DeviceError, match="no such kernel as is asked for"):
            run(device, op, one, kernel="another")


def test_a_fused_kernel_chosen_by_name_computes() -> None:
    with opened("emulated") as device:
        one = cases_of("rope_qkv_write")[0]
        named = run(device, "rope_qkv_write", one, kernel="rope_qkv_write")
        assert named.tobytes() == run(device, "rope_qkv_write", one).tobytes()


def test_attention_with_its_heads_has_splits_to_choose_from() -> None:
    with opened("dry") as device:
        names = kernels_of(device, "rope_qkv_attention", cases_of("rope_qkv_attention")[0])
    assert names[0] == "attention_bulk_64_f16" and "attention_bulk_64_f16@8" in names
    assert "attention_heads_64_f16@4" in names


def test_attention_with_its_heads_takes_caches_of_elements_by_bulk_copies() -> None:
    """Blocks of Q8_0 and Q4_0 are not aligned for them."""
    for format, name in (("f16", "attention_bulk_128_f16"), ("q8_0", "attention_heads_128_q8_0")):
        cases = cases_of("rope_qkv_attention")
        one = next(one for one in cases if one.name.startswith(f"{format}-1-8x2x128"))
        with opened("dry") as device:
            assert kernels_of(device, "rope_qkv_attention", one)[0] == name
