"""Which tensors of a layer fold into which.

A fold multiplies the columns of matrices that meet one input and divides what makes that input, so the model
computes the same. Only layers whose every tensor is known here are touched: another reader of an input would
meet it divided.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.formats.quantizing.plan import FormatChoice
from satchel.formats.source import Source
from satchel.quant import FORMATS, RequestError
from satchel.quant.format import F32

# Architectures of one norm before attention and one before the gated feed-forward part, both read by nothing
# else.
ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3moe"})
# Who makes an input, and who reads it.
NORMS = {
    "attn_norm": ("attn_q", "attn_k", "attn_v"),
    "ffn_norm": ("ffn_gate", "ffn_up", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"),
}
ROWS = {"attn_v": "attn_output", "ffn_up": "ffn_down"}
OTHERS = {"attn_q_norm", "attn_k_norm", "ffn_down_exps", *ROWS.values()}
KNOWN = {*NORMS, *ROWS, *OTHERS, *(name for names in NORMS.values() for name in names)}
LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")


@dataclass(frozen=True, slots=True)
class Fold:
    """makers: tensors whose rows or numbers are divided; readers: matrices whose columns are multiplied. The
    input's columns are (heads, sharing, width), the makers' rows (heads, width): query heads that share a
    value head share its scales.
    """

    makers: tuple[str, ...]
    readers: tuple[str, ...]
    heads: int
    sharing: int
    width: int

    def spread(self, scales: F32) -> F32:
        """Of columns (heads * sharing * width,) for those of the makers' rows (heads * width,)."""
        shape = self.heads, self.sharing, self.width
        return np.broadcast_to(scales.reshape(self.heads, 1, self.width), shape).reshape(-1)

    def pool(self, squares: F32) -> F32:
        """The mean over what shares a row: (heads * width,) for (heads * sharing * width,)."""
        shared = squares.reshape(self.heads, self.sharing, self.width)
        return np.asarray(shared.mean(axis=1), np.float32).reshape(-1)


Layer = Mapping[str, FormatChoice]  # by name without the layer: "attn_q.weight"


def find_folds(source: Source, choices: Sequence[FormatChoice], known: Collection[str]) -> tuple[Fold, ...]:
    """The folds that this file allows. known: names of matrices with importance. RequestError where there is
    no fold.
    """
    arch = source.metadata.get_str("general.architecture", "")
    if arch not in ARCHITECTURES:
        names = ", ".join(sorted(ARCHITECTURES))
        raise RequestError(f"{source.path}: folding: expected one of {names}, got {arch!r}; leave out --fold")
    layers: dict[int, dict[str, FormatChoice]] = {}
    for choice in choices:
        if found := LAYER.fullmatch(choice.name):
            layers.setdefault(int(found[1]), {})[found[2]] = choice
    count = source.metadata.get_uint(f"{arch}.block_count", max(layers, default=0) + 1)
    heads = source.metadata.get_uints(f"{arch}.attention.head_count", count, (0,) * count)
    values = source.metadata.get_uints(f"{arch}.attention.head_count_kv", count, heads)
    folds: list[Fold] = []
    for i, layer in layers.items():
        if i < count and {name.partition(".")[0] for name in layer} <= KNOWN:
            folds += _after_norms(layer, known)
            folds += _after_rows(layer, heads[i], values[i], known)
    if not folds:
        raise RequestError(
            f"{source.path}: folding: expected matrices with importance that become block formats, behind F32"
            " norms, found none; leave out --fold"
        )
    return tuple(folds)


def _after_norms(layer: Layer, known: Collection[str]) -> Iterator[Fold]:
    for norm, names in NORMS.items():
        makers = _there(layer, f"{norm}.weight", f"{norm}.bias")
        readers = _there(layer, *(f"{name}.weight" for name in names))
        if makers and readers and _fits(makers, readers, readers[0].shape[-1], known):
            yield _fold(makers, readers, 1, 1, readers[0].shape[-1])


def _after_rows(layer: Layer, heads: int, values: int, known: Collection[str]) -> Iterator[Fold]:
    for maker, reader in ROWS.items():
        makers = _there(layer, f"{maker}.weight", f"{maker}.bias")
        readers = _there(layer, f"{reader}.weight")
        # Without a gate, what stands between the two is no product.
        if not readers or not makers or (maker == "ffn_up" and "ffn_gate.weight" not in layer):
            continue
        rows, columns = makers[0].shape[0], readers[0].shape[-1]
        count, sharing = _share(heads, values) if maker == "attn_v" else (1, 1)
        whole = count and rows % count == 0 and rows * sharing == columns
        if whole and _fits(makers, readers, rows, known):
            yield _fold(makers, readers, count, sharing, rows // count)


def _share(heads: int, values: int) -> tuple[int, int]:
    """Value heads, and query heads for each; zeros where they are no whole number."""
    return (values, heads // values) if values and heads % values == 0 else (0, 0)


def _there(layer: Layer, *names: str) -> list[FormatChoice]:
    return [layer[name] for name in names if name in layer]


def _fold(
    makers: list[FormatChoice], readers: list[FormatChoice], heads: int, sharing: int, width: int
) -> Fold:
    return Fold(tuple(c.name for c in makers), tuple(c.name for c in readers), heads, sharing, width)


def _fits(makers: list[FormatChoice], readers: list[FormatChoice], size: int, known: Collection[str]) -> bool:
    """Whether scaling loses nothing but by the encoding that comes anyway, and something is to be gained."""
    encoded = [c for c in readers if _encoded(c)]
    return (
        bool(encoded)
        and all(c.name in known for c in encoded)
        and all(_encoded(c) or c.target == "f32" for c in (*makers, *readers))
        and all(len(c.shape) <= 2 for c in makers)
        and all(c.shape[0] == size for c in makers)
        and len({c.shape[-1] for c in readers}) == 1
    )


def _encoded(choice: FormatChoice) -> bool:
    return choice.changed and FORMATS[choice.target].block > 1
