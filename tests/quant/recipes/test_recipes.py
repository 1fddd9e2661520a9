"""Recipes against the formats that llama-quantize chose for models of these shapes
(tests/data/recipe_formats.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from satchel.quant import FORMATS
from satchel.quant.recipes import RECIPES, choose_formats, fit_format, is_quantizable

DATA = json.loads((Path(__file__).parents[2] / "data" / "recipe_formats.json").read_text())
CASES = [
    pytest.param(case["model"], name, letters, kind == "guided", id=f"{case['case']}-{name}-{kind}")
    for case in DATA["cases"]
    for kind in ("formats", "guided")  # without and with importance data
    for name, letters in case.get(kind, {}).items()
]


NEWER = {"Q2_0": 41}  # file types of llama.cpp that the gguf package may not know yet


def model_shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors of a model in the order of the stored letters."""
    width, hidden, experts = model["embd"], model["ffn"], model["experts"]
    shared = width // model["heads"] * model["kv"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (64, width), "output_norm.weight": (width,)}
    if not model["tied"]:
        shapes["output.weight"] = (64, width)
    for layer in range(model["layers"]):
        parts: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,), "ffn_norm.weight": (width,)}
        if model["qkv"]:
            parts["attn_qkv.weight"] = (width + 2 * shared, width)
        else:
            parts |= {"attn_q.weight": (width, width), "attn_k.weight": (shared, width)}
            parts |= {"attn_v.weight": (shared, width), "attn_q.bias": (width,)}
        parts["attn_output.weight"] = (width, width)
        stack, suffix = ((experts,), "_exps") if experts else ((), "")
        if experts:
            parts["ffn_gate_inp.weight"] = (experts, width)
        for part, shape in (("gate", (hidden, width)), ("up", (hidden, width)), ("down", (width, hidden))):
            parts[f"ffn_{part}{suffix}.weight"] = (*stack, *shape)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


@pytest.mark.parametrize(("model", "name", "letters", "guided"), CASES)
def test_chooses_what_llama_quantize_chose(
    model: dict[str, Any], name: str, letters: str, guided: bool
) -> None:
    shapes = model_shapes(model)
    sharing = model["heads"] // model["kv"]
    chosen = choose_formats(RECIPES[name], shapes, model["experts"], sharing=sharing, importance=guided)
    want = dict(zip(shapes, (DATA["letters"][letter] for letter in letters), strict=True))
    assert {tensor: chosen.get(tensor, "f32") for tensor in shapes} == want


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_numbers_and_formats_exist(recipe: Any) -> None:
    prefix = "ALL_F32" if recipe.name == "F32" else f"MOSTLY_{recipe.name}"
    assert gguf.LlamaFileType.__members__.get(prefix, NEWER.get(recipe.name)) == recipe.file_type
    for name in (recipe.base, recipe.head, *(rule.format for rule in recipe.rules)):
        assert FORMATS[name].encode is not None
        assert FORMATS[name].weights


def test_pure_gives_every_matrix_the_base() -> None:
    shapes = {
        "token_embd.weight": (9, 512),
        "blk.0.attn_v.weight": (9, 512),
        "blk.0.ffn_down.weight": (9, 96),
    }
    chosen = choose_formats(RECIPES["Q4_K_M"], shapes, pure=True)
    assert list(chosen.values()) == ["q4_k", "q4_k", "q5_0"]


def test_shared_experts_count_among_the_first_of_the_lowest_mixes() -> None:
    """There llama-quantize counts tensors, not layers: four layers have two each of the first eight."""
    shapes = {
        f"blk.{layer}.ffn_down{kind}.weight": (*stack, 8, 256)
        for layer in range(64)
        for kind, stack in (("_exps", (4,)), ("_shexp", ()))
    }
    chosen = choose_formats(RECIPES["IQ2_XXS"], shapes, experts=4, importance=True)
    assert [name for name, found in chosen.items() if found == "q2_k"] == list(shapes)[:8]
    chosen = choose_formats(RECIPES["Q4_K_S"], shapes, experts=4)
    assert [name for name, found in chosen.items() if found == "q5_k"] == list(shapes)[:16]


@pytest.mark.parametrize(
    ("wanted", "row", "found"),
    [
        ("q4_k", 512, "q4_k"),
        ("q4_k", 96, "q5_0"),
        ("q6_k", 40, "f16"),
        ("q5_k", 32, "q5_1"),
        ("bf16", 7, "bf16"),
        ("iq2_xs", 160, "iq4_nl"),
        ("tq1_0", 96, "q4_0"),
        ("nvfp4", 96, "mxfp4"),
        ("q1_0", 96, "f16"),
        ("q2_0", 96, "q4_0"),
        ("iq4_nl", 40, "f16"),
    ],
)
def test_rows_that_no_block_divides(wanted: str, row: int, found: str) -> None:
    assert fit_format(wanted, row) == found


@pytest.mark.parametrize(
    ("name", "shape", "yes"),
    [
        ("blk.3.ffn_up.weight", (8, 32), True),
        ("blk.3.ffn_up_exps.weight", (4, 8, 32), True),
        ("blk.3.attn_q.bias", (8, 32), False),
        ("blk.3.attn_q_norm.weight", (8, 32), False),
        ("blk.3.ffn_gate_inp.weight", (8, 32), False),
        ("blk.3.thing.weight", (1, 32), False),
        ("blk.3.thing.weight", (32,), False),
        ("rope_freqs.weight", (), False),
    ],
)
def test_what_is_quantizable(name: str, shape: tuple[int, ...], yes: bool) -> None:
    assert is_quantizable(name, shape) is yes
