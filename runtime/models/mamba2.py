"""Mamba-2: no attention; each layer is a state that fades and grows with every token (arXiv 2405.21060)."""

from satchel.formats.convert.hybrid import mamba_net_rules
from satchel.formats.convert.mapping import ArchMapping, ConfigCheck, ConfigReader, Key, Rule
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch, HParams
from satchel.runtime.layers.recurrent import mamba_net, ssm_dims

UNLIMITED = 1 << 20  # what files say of the context, which nothing limits


def _extra(reader: ConfigReader) -> None:
    config = reader.config
    width, heads, size = (
        reader.number(config.get(key), key, int, 1) for key in ("hidden_size", "num_heads", "head_dim")
    )
    inner = int(reader.number(config.get("expand", 2), "expand", float, 1e-6) * width)
    if inner != heads * size:
        raise reader.fault("num_heads", f"heads of {size} that make up {inner}", heads)
    for name, number in (
        ("context_length", UNLIMITED),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("ssm.inner_size", inner),
        ("ssm.time_step_rank", heads),
    ):
        reader.put(name, number)


_LAYER = "backbone.layers.{i}."
MAPPING = ArchMapping(
    classes=("Mamba2ForCausalLM",),
    model_type="mamba2",
    arch="mamba2",
    rules=(
        Rule("backbone.embeddings", "token_embd", suffixes=("weight",)),
        Rule("backbone.norm_f", "output_norm", suffixes=("weight",)),
        Rule("lm_head", "output", needed=False, suffixes=("weight",)),
        Rule(f"{_LAYER}norm", "blk.{i}.attn_norm", suffixes=("weight",)),
        *mamba_net_rules(f"{_LAYER}mixer."),
    ),
    keys=(
        Key("block_count", ("num_hidden_layers",)),
        Key("embedding_length", ("hidden_size",)),
        Key("attention.layer_norm_rms_epsilon", ("layer_norm_epsilon",), float),
        Key("ssm.conv_kernel", ("conv_kernel",)),
        Key("ssm.state_size", ("state_size",)),
        Key("ssm.group_count", ("n_groups",)),
    ),
    guards=(
        ConfigCheck("hidden_act", ("silu", "swish"), "silu"),
        ConfigCheck("rms_norm", (True,), True),
        ConfigCheck("norm_before_gate", (False,), False),
        ConfigCheck("time_step_limit", (None, [0.0, float("inf")])),
    ),
    ignored=(),
    extra=_extra,
    rope=False,
    head_dim=False,
)


class Mamba2(Arch):
    def _read_heads(self, hp: HParams) -> None:
        self.heads = self.kv_heads = (0,) * self.layers
        self.head_dim = self.value_dim = 0

    def recurrent_states(self, i: int) -> tuple[tuple[int, ...], ...]:
        return ssm_dims(self).state_shapes

    def layer(self, x: Node, i: int) -> Node:
        h = self.norm(x, f"blk.{i}.attn_norm")
        return ops.add(x, mamba_net(self, h, i))
