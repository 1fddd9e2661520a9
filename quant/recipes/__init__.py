"""Selects the format of each tensor of a model for a named mix (mixes.py), from names and shapes alone.

Rules common to all mixes are here: which tensors are quantized, and the format of rows that are not whole
blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from satchel.quant.formats import FORMATS
from satchel.quant.recipes.mixes import (
    DOWN,
    RECIPES,
    SHARED,
    VALUES,
    ModelFacts,
    Recipe,
    TensorPosition,
    eight,
)

__all__ = ["NEEDS_IMPORTANCE", "RECIPES", "Recipe", "choose_formats", "fit_format", "is_quantizable"]

Shape = Sequence[int]
_LAYER = re.compile(r"^blk\.(\d+)\.")
# Small matrices whose rounding costs quality and saves nothing: routers, positions, recurrent mixing.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp|ffn_gate_tid2eid|position_embd|token_types|pos_embd|patch_embd|patch_merger"
    r"|altup|laurel|per_layer_model_proj|ssm_conv1d|shortconv\.conv|indexer\.[kq]_proj|attn_rel_b|\.rel_pos"
    r"|time_mix_(first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)\.weight|sam\.ne(ck\.|t_)"
    r"|a\.rvq\.codebook|mm\.a\.code_embd"
)
# Where a row is no whole number of blocks: the 32-block format of the next larger size.
_NARROW = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0", "q2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "nvfp4": "mxfp4",
}
# Formats whose few codes go to the wrong weights without importance data: their encoders refuse to.
NEEDS_IMPORTANCE = frozenset(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"))


def is_quantizable(name: str, shape: Shape) -> bool:
    """Weight matrices only: norms, biases, routers and all of one dimension keep the source's type."""
    return name.endswith("weight") and _dimensions(shape) >= 2 and not _KEPT.search(name)


def fit_format(wanted: str, row: int) -> str:
    """`wanted`, or the nearest larger format whose block divides a row of this length, f16 in the end."""
    while row % FORMATS[wanted].block:
        wanted = _NARROW.get(wanted, "f16")
    return wanted


def choose_formats(
    recipe: Recipe,
    shapes: Mapping[str, Shape],
    experts: int = 0,
    pure: bool = False,
    sharing: int = 1,
    importance: bool = False,
) -> dict[str, str]:
    """Format of each tensor that the recipe changes; a tensor that is missing from the result is copied as it
    is.

    shapes: outermost dimension first. experts: the model's expert_count. pure: base for every matrix.
    sharing: how many query heads share a key head (head_count / head_count_kv). importance: whether there is
    importance data, without which some recipes give a little more to the first layers.
    """
    layers = max((_layer(name) for name in shapes), default=-1) + 1
    places = _places(shapes, ModelFacts(experts, sharing, importance, layers))
    head = "output.weight" if "output.weight" in shapes else "token_embd.weight"
    chosen: dict[str, str] = {}
    for name, shape in shapes.items():
        if not is_quantizable(name, shape):
            continue
        if pure or not recipe.quantized:
            wanted = recipe.base
        elif name == head:
            wanted = recipe.head if shape[-1] % 256 == 0 else "q8_0"
        else:
            wanted = _choose(recipe, name, places[name])
        chosen[name] = fit_format(wanted, shape[-1])
    return chosen


def _dimensions(shape: Shape) -> int:
    return len(shape) - next((i for i, n in enumerate(shape) if n != 1), len(shape))


def _layer(name: str) -> int:
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def _places(shapes: Mapping[str, Shape], facts: ModelFacts) -> dict[str, TensorPosition]:
    """Values count the layers that have attention: in a hybrid model not all do."""
    attending = sorted(_layer(name) for name in shapes if VALUES.search(name))
    downs = sorted((name for name in shapes if DOWN.search(name)), key=lambda name: (_layer(name), name))
    order = {name: i for i, name in enumerate(downs)}
    places = {}
    for name, shape in shapes.items():
        layer, count = _layer(name), facts.layers
        if VALUES.search(name):
            layer, count = attending.index(layer), len(attending)
        stacked = _dimensions(shape) > 2
        places[name] = TensorPosition(layer, count, order.get(name, layer), stacked, facts)
    return places


def _choose(recipe: Recipe, name: str, place: TensorPosition) -> str:
    if not recipe.low and eight(place) and SHARED.search(name):
        return "q8_0"
    fitting = (rule.format for rule in recipe.rules if rule.part.search(name) and rule.test(place))
    wanted = next(fitting, recipe.base)
    # In 80-layer models eight heads share each value matrix: it is small, a fifth bit is nearly free.
    if not recipe.low and place.facts.layers == 80 and VALUES.search(name) and wanted in ("q3_k", "q4_k"):
        return "q5_k"
    return wanted
