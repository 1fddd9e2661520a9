"""Falcon: attention and a feed-forward with GELU side by side, few KV heads, norms that take the mean away.

The larger models norm what the attention sees and what the feed-forward sees apart: attn_norm_2 is then the
attention's. The RW models have one after the other, with a norm before each, and ALiBi instead of RoPE.
"""

from satchel.formats.convert.mapping import ArchMapping, ConfigCheck, ConfigReader, Key, Rule
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import mlp_erf, parallel_layer, pre_norm_layer, usual_alibi

_LAYER = "transformer.h.{i}."


def _extra(reader: ConfigReader) -> None:
    """KV heads as the three generations of configs mean them; the feed-forward's width, by default 4 times
    the model's.
    """
    config = reader.config
    grouped = bool(config.get("new_decoder_architecture"))
    heads = config.get("num_attention_heads") or config.get("n_head")
    kv = (
        config.get("num_kv_heads") or config.get("n_head_kv") or heads
        if grouped
        else (1 if config.get("multi_query", True) else heads)
    )
    reader.put("attention.head_count_kv", reader.number(kv, "num_kv_heads", int, 1))
    width = reader.number(config.get("hidden_size"), "hidden_size", int, 1)
    size = config.get("ffn_hidden_size") or 4 * width
    reader.put("feed_forward_length", reader.number(size, "ffn_hidden_size", int, 1))
    if grouped and config.get("parallel_attn", True) is not True:
        raise reader.fault("parallel_attn", "true", config["parallel_attn"], "this variant is not supported")
    if config.get("parallel_attn", True) is not True:
        reader.put("use_parallel_residual", False)
    if config.get("alibi"):
        reader.put("attention.max_alibi_bias", 8.0)
    if config.get("max_position_embeddings") is None:
        reader.put("context_length", 2048)


MAPPING = ArchMapping(
    classes=("FalconForCausalLM", "RWForCausalLM"),
    model_type="falcon",
    arch="falcon",
    rules=(
        Rule("transformer.word_embeddings", "token_embd", suffixes=("weight",)),
        Rule("transformer.ln_f", "output_norm"),
        Rule("lm_head", "output", needed=False),
        Rule(f"{_LAYER}input_layernorm", "blk.{i}.attn_norm", needed=False),
        Rule(f"{_LAYER}ln_mlp", "blk.{i}.attn_norm", needed=False),
        Rule(f"{_LAYER}ln_attn", "blk.{i}.attn_norm_2", needed=False),
        Rule(f"{_LAYER}post_attention_layernorm", "blk.{i}.ffn_norm", needed=False),
        Rule(f"{_LAYER}self_attention.query_key_value", "blk.{i}.attn_qkv", made="grouped_qkv"),
        Rule(f"{_LAYER}self_attention.dense", "blk.{i}.attn_output"),
        Rule(f"{_LAYER}mlp.dense_h_to_4h", "blk.{i}.ffn_up"),
        Rule(f"{_LAYER}mlp.dense_4h_to_h", "blk.{i}.ffn_down"),
    ),
    keys=(
        Key("block_count", ("num_hidden_layers", "n_layer")),
        Key("context_length", ("max_position_embeddings",), optional=True),
        Key("embedding_length", ("hidden_size",)),
        Key("attention.head_count", ("num_attention_heads", "n_head")),
        Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), float),
    ),
    guards=(ConfigCheck("alibi", (False, True), False), ConfigCheck("activation", ("gelu",), "gelu")),
    extra=_extra,
)


class Falcon(Arch):
    centered = True

    def rotates(self, i: int) -> bool:
        return not self.alibi(i)

    def alibi(self, i: int) -> float:
        """The slopes are scaled as the scores are."""
        stated = self.hp.real("attention.max_alibi_bias", 0.0)
        return usual_alibi(self) * self.head_dim**-0.5 if stated else 0.0

    def layer(self, x: Node, i: int) -> Node:
        if not self.hp.flag("use_parallel_residual", True):
            return pre_norm_layer(self, x, i, feed=mlp_erf)
        own = self.weights.type(f"blk.{i}.attn_norm_2.weight") is not None
        return parallel_layer(self, x, i, feed=mlp_erf, seen="attn_norm_2" if own else "attn_norm")
