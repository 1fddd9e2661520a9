"""ModernBERT (and rerankers of it): rotary positions, GeGLU or SwiGLU, norms before what they are for; every
third layer sees the whole text, the others what is near, with a rotary base of their own.
"""

from collections.abc import Mapping
from dataclasses import replace

from satchel.formats.convert.mapping import ArchMapping, ConfigCheck, ConfigReader, Key, Rule
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attention, geglu_erf, swiglu

_LAYER = "layers.{i}."
PERIOD = 3
ACTIVATIONS = ("gelu", "silu")


def _extra(reader: ConfigReader) -> None:
    reader.put("attention.causal", False)
    reader.put("pooling_type", 1)
    for kind, name, usual, target in (
        ("full_attention", "global_rope_theta", 160000.0, "rope.freq_base"),
        ("sliding_attention", "local_rope_theta", 10000.0, "rope.freq_base_swa"),
    ):
        stated = (reader.config.get("rope_parameters") or {}).get(kind) or {}
        if not isinstance(stated, Mapping) or stated.get("rope_type", "default") != "default":
            raise reader.fault("rope_parameters", "rope_type default", stated, "scalings are not supported")
        base = stated.get("rope_theta") or reader.config.get(name) or usual
        reader.put(target, reader.number(base, name, float, 1e-6))
    if reader.config.get("rope_scaling") is not None:
        raise reader.fault("rope_scaling", "none", reader.config["rope_scaling"], "it is not supported")
    if reader.config.get("hidden_activation", "gelu") != "gelu":
        reader.put("hidden_activation", reader.config["hidden_activation"])
    _layers(reader)


def _layers(reader: ConfigReader) -> None:
    """Which layers see all: said one by one, or by how many there are between."""
    kinds, period = reader.config.get("layer_types"), reader.config.get("global_attn_every_n_layers", PERIOD)
    layers = int(reader.number(reader.config.get("num_hidden_layers"), "num_hidden_layers", int))
    period = int(reader.number(period, "global_attn_every_n_layers", int))
    if kinds is not None:
        fitting = [p for p in range(1, layers + 1) if kinds == _kinds(layers, p)]
        if not fitting:
            raise reader.fault("layer_types", "full_attention first and every few layers", kinds)
        period = PERIOD if PERIOD in fitting else fitting[0]
    reader.put("attention.sliding_window_pattern", period)


def _kinds(layers: int, period: int) -> list[str]:
    return ["sliding_attention" if i % period else "full_attention" for i in range(layers)]


MAPPING = ArchMapping(
    classes=("ModernBertModel", "ModernBertForMaskedLM"),
    model_type="modernbert",
    arch="modern-bert",
    rules=(
        Rule("embeddings.tok_embeddings", "token_embd", suffixes=("weight",)),
        Rule("embeddings.norm", "token_embd_norm"),
        Rule(f"{_LAYER}attn_norm", "blk.{i}.attn_norm", needed=False),
        Rule(f"{_LAYER}attn.Wqkv", "blk.{i}.attn_qkv"),
        Rule(f"{_LAYER}attn.Wo", "blk.{i}.attn_output"),
        Rule(f"{_LAYER}mlp_norm", "blk.{i}.ffn_norm"),
        Rule(f"{_LAYER}mlp.Wi", "blk.{i}.ffn_up"),
        Rule(f"{_LAYER}mlp.Wo", "blk.{i}.ffn_down"),
        Rule("final_norm", "output_norm"),
    ),
    keys=(
        Key("block_count", ("num_hidden_layers",)),
        Key("context_length", ("max_position_embeddings",)),
        Key("embedding_length", ("hidden_size",)),
        Key("feed_forward_length", ("intermediate_size",)),
        Key("attention.head_count", ("num_attention_heads",)),
        Key("attention.layer_norm_epsilon", ("norm_eps",), float),
        Key("attention.sliding_window", ("local_attention",)),
    ),
    guards=(ConfigCheck("hidden_activation", ACTIVATIONS, "gelu"),),
    extra=_extra,
    rope=False,
    renames=((r"^model\.", ""),),
    ignored=(r"head\..*", r"decoder\..*", r".*\.inv_freq"),
)


def _ranks(reader: ConfigReader) -> None:
    _extra(reader)
    reader.put("pooling_type", 4)
    reader.put("classifier.pooling", reader.config.get("classifier_pooling", "cls"))


RERANKER = replace(
    MAPPING,
    classes=("ModernBertForSequenceClassification",),
    model_type="modernbert-classifier",
    rules=(
        *MAPPING.rules,
        Rule("head.dense", "cls"),
        Rule("head.norm", "cls.norm"),
        Rule("classifier", "cls.output"),
    ),
    guards=(
        *MAPPING.guards,
        ConfigCheck("classifier_activation", ("gelu",), "gelu"),
        ConfigCheck("classifier_pooling", ("cls", "mean"), "cls"),
    ),
    extra=_ranks,
    ignored=(r".*\.inv_freq",),
)
MAPPINGS = (MAPPING, RERANKER)


class ModernBert(Arch):
    centered = True
    causal = False
    ranks = "gelu"

    def embed(self, ids: Node) -> Node:
        return self.norm(super().embed(ids), "token_embd_norm")

    def layer(self, x: Node, i: int) -> Node:
        name = f"blk.{i}.attn_norm"
        y = x if self.weights.type(f"{name}.weight") is None else self.norm(x, name)
        x = ops.add(x, attention(self, y, i))
        return ops.add(x, self._feed(self.norm(x, f"blk.{i}.ffn_norm"), i))

    def _feed(self, x: Node, i: int) -> Node:
        kind = self.hp.text("hidden_activation", "gelu")
        if kind not in ACTIVATIONS:
            wanted = " or ".join(ACTIVATIONS)
            raise self.hp.metadata.fault(f"{self.hp.arch}.hidden_activation", wanted, kind, "not supported")
        return swiglu(self, x, i) if kind == "silu" else geglu_erf(self, x, i)

    def window(self, i: int) -> int:
        """As far as half of it on either side."""
        seen = self.hp.uint("attention.sliding_window", 128, low=2, high=1 << 30)
        return 0 if self._sees_all(i) else seen

    def _sees_all(self, i: int) -> bool:
        key = "attention.sliding_window_pattern"
        if self.hp.has_array(key):
            return not self.hp.flags(key, self.layers)[i]
        return i % self.hp.uint(key, PERIOD) == 0

    def rope_base(self, i: int) -> float:
        return 0.0 if self._sees_all(i) else self.hp.real("rope.freq_base_swa", 10000.0, low=1e-6)
