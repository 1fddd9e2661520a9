"""Vision-language checkpoints: the text model inside is converted, and equals the text model alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import mixed_families as mixed
import numpy as np
import pytest
import toy_checkpoint as toy

from satchel.errors import ModelError
from satchel.formats.convert.checkpoint import Checkpoint
from satchel.runtime.weights.sources import open_checkpoint

MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}
# The case of a text model, the class that contains it, and keys that its configuration has or omits.
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "gemma3": ("Gemma3ForConditionalGeneration", {}, False),
    "gemma4": ("Gemma4ForConditionalGeneration", {}, False),
    "llama4": ("Llama4ForConditionalGeneration", {}, False),
    "mistral": ("Mistral3ForConditionalGeneration", {"sliding_window": None}, False),
    "qwen15": ("Qwen2_5_VLForConditionalGeneration", {"rope_scaling": MROPE}, True),
    "qwen3": ("Qwen3VLForConditionalGeneration", {"rope_scaling": MROPE | {"rope_type": "default"}}, False),
}
PICTURES = {"vision_tower.patch.weight": (4, 8), "multi_modal_projector.linear.weight": (4, 4)}


def parts(case: str) -> tuple[dict[str, Any], families.Arrays]:
    """config.json and tensors of the text model alone."""
    if case in ("mistral", "qwen3"):
        return toy.config(case), toy.tensors(case)
    if case in mixed.CASES:
        import json

        shapes = json.loads(mixed.STEM.with_suffix(".json").read_text())[case]
        return mixed.config(case), families.values_of(shapes)
    return families.config(case), families.tensors(case, families.shapes()[case])


def wrapped(folder: Path, case: str, new: bool) -> Path:
    """The checkpoint inside a vision-language one, with tensors as published or as transformers 5 saves
    them.
    """
    name, changes, flat = CASES[case]
    inner, tensors = parts(case)
    inner = {k: v for k, v in inner.items() if k != "architectures"} | changes
    outer: dict[str, Any] = {
        "architectures": [name],
        "vision_config": {"hidden_size": 7},
        "image_token_id": 5,
    }
    whole = outer | inner if flat else outer | {"text_config": inner, "hidden_size": 5}
    if new:
        named = {n.replace("model.", "model.language_model.", 1): v for n, v in tensors.items()}
    else:
        named = tensors if flat else {f"language_model.{n}": v for n, v in tensors.items()}
    seen = {f"model.{n}" if new else n: np.ones(s, np.float32) for n, s in PICTURES.items()}
    return families.write(folder / "seeing", whole, named | seen)


def said(source: Checkpoint) -> dict[str, Any]:
    return {
        key: value
        for key in source.metadata
        if not key.startswith("general.")
        for value in [source.metadata[key]]
    }


@pytest.mark.parametrize("new", [False, True], ids=["published", "saved"])
@pytest.mark.parametrize("case", CASES)
def test_the_text_model_is_the_one_without_pictures(case: str, new: bool, tmp_path: Path) -> None:
    settings, tensors = parts(case)
    changes = {k: v for k, v in CASES[case][1].items() if k != "rope_scaling"}
    plain = families.write(tmp_path / "plain", settings | changes, tensors)
    with open_checkpoint(plain) as a, open_checkpoint(wrapped(tmp_path, case, new)) as b:
        assert any("its text model alone" in note for note in b.notes) and not a.notes
        assert list(a.tensors) == list(b.tensors) and set(said(a)) == set(said(b))
        assert all(np.array_equal(value, said(b)[key]) for key, value in said(a).items())
        assert all(b"".join(a.chunks(name)) == b"".join(b.chunks(name)) for name in a.tensors)


@pytest.mark.parametrize("head", [True, False])
def test_where_the_configuration_contradicts_itself_the_tensors_say_what_is_tied(
    head: bool, tmp_path: Path
) -> None:
    inner, tensors = toy.config("qwen3", tie_word_embeddings=False), toy.tensors("qwen3")
    if not head:
        del tensors["lm_head.weight"]
    outer = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "vision_config": {},
        "tie_word_embeddings": True,
    }
    source = families.write(tmp_path / "m", outer | {"text_config": inner}, tensors)
    with open_checkpoint(source) as opened:
        assert ("output.weight" in opened.tensors) is head


def test_what_a_published_gemma_leaves_out_is_known(tmp_path: Path) -> None:
    """The configuration of the 4B omits its text model's number of heads, among others."""
    stated = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "model_type": "gemma3_text"}
    stated |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    head = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}, "text_config": stated}
    layer, norms = (
        "language_model.model.layers.0.",
        ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    )
    shapes: dict[str, tuple[int, ...]] = {
        "language_model.model.embed_tokens.weight": (toy.VOCAB, 64),
        "language_model.model.norm.weight": (64,),
        **{f"{layer}{n}_layernorm.weight": (64,) for n in norms},
        **{f"{layer}self_attn.{n}_norm.weight": (256,) for n in "qk"},
        **{f"{layer}self_attn.{n}_proj.weight": (r, 64) for n, r in (("q", 2048), ("k", 1024), ("v", 1024))},
        f"{layer}self_attn.o_proj.weight": (64, 2048),
        **{f"{layer}mlp.{n}_proj.weight": (96, 64) for n in ("gate", "up")},
        f"{layer}mlp.down_proj.weight": (64, 96),
    }
    with open_checkpoint(families.write(tmp_path / "g", head, families.values_of(shapes))) as source:
        found = said(source)
    want = {"attention.head_count": 8, "attention.head_count_kv": 4, "attention.key_length": 256}
    want |= {
        "context_length": 131072,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.scaling.factor": 8,
    }
    assert {key: found[f"gemma3.{key}"] for key in want} == want


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "text_config"),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": 3, "vision_config": 1},
            "text_config",
        ),
        (
            {"architectures": ["MllamaForConditionalGeneration"], "vision_config": {}, "text_config": {}},
            "pictures",
        ),
        ({"architectures": ["SiglipVisionModel"], "patch_size": 14}, "pictures"),
        ({"architectures": ["WhisperForConditionalGeneration"], "audio_config": {}}, "pictures or sound"),
    ],
)
def test_what_has_no_text_model_of_ours_is_refused(
    config: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(ModelError, match=named) as caught,
        open_checkpoint(families.write(tmp_path / "m", config, {})),
    ):
        pass
    assert "\n" not in str(caught.value)
