"""StableLM 2 and 3B: Llama's layer with norms that take the mean away and rotary pairs of halves over a part
of each head; in some, attention and feed-forward side by side, and a norm for each head of queries and keys.
"""

from dataclasses import replace

from satchel.formats.convert.mapping import (
    ATTENTION,
    CENTERED_KEYS,
    DENSE_GUARDS,
    NORMS,
    OUTSIDE,
    SWIGLU,
    ArchMapping,
    ConfigCheck,
    ConfigReader,
    Rule,
    with_bias,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import parallel_layer, pre_norm_layer, swiglu


def _parallel(reader: ConfigReader) -> None:
    found = reader.config.get("use_parallel_residual", False)
    if not isinstance(found, bool):
        raise reader.fault("use_parallel_residual", "true or false", found)
    reader.put("use_parallel_residual", found)


MAPPING = ArchMapping(
    classes=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    model_type="stablelm",
    arch="stablelm",
    rules=(
        *with_bias((*OUTSIDE, NORMS[0])),
        replace(*with_bias((NORMS[1],)), needed=False),
        *ATTENTION,
        *SWIGLU,
        *(
            Rule(
                f"model.layers.{{i}}.self_attn.{n}_layernorm.norms.{{e}}",
                f"blk.{{i}}.attn_{n}_norm",
                suffixes=("weight",),
                needed=False,
                stack=heads,
            )
            for n, heads in (("q", "attention.head_count"), ("k", "attention.head_count_kv"))
        ),
    ),
    keys=CENTERED_KEYS,
    guards=(*DENSE_GUARDS, ConfigCheck("qk_layernorm", (False, True), False)),
    extra=_parallel,
    partial=True,
)


class StableLm(Arch):
    centered = True

    def layer(self, x: Node, i: int) -> Node:
        # Files that have this norm may say parallel too, and are not.
        alone = self.weights.type(f"blk.{i}.ffn_norm.weight") is None
        if alone and self.hp.flag("use_parallel_residual", True):
            return parallel_layer(self, x, i, feed=swiglu)
        return pre_norm_layer(self, x, i)
