"""AWQ mappings of a layer: which tensors produce an input, and which matrices consume it.

AWQ multiplies the consumers' columns by scales and divides the producers' rows by them, so the model's
function is unchanged. A layer with an unknown tensor stays unscaled, because that tensor might consume a
divided input.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.errors import RequestError
from satchel.formats.quantizing.plan import TensorPlan
from satchel.formats.source import Source
from satchel.quant import FORMATS
from satchel.quant.format import F32

# Architectures with one norm before attention and one before the gated feed-forward, whose outputs have no
# other consumers.
ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3moe"})
# Producer of an input: its consumers.
NORMS = {
    "attn_norm": ("attn_q", "attn_k", "attn_v"),
    "ffn_norm": ("ffn_gate", "ffn_up", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"),
}
ROWS = {"attn_v": "attn_output", "ffn_up": "ffn_down"}
OTHERS = {"attn_q_norm", "attn_k_norm", "ffn_down_exps", *ROWS.values()}
KNOWN = {*NORMS, *ROWS, *OTHERS, *(name for names in NORMS.values() for name in names)}
LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")


@dataclass(frozen=True, slots=True)
class AwqMapping:
    """Producers and consumers that share scales.

    The producers have heads * width rows, the consumers heads * sharing * width columns: query heads that
    share a value head (GQA) share its scales.
    """

    producers: tuple[str, ...]  # tensors whose rows (of a norm: elements) are divided
    consumers: tuple[str, ...]  # matrices whose columns are multiplied
    heads: int
    sharing: int  # query heads per value head
    width: int

    def spread(self, scales: F32) -> F32:
        """The scales of the consumers' columns (heads * sharing * width,) from the producers' (heads *
        width,).
        """
        shape = self.heads, self.sharing, self.width
        return np.broadcast_to(scales.reshape(self.heads, 1, self.width), shape).reshape(-1)

    def pool(self, squares: F32) -> F32:
        """The mean over query heads that share a value head: (heads * sharing * width,) to
        (heads * width,).
        """
        shared = squares.reshape(self.heads, self.sharing, self.width)
        return np.asarray(shared.mean(axis=1), np.float32).reshape(-1)


Layer = Mapping[str, TensorPlan]  # by name without the layer: "attn_q.weight"


def find_mappings(
    source: Source, choices: Sequence[TensorPlan], known: Collection[str]
) -> tuple[AwqMapping, ...]:
    """The mappings that this file allows. known: names of matrices with importance data. RequestError where
    there is none.
    """
    arch = source.metadata.get_str("general.architecture", "")
    if arch not in ARCHITECTURES:
        names = ", ".join(sorted(ARCHITECTURES))
        raise RequestError(f"{source.path}: AWQ: expected one of {names}, got {arch!r}; leave out --awq")
    layers: dict[int, dict[str, TensorPlan]] = {}
    for choice in choices:
        if found := LAYER.fullmatch(choice.name):
            layers.setdefault(int(found[1]), {})[found[2]] = choice
    count = source.metadata.get_uint(f"{arch}.block_count", max(layers, default=0) + 1)
    heads = source.metadata.get_uints(f"{arch}.attention.head_count", count, (0,) * count)
    values = source.metadata.get_uints(f"{arch}.attention.head_count_kv", count, heads)
    mappings: list[AwqMapping] = []
    for i, layer in layers.items():
        if i < count and {name.partition(".")[0] for name in layer} <= KNOWN:
            mappings += _after_norms(layer, known)
            mappings += _after_rows(layer, heads[i], values[i], known)
    if not mappings:
        raise RequestError(
            f"{source.path}: AWQ: expected matrices with importance that become block formats, behind F32"
            " norms, found none; leave out --awq"
        )
    return tuple(mappings)


def _after_norms(layer: Layer, known: Collection[str]) -> Iterator[AwqMapping]:
    for norm, names in NORMS.items():
        producers = _there(layer, f"{norm}.weight", f"{norm}.bias")
        consumers = _there(layer, *(f"{name}.weight" for name in names))
        if producers and consumers and _fits(producers, consumers, consumers[0].shape[-1], known):
            yield _mapping(producers, consumers, 1, 1, consumers[0].shape[-1])


def _after_rows(layer: Layer, heads: int, values: int, known: Collection[str]) -> Iterator[AwqMapping]:
    for producer, consumer in ROWS.items():
        producers = _there(layer, f"{producer}.weight", f"{producer}.bias")
        consumers = _there(layer, f"{consumer}.weight")
        # Without a gate, an activation stands between the two, and scales do not commute with it.
        if not consumers or not producers or (producer == "ffn_up" and "ffn_gate.weight" not in layer):
            continue
        rows, columns = producers[0].shape[0], consumers[0].shape[-1]
        count, sharing = _share(heads, values) if producer == "attn_v" else (1, 1)
        whole = count and rows % count == 0 and rows * sharing == columns
        if whole and _fits(producers, consumers, rows, known):
            yield _mapping(producers, consumers, count, sharing, rows // count)


def _share(heads: int, values: int) -> tuple[int, int]:
    """The number of value heads and of query heads per value head; zeros where it is not an integer."""
    return (values, heads // values) if values and heads % values == 0 else (0, 0)


def _there(layer: Layer, *names: str) -> list[TensorPlan]:
    return [layer[name] for name in names if name in layer]


def _mapping(
    producers: list[TensorPlan], consumers: list[TensorPlan], heads: int, sharing: int, width: int
) -> AwqMapping:
    return AwqMapping(
        tuple(c.name for c in producers), tuple(c.name for c in consumers), heads, sharing, width
    )


def _fits(
    producers: list[TensorPlan], consumers: list[TensorPlan], size: int, known: Collection[str]
) -> bool:
    """Whether the mapping can be scaled: some consumer becomes a block format, and every scaled tensor is
    either encoded anyway or stored as float32, so scaling adds no rounding of its own.
    """
    encoded = [c for c in consumers if _encoded(c)]
    return (
        bool(encoded)
        and all(c.name in known for c in encoded)
        and all(_encoded(c) or c.target == "f32" for c in (*producers, *consumers))
        and all(len(c.shape) <= 2 for c in producers)
        and all(c.shape[0] == size for c in producers)
        and len({c.shape[-1] for c in consumers}) == 1
    )


def _encoded(choice: TensorPlan) -> bool:
    return choice.changed and FORMATS[choice.target].block > 1
