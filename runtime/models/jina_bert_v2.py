"""jina-bert-v2 (jina-embeddings-v2): BERT whose scores fall with distance (ALiBi) instead of places that are
added, with GeGLU; in its model of code queries and keys are normed, and what the attention gave once more.
"""

from dataclasses import replace

from satchel.formats.convert.mapping import ConfigCheck, Rule
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attention, geglu_erf, usual_alibi, with_segments
from satchel.runtime.models.bert import MAPPING as BERT

_LAYER = "encoder.layer.{i}."
_REPLACED = ("position_embd", "blk.{i}.ffn_up", "blk.{i}.ffn_down", "blk.{i}.layer_output_norm")

MAPPING = replace(
    BERT,
    classes=("JinaBertModel", "JinaBertForMaskedLM"),
    model_type="jina-bert-v2",
    arch="jina-bert-v2",
    rules=(
        *(rule for rule in BERT.rules if rule.target not in _REPLACED),
        Rule(f"{_LAYER}mlp.gated_layers", "blk.{i}.ffn_up"),
        Rule(f"{_LAYER}mlp.wo", "blk.{i}.ffn_down"),
        Rule(f"{_LAYER}mlp.layernorm", "blk.{i}.layer_output_norm"),
    ),
    guards=(
        ConfigCheck("hidden_act", ("gelu",), "gelu"),
        ConfigCheck("position_embedding_type", ("alibi",), "absolute"),
        ConfigCheck("feed_forward_type", ("geglu",), "original"),
        ConfigCheck("is_decoder", (False,), False),
    ),
    ignored=(*BERT.ignored, r"cls\..*"),
)


class JinaBertV2(Arch):
    centered = True
    causal = False

    def embed(self, ids: Node) -> Node:
        return self.norm(with_segments(self, super().embed(ids)), "token_embd_norm")

    def layer(self, x: Node, i: int) -> Node:
        y = self.norm(ops.add(x, attention(self, x, i)), f"blk.{i}.attn_output_norm")
        again = f"blk.{i}.attn_norm_2"
        if self.weights.type(f"{again}.weight") is not None:
            y = self.norm(ops.add(y, x), again)
        return self.norm(ops.add(y, geglu_erf(self, y, i)), f"blk.{i}.layer_output_norm")

    def output_norm(self, x: Node) -> Node:
        return x

    def rotates(self, i: int) -> bool:
        return False

    def alibi(self, i: int) -> float:
        return usual_alibi(self)
