"""Named mixes of formats (Q4_K_M and the like): the rules by which a recipe tells a model's tensors apart.

They equal llama-quantize's, so that files of one name have one size and comparable quality.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from satchel.quant.formats import FORMATS

_EMBEDDING = re.compile(r"^(per_layer_)?token_embd\.weight$")
VALUES = re.compile(r"attn_(v|qkv|kv_b)\.weight")
_KEYS = re.compile(r"attn_k\.weight")
_QUERIES = re.compile(r"attn_q\.weight")
SHARED = re.compile(r"attn_(v|qkv|kv_b|k)\.weight")
_OUT = re.compile(r"attn_output\.weight")
DOWN = re.compile(r"ffn_down")
_UP = re.compile(r"ffn_(up|gate)")
_ANY = re.compile("")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model on which the mix depends, apart from tensor names."""

    experts: int  # expert_count
    sharing: int  # query heads per key head
    importance: bool  # importance data is given
    layers: int  # number of layers


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """The position of a tensor in the model."""

    index: int  # of its layer; for V, among the layers with attention
    count: int  # of such layers
    order: int  # number of earlier tensors of its kind
    stacked: bool  # it holds experts
    facts: ModelFacts


Test = Callable[[TensorPosition], bool]


def _always(place: TensorPosition) -> bool:
    return True


def _first_two(place: TensorPosition) -> bool:
    return place.index < 2


def _first_four(place: TensorPosition) -> bool:
    return place.index < 4


def _first_sixteenth(place: TensorPosition) -> bool:
    return place.index < place.count // 16


def _first_eighth(place: TensorPosition) -> bool:
    return place.index < place.count // 8


def _first_by_order(place: TensorPosition) -> bool:
    return place.order < place.count // 8


def _middle(place: TensorPosition) -> bool:
    return place.count // 8 <= place.index < 7 * place.count // 8


def _sensitive(place: TensorPosition) -> bool:
    """First and last eighth, and every third layer between: about half of them."""
    eighth = place.count // 8
    index = place.index
    return index < eighth or index >= 7 * place.count // 8 or (index - eighth) % 3 == 2


def _sharing(place: TensorPosition) -> bool:
    """Four query heads or more share a value head, so value matrices are small."""
    return place.facts.sharing >= 4


def _sharing_or_experts(place: TensorPosition) -> bool:
    return _sharing(place) or place.facts.experts >= 4


def eight(place: TensorPosition) -> bool:
    """With eight experts the shared attention is small beside them, so it gets more bits."""
    return place.facts.experts == 8


def _unguided(place: TensorPosition) -> bool:
    return not place.facts.importance


def _unguided_first_eighth(place: TensorPosition) -> bool:
    return _unguided(place) and _first_eighth(place)


def _guided_first_eighth(place: TensorPosition) -> bool:
    return place.facts.importance and _first_eighth(place)


def _eight_and_sensitive(place: TensorPosition) -> bool:
    return eight(place) and _sensitive(place)


def _single(place: TensorPosition) -> bool:
    return not place.stacked


@dataclass(frozen=True, slots=True)
class MixRule:
    """Tensors whose name contains `part` get `format` where `test` accepts their position."""

    part: re.Pattern[str]
    format: str
    test: Test = _always


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named mix."""

    name: str
    file_type: int  # value of general.file_type
    base: str  # format of every matrix
    head: str  # format of the output matrix, which is the embedding where they are tied
    rules: tuple[MixRule, ...] = ()  # the first that matches wins over `base`
    low: bool = False  # V keeps the rules' format in models of eight experts and of 80 layers

    @property
    def quantized(self) -> bool:
        return FORMATS[self.base].block > 1


_EIGHT_OUT = MixRule(_OUT, "q5_k", eight)
_SHARED_VALUES = MixRule(VALUES, "q4_k", _sharing)
_MEDIUM = (MixRule(VALUES, "q6_k", _sensitive), MixRule(DOWN, "q6_k", _sensitive))
_SMALL = (MixRule(VALUES, "q5_k", _first_four), MixRule(DOWN, "q5_k", _first_eighth), _EIGHT_OUT)
_NONLINEAR = (MixRule(VALUES, "q5_k", _sharing), MixRule(DOWN, "q5_k", _unguided_first_eighth), _EIGHT_OUT)


def _lowest(small: str, out: str | None) -> tuple[MixRule, ...]:
    """Rules below three bits: values, the first ffn_down and the embedding get `small` or more."""
    rules = (
        MixRule(_EMBEDDING, small),
        MixRule(VALUES, "q4_k", _sharing_or_experts),
        MixRule(VALUES, small),
        MixRule(_KEYS, "q4_k", eight),
        MixRule(DOWN, small, _first_by_order),
        _EIGHT_OUT,
    )
    return rules if out is None else (*rules, MixRule(_OUT, out))


_Q2_K = (
    *(_SHARED_VALUES, MixRule(VALUES, "q3_k"), MixRule(DOWN, "q3_k")),
    *(_EIGHT_OUT, MixRule(_OUT, "q3_k")),
)
_Q3_K_M = (
    *(MixRule(VALUES, "q5_k", _first_two), MixRule(VALUES, "q4_k")),
    *(MixRule(DOWN, "q5_k", _first_sixteenth), MixRule(DOWN, "q4_k")),
    *(_EIGHT_OUT, MixRule(_OUT, "q4_k")),
)
_Q3_K_L = (
    *(MixRule(VALUES, "q5_k"), MixRule(DOWN, "q5_k")),
    *(MixRule(_OUT, "q3_k", eight), MixRule(_OUT, "q5_k")),
)
_IQ3_XXS = (
    *(MixRule(_EMBEDDING, "iq3_s"), _SHARED_VALUES, MixRule(VALUES, "iq3_s", _unguided)),
    *(MixRule(_QUERIES, "iq2_s"), MixRule(_KEYS, "iq2_s")),
    *(MixRule(DOWN, "q4_k", _unguided_first_eighth), MixRule(DOWN, "q3_k", _unguided)),
    *(_EIGHT_OUT, MixRule(_OUT, "iq3_s")),
)
_IQ3_XS = (
    *(_SHARED_VALUES, MixRule(_QUERIES, "iq3_xxs"), MixRule(_KEYS, "iq3_xxs")),
    *(MixRule(_UP, "iq3_xxs", _middle), _EIGHT_OUT),
)
_IQ3_M = (
    *(
        MixRule(VALUES, "q4_k"),
        MixRule(DOWN, "q4_k", _first_eighth),
        MixRule(DOWN, "q4_k", _eight_and_sensitive),
    ),
    *(_EIGHT_OUT, MixRule(_OUT, "q4_k")),
)
_TERNARY = (MixRule(_EMBEDDING, "q4_k"),)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("F32", 0, "f32", "f32"),
        Recipe("F16", 1, "f16", "f16"),
        Recipe("BF16", 32, "bf16", "bf16"),
        Recipe("Q8_0", 7, "q8_0", "q8_0"),
        Recipe("Q4_0", 2, "q4_0", "q6_k", (MixRule(DOWN, "q4_1", _guided_first_eighth),)),
        Recipe("Q4_1", 3, "q4_1", "q6_k"),
        Recipe("Q5_0", 8, "q5_0", "q6_k", (MixRule(DOWN, "q5_1", _guided_first_eighth),)),
        Recipe("Q5_1", 9, "q5_1", "q6_k"),
        Recipe("Q2_K", 10, "q2_k", "q6_k", _Q2_K),
        Recipe("Q2_K_S", 21, "q2_k", "q6_k", (_SHARED_VALUES, MixRule(DOWN, "q4_k", _first_eighth))),
        Recipe("Q3_K_S", 11, "q3_k", "q6_k", (_EIGHT_OUT,)),
        Recipe("Q3_K_M", 12, "q3_k", "q6_k", _Q3_K_M),
        Recipe("Q3_K_L", 13, "q3_k", "q6_k", _Q3_K_L),
        Recipe("Q4_K_S", 14, "q4_k", "q6_k", _SMALL),
        Recipe("Q4_K_M", 15, "q4_k", "q6_k", (*_MEDIUM, _EIGHT_OUT)),
        Recipe("Q5_K_S", 16, "q5_k", "q6_k"),
        Recipe("Q5_K_M", 17, "q5_k", "q6_k", _MEDIUM),
        Recipe("Q6_K", 18, "q6_k", "q6_k"),
        Recipe("IQ1_S", 24, "iq1_s", "q5_k", _lowest("q2_k", "iq2_xxs"), low=True),
        Recipe("IQ1_M", 31, "iq1_m", "q5_k", _lowest("q2_k", "iq2_xxs"), low=True),
        Recipe("IQ2_XXS", 19, "iq2_xxs", "q5_k", _lowest("q2_k", None), low=True),
        Recipe("IQ2_XS", 20, "iq2_xs", "q5_k", _lowest("q2_k", None), low=True),
        Recipe("IQ2_S", 28, "iq2_xs", "q5_k", _lowest("iq3_s", "iq3_s"), low=True),
        Recipe("IQ2_M", 29, "iq2_s", "q5_k", _lowest("iq3_s", "iq3_s"), low=True),
        Recipe("IQ3_XXS", 23, "iq3_xxs", "q5_k", _IQ3_XXS),
        Recipe("IQ3_XS", 22, "iq3_s", "q6_k", _IQ3_XS),
        Recipe("IQ3_S", 26, "iq3_s", "q6_k", (_SHARED_VALUES, _EIGHT_OUT)),
        Recipe("IQ3_M", 27, "iq3_s", "q6_k", _IQ3_M),
        Recipe("IQ4_NL", 25, "iq4_nl", "q6_k", _NONLINEAR),
        Recipe("IQ4_XS", 30, "iq4_xs", "q6_k", _NONLINEAR),
        Recipe("TQ1_0", 36, "tq1_0", "q6_k", _TERNARY),
        Recipe("TQ2_0", 37, "tq2_0", "q6_k", _TERNARY),
        Recipe("MXFP4_MOE", 38, "mxfp4", "q8_0", (MixRule(_ANY, "q8_0", _single),), low=True),
        Recipe("NVFP4", 39, "nvfp4", "q6_k"),
        Recipe("Q1_0", 40, "q1_0", "q6_k"),
        Recipe("Q2_0", 41, "q2_0", "q6_k"),
    )
}
