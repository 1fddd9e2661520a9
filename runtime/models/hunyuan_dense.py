"""Hunyuan (dense): Llama's layer with norms of queries and keys per head after RoPE."""

from satchel.formats.convert.mapping import DENSE_BODY, DENSE_GUARDS, DENSE_KEYS, ArchMapping, Rule
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attend, pre_norm_layer, projections, rotate, write_cache

_ATTENTION = "model.layers.{i}.self_attn."
MAPPING = ArchMapping(
    classes=("HunYuanDenseV1ForCausalLM",),
    model_type="hunyuan_v1_dense",
    arch="hunyuan-dense",
    rules=(
        *DENSE_BODY,
        Rule(f"{_ATTENTION}query_layernorm", "blk.{i}.attn_q_norm", suffixes=("weight",)),
        Rule(f"{_ATTENTION}key_layernorm", "blk.{i}.attn_k_norm", suffixes=("weight",)),
    ),
    keys=DENSE_KEYS,
    guards=DENSE_GUARDS,
)


class HunyuanDense(Arch):
    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, attend=_attention)


def _attention(a: Arch, x: Node, i: int) -> Node:
    p, heads, kv = f"blk.{i}.attn_", a.heads[i], a.kv_heads[i]
    q, k, v = projections(a, x, i)
    a.weight(f"{p}q_norm.weight", a.head_dim), a.weight(f"{p}k_norm.weight", a.head_dim)
    q = rotate(a, ops.reshape(q, shape=(heads, a.head_dim)), i)
    k = rotate(a, ops.reshape(k, shape=(kv, a.head_dim)), i)
    v = ops.reshape(v, shape=(kv, a.value_dim))
    return attend(a, a.norm(q, f"{p}q_norm"), write_cache(a, a.norm(k, f"{p}k_norm"), v, i), i)
