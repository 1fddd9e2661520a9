"""Mamba-2: no attention; each layer is a state that fades and grows with every token (arXiv 2405.21060)."""

import numpy as np

from satchel.formats.convert.mapping import ArchMapping, Guard, Key, Reader, Rule
from satchel.runtime.arch import Arch, HParams
from satchel.runtime.blocks import linear, windows
from satchel.runtime.graph import Node
from satchel.runtime.ops import OPS
from satchel.runtime.recurrent import per_head, plain_weight, scan, short_conv, sizes_of, steps_and_fading

UNLIMITED = 1 << 20  # what files say of the context, which nothing limits


def _extra(reader: Reader) -> None:
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


_LAYER, _MIXER = "backbone.layers.{i}.", "backbone.layers.{i}.mixer."
MAPPING = ArchMapping(
    classes=("Mamba2ForCausalLM",),
    model_type="mamba2",
    arch="mamba2",
    rules=(
        Rule("backbone.embeddings", "token_embd", suffixes=("weight",)),
        Rule("backbone.norm_f", "output_norm", suffixes=("weight",)),
        Rule("lm_head", "output", needed=False, suffixes=("weight",)),
        Rule(f"{_LAYER}norm", "blk.{i}.attn_norm", suffixes=("weight",)),
        Rule(f"{_MIXER}in_proj", "blk.{i}.ssm_in"),
        Rule(f"{_MIXER}conv1d.weight", "blk.{i}.ssm_conv1d.weight", suffixes=("",), made="taps"),
        Rule(f"{_MIXER}conv1d.bias", "blk.{i}.ssm_conv1d.bias", suffixes=("",), needed=False),
        Rule(f"{_MIXER}dt_bias", "blk.{i}.ssm_dt.bias", suffixes=("",)),
        Rule(f"{_MIXER}A_log", "blk.{i}.ssm_a", suffixes=("",), made="fading_column"),
        Rule(f"{_MIXER}D", "blk.{i}.ssm_d", suffixes=("",), made="column"),
        Rule(f"{_MIXER}norm", "blk.{i}.ssm_norm", suffixes=("weight",), made="by_group"),
        Rule(f"{_MIXER}out_proj", "blk.{i}.ssm_out"),
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
        Guard("hidden_act", ("silu", "swish"), "silu"),
        Guard("rms_norm", (True,), True),
        Guard("norm_before_gate", (False,), False),
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

    def states(self, i: int) -> tuple[tuple[int, ...], ...]:
        return sizes_of(self).states

    def layer(self, x: Node, i: int) -> Node:
        s, p = sizes_of(self), f"blk.{i}."
        mixed = linear(self, self.norm(x, f"{p}attn_norm"), f"{p}ssm_in", s.inner + s.channels + s.heads)
        gate, mixed, step = windows(mixed, s.inner, s.channels, s.heads)
        v, k, q = windows(short_conv(self, mixed, i), s.inner, s.shared, s.shared)
        step, fading = steps_and_fading(self, step, i)
        y = OPS["reshape"](scan(self, i, q, k, v, fading, step, delta=False), shape=(s.inner,))
        skip = self.graph.const(np.repeat(per_head(self, i, "d"), s.size), "f32", "skip")
        y = OPS["swiglu"](gate, OPS["add"](y, OPS["mul"](v, skip)))
        return OPS["add"](x, linear(self, self._norm_groups(y, i), f"{p}ssm_out", self.width))

    def _norm_groups(self, y: Node, i: int) -> Node:
        """y (T, D), each group of heads normed by itself."""
        groups, name = sizes_of(self).groups, f"blk.{i}.ssm_norm.weight"
        part = y.width // groups
        ones = self.graph.const(np.ones(part, np.float32), "f32", "one")
        y = OPS["rms_norm"](OPS["reshape"](y, shape=(groups, part)), ones, eps=self.eps)
        return OPS["reshape"](
            OPS["mul"](y, plain_weight(self, name, groups, part)), shape=(y.width * groups,)
        )
