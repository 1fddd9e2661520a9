"""Converted published configurations: a small random model computes what transformers computes, and unknown
features of a family are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import mixed_families as mixed
import models_page
import numpy as np
import pytest
from peer import peer_logits

from satchel.errors import ModelError
from satchel.formats.convert.write import write_source
from satchel.runtime.api.model import Model
from satchel.runtime.layers.arch import architectures, find_arch
from satchel.runtime.weights.sources import mappings, open_checkpoint

NMSE = 1e-6
SHAPES = families.shapes()


def converted(folder: Path, case: str, **changes: Any) -> Path:
    settings = {key: value for key, value in (families.config(case) | changes).items() if value is not ...}
    source = families.write(folder / "toy", settings, families.tensors(case, SHAPES[case]))
    with open_checkpoint(source) as opened:
        return write_source(opened, folder / f"{case}.gguf")[0]


def logits(path: Path, ids: list[int], context: int = 0) -> np.ndarray:
    with Model.load(path, cache_type="f32", threads=1, **({"context": context} if context else {})) as model:
        return np.asarray(model.logits(ids))


@pytest.mark.parametrize("case", families.CASES)
def test_logits_are_those_that_transformers_gave(case: str, tmp_path: Path) -> None:
    """tests/data/convert/make_families.py stores the logits, and compares the published layout with the saved
    one.
    """
    with np.load(families.DATA / "families.npz") as stored:
        want = stored[case].astype(np.float64)
    # LongRoPE's factors depend on the configured context, not on the length in use.
    context = 64 if case == "phi3_long" else 0
    got = logits(converted(tmp_path, case), families.IDS, context)[list(families.KEPT)]
    assert np.square(got - want).sum() / np.square(want).sum() < NMSE


def test_experts_in_one_tensor_and_layers_that_predict_further(tmp_path: Path) -> None:
    """Qwen 3.5 is published with all experts of a layer in one tensor, the gate's rows before the others."""
    case, made = "qwen35moe", families.tensors("qwen35moe", SHAPES["qwen35moe"])
    for i in range(5):
        part = f"model.layers.{i}.mlp.experts."
        gate, up, down = (
            np.stack([made.pop(f"{part}{e}.{name}_proj.weight") for e in range(6)])
            for name in ("gate", "up", "down")
        )
        made |= {f"{part}gate_up_proj": np.concatenate((gate, up), axis=1), f"{part}down_proj": down}
    made["mtp.fc.weight"] = np.zeros((4, 4), np.float32)
    with open_checkpoint(families.write(tmp_path / "fused", families.config(case), made)) as opened:
        assert any("1 tensors are left out: layers that predict" in note for note in opened.notes)
        fused = write_source(opened, tmp_path / "fused.gguf")[0]
    np.testing.assert_array_equal(
        logits(fused, families.IDS), logits(converted(tmp_path, case), families.IDS)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("case", [c for c in families.CASES if c not in families.UNKNOWN_TO_PEER])
def test_logits_are_those_of_llama_cpp(case: str, tmp_path: Path) -> None:
    path = converted(tmp_path, case, **families.PEER.get(case, {}))
    got, want = logits(path, families.IDS), peer_logits(path, families.IDS)
    assert np.square(got - want).sum() / np.square(want).sum() < 3e-5


# Configurations of unknown variants, and the key that the error names.
UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {"hidden_activation": "relu"}, "hidden_activation"),
    ("gemma2", {"query_pre_attn_scalar": "large"}, "query_pre_attn_scalar"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma2", {"sliding_window": ...}, "sliding_window"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 5}, "layer_types"),
    ("gemma3", {"layer_types": 3}, "layer_types"),
    ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ("phi3", {"partial_rotary_factor": 0.07}, "partial_rotary_factor"),
    ("phi3_long", {"original_max_position_embeddings": None}, "original_max_position_embeddings"),
    ("phi3_long", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "long_factor"),
    ("phi3_long", {"rope_scaling": {"type": "longrope", "long_factor": [0.0] * 8}}, "long_factor"),
    ("glm4", {"hidden_act": "gelu"}, "hidden_act"),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers"),
    ("smollm3", {"no_rope_layer_interval": 3}, "no_rope_layer_interval"),
    ("granite", {"attention_multiplier": float("nan")}, "attention_multiplier"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type"),
    ("falcon", {"alibi": "yes"}, "alibi"),
    ("falcon", {"parallel_attn": False}, "ffn_norm"),
    ("falcon_grouped", {"parallel_attn": False}, "parallel_attn"),
    ("falcon", {"multi_query": False}, "query_key_value"),
    ("falcon_grouped", {"num_kv_heads": 3}, "query heads"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"n_positions": 64}, "wpe.weight"),
    ("stablelm", {"qk_layernorm": "yes"}, "qk_layernorm"),
    ("stablelm", {"use_parallel_residual": 1}, "use_parallel_residual"),
    ("stablelm_parallel", {"use_parallel_residual": False}, "ffn_norm"),
    ("mamba2", {"head_dim": 8}, "num_heads"),
    ("mamba2", {"hidden_act": "gelu"}, "hidden_act"),
    ("mamba2", {"n_groups": 3}, "groups"),
    ("qwen3next", {"norm_topk_prob": False}, "norm_topk_prob"),
    ("qwen3next", {"linear_num_key_heads": 3}, "in_proj_qkvz"),
    ("qwen35", {"linear_num_value_heads": 5}, "in_proj_qkv"),
    ("qwen35", {"layer_types": ["full_attention"] * 4 + ["linear_attention"]}, "layer_types"),
    ("qwen35", {"rope_parameters": {"mrope_section": 3}}, "mrope_section"),
    ("gemma3", {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "text_config"),
    ("phi3", {"architectures": ["MllamaForConditionalGeneration"], "vision_config": {}}, "pictures"),
    ("phi3", {"architectures": ["SiglipVisionModel"], "patch_size": 14}, "pictures"),
]


@pytest.mark.parametrize(("case", "changes", "said"), UNKNOWN)
def test_an_unknown_variant_is_refused_by_name(
    case: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        converted(tmp_path, case, **changes)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["clip", "qwen2vl", "mllama"])
def test_files_of_pictures_say_that_they_are(name: str) -> None:
    with pytest.raises(ModelError, match=rf"architecture '{name}' is not supported: pictures are not"):
        find_arch(name)


def test_the_page_of_converting_has_every_class() -> None:
    page = (families.DATA.parents[2] / "docs" / "converting.md").read_text()
    assert [name for m in mappings() for name in m.classes if f"`{name}`" not in page] == []


def test_the_page_of_models_has_every_architecture_and_checkpoint() -> None:
    """`python tests/support/models_page.py` measures and writes its table."""
    page = models_page.PAGE.read_text().partition(models_page.BEGIN)[2].partition(models_page.END)[0]
    rows = {line.split("`")[1]: line.split(" | ") for line in page.splitlines() if line.startswith("| `")}
    assert list(rows) == architectures()
    named = {name for row in rows.values() for name in row[2].split(", ")}
    assert named >= {*families.CASES, *mixed.CASES, *mixed.ENCODERS}
    for arch, row in rows.items():
        assert row[1] == models_page.family(arch)
        assert row[2] != "–" and float(row[3]) < 1e-4, arch
        assert row[4].startswith("–") or float(row[4].rstrip(" |")) < 1e-4, arch
