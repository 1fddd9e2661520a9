"""GPT-2: learned positions, norms that take the mean away, biases everywhere, a feed-forward of two products
with GELU.
"""

from satchel.formats.convert.mapping import ArchMapping, ConfigCheck, ConfigReader, Key, Rule
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import mlp_tanh, pre_norm_layer


def _width(reader: ConfigReader) -> None:
    """The feed-forward's width, by default 4 times the model's."""
    size = reader.config.get("n_inner") or 4 * reader.number(reader.config.get("n_embd"), "n_embd", int, 1)
    reader.put("feed_forward_length", reader.number(size, "n_inner", int, 1))


MAPPING = ArchMapping(
    classes=("GPT2LMHeadModel",),
    model_type="gpt2",
    arch="gpt2",
    rules=(
        Rule("wte", "token_embd", suffixes=("weight",)),
        Rule("wpe", "position_embd", suffixes=("weight",)),
        Rule("ln_f", "output_norm"),
        Rule("lm_head", "output", needed=False),
        Rule("h.{i}.ln_1", "blk.{i}.attn_norm"),
        Rule("h.{i}.attn.c_attn", "blk.{i}.attn_qkv", made="transposed"),
        Rule("h.{i}.attn.c_proj", "blk.{i}.attn_output", made="transposed"),
        Rule("h.{i}.ln_2", "blk.{i}.ffn_norm"),
        Rule("h.{i}.mlp.c_fc", "blk.{i}.ffn_up", made="transposed"),
        Rule("h.{i}.mlp.c_proj", "blk.{i}.ffn_down", made="transposed"),
    ),
    keys=(
        Key("block_count", ("n_layer",)),
        Key("context_length", ("n_positions", "n_ctx")),
        Key("embedding_length", ("n_embd",)),
        Key("attention.head_count", ("n_head",)),
        Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), float),
    ),
    guards=(
        ConfigCheck("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new"),
        ConfigCheck("scale_attn_weights", (True,), True),
        ConfigCheck("scale_attn_by_inverse_layer_idx", (False,), False),
        ConfigCheck("add_cross_attention", (False,), False),
    ),
    extra=_width,
    rope=False,
    renames=((r"^transformer\.", ""),),
    ignored=(r"h\.\d+\.attn\.(masked_)?bias", r"transformer\.h\.\d+\.attn\.(masked_)?bias"),
)


class Gpt2(Arch):
    centered = True

    def embed(self, ids: Node) -> Node:
        places = self.weight("position_embd.weight", self.context, self.width)
        return ops.add(super().embed(ids), ops.get_rows(places, self.pos))

    def layer(self, x: Node, i: int) -> Node:
        return pre_norm_layer(self, x, i, feed=mlp_tanh)

    def rotates(self, i: int) -> bool:
        return False
