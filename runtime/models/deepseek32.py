"""DeepSeek V3.2: V3 with sparse attention to the indexer's top k positions, see runtime/layers/indexer.py.

gguf 0.19 names the indexer's tensors and keys (for GLM 5, whose layers are the same); the architecture's name
is the one that llama.cpp's later files have.
"""

from dataclasses import replace
from functools import partial

from satchel.formats.convert.mapping import ConfigReader, Key, Rule, check_layers
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Cache
from satchel.runtime.layers.blocks import pre_norm_layer
from satchel.runtime.layers.indexer import kept_keys, top_k_positions
from satchel.runtime.layers.latent import latent_attention
from satchel.runtime.models.deepseek2 import MAPPING as DENSE
from satchel.runtime.models.deepseek2 import DeepSeek2, feed, read_sizes

_INDEXER = "model.layers.{i}.self_attn.indexer."


def _extra(reader: ConfigReader) -> None:
    read_sizes(reader)
    dense = reader.config.get("first_k_dense_replace", 0)
    check_layers(reader, lambda i: "dense" if i < dense else "sparse", "mlp_layer_types")


MAPPING = replace(
    DENSE,
    classes=("DeepseekV32ForCausalLM",),
    model_type="deepseek_v32",
    arch="deepseek32",
    extra=_extra,
    rules=(
        *DENSE.rules,
        Rule(f"{_INDEXER}wq_b", "blk.{i}.indexer.attn_q_b"),
        Rule(f"{_INDEXER}wk", "blk.{i}.indexer.attn_k"),
        Rule(f"{_INDEXER}k_norm", "blk.{i}.indexer.k_norm"),
        Rule(f"{_INDEXER}weights_proj", "blk.{i}.indexer.proj"),
    ),
    keys=(
        *DENSE.keys,
        Key("attention.indexer.head_count", ("index_n_heads",)),
        Key("attention.indexer.key_length", ("index_head_dim",)),
        Key("attention.indexer.top_k", ("index_topk",)),
    ),
)


class DeepSeek32(DeepSeek2):
    def layer(self, x: Node, i: int) -> Node:
        attend = partial(latent_attention, select=top_k_positions)
        return pre_norm_layer(self, x, i, attend=attend, feed=feed)

    def kept(self, i: int, cache: Cache) -> tuple[tuple[int, int, str], ...]:
        return (*super().kept(i, cache), *kept_keys(self, cache))
