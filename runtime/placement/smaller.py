"""Finds a quantization with which a model would fit."""

from __future__ import annotations

from satchel.formats.gguf import GGUF
from satchel.formats.quantizing.plan import QuantizeOptions, plan_tensors
from satchel.quant.recipes import NEEDS_IMPORTANCE, RECIPES, Recipe


def recipe_that_fits(gguf: GGUF, room: int) -> Recipe | None:
    """The largest recipe whose weights take at most `room` bytes and fewer than the file's; None if there is
    none. Recipes that need importance data are left out.
    """
    now = sum(info.nbytes for info in gguf.tensors.values())
    best, size = None, 0
    for recipe in RECIPES.values():
        choices = plan_tensors(gguf, QuantizeOptions(recipe, requantize=True))
        needed = sum(c.bytes_after for c in choices)
        blind = NEEDS_IMPORTANCE.isdisjoint(c.target for c in choices)
        if blind and size < needed <= min(room, now - 1):
            best, size = recipe, needed
    return best
