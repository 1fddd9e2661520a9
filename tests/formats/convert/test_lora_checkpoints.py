"""PEFT adapters converted to GGUF: with the converted names, factors and rotary order, B A is the same change
of the same weight.
"""

import json
import re
from pathlib import Path
from typing import Any

import families
import mixed_families as mixed
import numpy as np
import pytest
import toy_checkpoint as toy

from satchel.errors import ModelError, RequestError
from satchel.formats.convert.write import write_source
from satchel.formats.gguf import open_gguf
from satchel.runtime.weights.sources import open_adapter, open_checkpoint, open_source

RANK = 4


def factors(arch: str, *modules: str, seed: int = 0) -> dict[str, Any]:
    """Random A and B for each module of layer 0 and 1."""
    rng, weights = np.random.default_rng(seed), toy.tensors(arch)
    made: dict[str, Any] = {}
    for i in range(toy.LAYERS):
        for module in modules:
            base = f"model.layers.{i}.{module}"
            rows, columns = weights[f"{base}.weight"].shape
            for part, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                name = f"base_model.model.{base}.lora_{part}.weight"
                made[name] = rng.standard_normal(shape).astype(np.float32)
    return made


def adapter(folder: Path, tensors: dict[str, Any], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"} | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(toy.safetensors(toy.stored(tensors)))
    return folder


ALL = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj")


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("from_gguf", [False, True])
def test_the_change_of_each_weight_is_the_same(arch: str, from_gguf: bool, tmp_path: Path) -> None:
    base = toy.write(tmp_path / "base", arch)
    tensors = factors(arch, *ALL)
    folder = adapter(tmp_path / "lora", tensors)
    if from_gguf:
        with open_checkpoint(base) as source:
            base = write_source(source, tmp_path / "base.gguf")[0]
    with open_adapter(folder, base) as made:
        path = write_source(made, tmp_path / "lora.gguf")[0]
    # The merged checkpoint, converted, equals the converted weight plus the converted adapter.
    merged = toy.tensors(arch)
    for name in list(tensors):
        if ".lora_A." in name:
            a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            merged[target] = merged[target] + b @ a * (8 / RANK)
    plain = toy.write(tmp_path / "plain", arch)
    other = toy.write(tmp_path / "merged", arch, values=toy.stored(merged))
    with open_gguf(path) as lora, open_checkpoint(plain) as old, open_checkpoint(other) as new:
        assert lora.metadata["general.type"] == "adapter" and lora.metadata["adapter.type"] == "lora"
        assert lora.metadata["general.architecture"] == arch
        assert lora.metadata["adapter.lora.alpha"] == 8.0
        assert len(lora.tensors) == 2 * toy.LAYERS * len(ALL)
        for name in (
            "blk.0.attn_q.weight",
            "blk.1.attn_k.weight",
            "blk.1.attn_output.weight",
            "blk.0.ffn_down.weight",
        ):
            a, b = lora.array(f"{name}.lora_a"), lora.array(f"{name}.lora_b")
            x, y = (
                np.frombuffer(b"".join(bytes(c) for c in s.chunks(name)), np.float32).reshape(
                    s.tensors[name].shape
                )
                for s in (old, new)
            )
            assert np.allclose(x + b @ a * (8 / RANK), y, atol=1e-4)


def test_an_adapter_of_pytorch_holds_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    base = toy.write(tmp_path / "base", "llama")
    tensors = factors("llama", *ALL)
    paths = []
    for name in ("a", "b"):
        folder = adapter(tmp_path / name / "lora", tensors)
        if name == "b":
            (folder / "adapter_model.safetensors").unlink()
            torch.save({k: torch.from_numpy(v) for k, v in tensors.items()}, folder / "adapter_model.bin")
        with open_adapter(folder, base) as made:
            paths += write_source(made, tmp_path / f"{name}.gguf")
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_an_embeddings_factors_lie_as_the_look_up_wants_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((RANK, toy.VOCAB)), rng.standard_normal((toy.WIDTH, RANK))
    name = "base_model.model.model.embed_tokens.lora_embedding_"
    folder = adapter(tmp_path / "lora", {f"{name}A": a.astype(np.float32), f"{name}B": b.astype(np.float32)})
    base = toy.write(tmp_path / "base", "llama")
    with open_adapter(folder, base) as made:
        assert made.tensors["token_embd.weight.lora_a"].shape == (toy.VOCAB, RANK)
        assert made.tensors["token_embd.weight.lora_b"].shape == (toy.WIDTH, RANK)


def test_rank_stabilized_adapters_have_alpha_times_the_root(tmp_path: Path) -> None:
    base = toy.write(tmp_path / "base", "llama")
    folder = adapter(tmp_path / "lora", factors("llama", "mlp.up_proj"), use_rslora=True)
    with open_adapter(folder, base) as made:
        assert made.metadata["adapter.lora.alpha"] == pytest.approx(16.0)  # 8 / sqrt(4) = 16 / 4


def test_the_base_is_where_the_adapter_says_or_must_be_given(tmp_path: Path) -> None:
    base = toy.write(tmp_path / "base", "llama")
    folder = adapter(tmp_path / "lora", factors("llama", "mlp.up_proj"), base_model_name_or_path=str(base))
    with open_adapter(folder) as made:
        assert made.metadata["general.architecture"] == "llama"
    adapter(folder, factors("llama", "mlp.up_proj"), base_model_name_or_path="org/model")
    with pytest.raises(RequestError, match="--base"):
        open_adapter(folder)


BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("L1 another method", None, {"peft_type": "IA3"}, "peft_type: expected LORA"),
    ("L2 DoRA", None, {"use_dora": True}, "use_dora"),
    ("L3 biases", None, {"bias": "all"}, "bias"),
    ("L4 whole modules", None, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ("L5 alpha by module", None, {"alpha_pattern": {"q": 1}}, "alpha_pattern"),
    ("L6 alpha NaN", None, {"lora_alpha": float("nan")}, "lora_alpha"),
    ("L7 no alpha", None, {"lora_alpha": None}, "lora_alpha"),
    ("L8 a half missing", lambda t: t.pop(next(iter(t))), {}, "got one of them"),
    (
        "L9 unknown module",
        lambda t: t.update({"base_model.model.x.lora_A.weight": np.ones((4, 4))}),
        {},
        "--base",
    ),
    (
        "L10 no factor",
        lambda t: t.update({"base_model.model.lm_head.weight": np.ones((4, 4))}),
        {},
        "lora_A or lora_B",
    ),
    ("L11 ranks disagree", lambda t: t.update({next(iter(t)): np.ones((3, 64))}), {}, "expected [rank, in]"),
    (
        "L12 rank 0",
        lambda t: t.update({k: v[:0] if "lora_A" in k else v[:, :0] for k, v in t.items()}),
        {},
        "rank",
    ),
    ("L13 NaN", lambda t: t.update({next(iter(t)): np.full((4, 64), np.nan)}), {}, "finite"),
    ("L14 nothing", lambda t: t.clear(), {}, "got none"),
    (
        "L15 odd heads",
        lambda t: t.update({k: v[:30] for k, v in t.items() if "q_proj.lora_B" in k}),
        {},
        "4 heads",
    ),
]


@pytest.mark.parametrize(("change", "config", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_adapter_is_one_line_and_no_file(
    change: Any, config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    base = toy.write(tmp_path / "base", "llama")
    tensors = factors("llama", "self_attn.q_proj")
    if change is not None:
        change(tensors)
    folder = adapter(tmp_path / "lora", tensors, **config)
    with pytest.raises(ModelError, match=re.escape(said)) as error, open_adapter(folder, base) as made:
        write_source(made, tmp_path / "lora.gguf")
    assert "\n" not in str(error.value) and not (tmp_path / "lora.gguf").exists()


@pytest.mark.parametrize("case", ["granitehybrid", "granitehybrid_dense"])
@pytest.mark.parametrize("from_gguf", [False, True])
def test_gate_and_up_of_one_weight_have_half_of_its_change_each(
    case: str, from_gguf: bool, tmp_path: Path
) -> None:
    shapes, rng = json.loads(mixed.STEM.with_suffix(".json").read_text())[case], np.random.default_rng(1)
    modules = ("mamba.in_proj", "mamba.out_proj", "self_attn.q_proj", "shared_mlp.input_linear")
    weights = families.values_of(shapes)
    base = families.write(tmp_path / "base", mixed.config(case), weights)
    tensors, changed = {}, dict(weights)
    for name, shape in shapes.items():
        if name.removesuffix(".weight").endswith(modules):
            a, b = (rng.standard_normal(s).astype(np.float32) for s in ((RANK, shape[1]), (shape[0], RANK)))
            stem = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            tensors |= {f"{stem}A.weight": a, f"{stem}B.weight": b}
            changed[name] = weights[name] + b @ a * (8 / RANK)
    merged = families.write(tmp_path / "merged", mixed.config(case), changed)
    if from_gguf:
        with open_checkpoint(base) as source:
            base = write_source(source, tmp_path / "base.gguf")[0]
    with open_adapter(adapter(tmp_path / "lora", tensors), base) as made:
        path = write_source(made, tmp_path / "lora.gguf")[0]
    with open_gguf(path) as lora, open_source(base) as old, open_checkpoint(merged) as new:
        assert lora.metadata["general.architecture"] == "granitehybrid"
        names = {name.removesuffix(".lora_a") for name in lora.tensors if name.endswith(".lora_a")}
        assert {name.split(".")[2] for name in names} >= {"ssm_in", "ssm_out", "attn_q"}
        assert sum("ffn_up" in name for name in names) == sum("ffn_gate" in name for name in names) == 4
        for name in names:
            a, b = (
                lora.array(f"{name}.lora_{part}").reshape(lora.tensors[f"{name}.lora_{part}"].shape)
                for part in "ab"
            )
            was, now = (np.frombuffer(b"".join(s.chunks(name)), np.float32) for s in (old, new))
            np.testing.assert_allclose((b @ a).ravel() * (8 / RANK), now - was, atol=1e-4)
