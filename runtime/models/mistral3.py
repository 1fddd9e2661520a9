"""Ministral 3 (and models published as mistral3): Llama's layer with YaRN, and temperature tuning of queries
past the original context.
"""

from collections.abc import Mapping

import numpy as np

from satchel.formats.convert.mapping import (
    DENSE_GUARDS,
    DENSE_KEYS,
    LLAMA_BODY,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
)
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import pre_norm_layer


def _extra(reader: ConfigReader) -> None:
    """The slope of the temperature tuning; its step is YaRN's original context."""
    stated = reader.config.get("rope_parameters")
    if not isinstance(stated, Mapping):
        raise reader.fault("rope_parameters", "an object", stated)
    slope = stated.get("llama_4_scaling_beta")
    if slope is not None:
        reader.put("attention.temperature_scale", reader.number(slope, "llama_4_scaling_beta", float))
        step = stated.get("original_max_position_embeddings")
        reader.number(step, "original_max_position_embeddings", int)


MAPPING = ArchMapping(
    classes=("Ministral3ForCausalLM",),
    model_type="ministral3",
    arch="mistral3",
    rules=LLAMA_BODY,
    keys=DENSE_KEYS,
    guards=(*DENSE_GUARDS, ConfigCheck("sliding_window", (None,), None)),
    extra=_extra,
)


class Mistral3(Arch):
    rope_style = 0

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i)

    def adjust(self, q: Node, k: Node, i: int) -> tuple[Node, Node]:
        """Temperature tuning: queries times 1 + slope * ln(1 + floor(pos / step)), from a table of all
        positions.
        """
        slope = self.hp.real("attention.temperature_scale", 0.0)
        if not slope:
            return q, k
        step = self.hp.uint("rope.scaling.original_context_length", self.context, high=1 << 30)
        # One table for every context up to the trained one, so that a built file's plan holds for them all.
        part = np.arange(max(self.context, self.cache.context)) // step
        table = np.asarray(1 + slope * np.log1p(part), np.float32).reshape(-1, 1)
        share = ops.get_rows(self.graph.const(table, "f32", "sharpness"), self.pos)
        return ops.mul(q, ops.reshape(share, shape=(1, 1))), k
