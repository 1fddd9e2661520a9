"""BERT, RoBERTa and XLM-RoBERTa (bge, e5, gte, MiniLM, and rerankers of them): every token sees the whole
text; norms come after what they follow is added; words, places and kinds of sentence are added up.
"""

from dataclasses import replace

from satchel.formats.convert.mapping import ArchMapping, ConfigCheck, ConfigReader, Key, Rule
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attention, mlp_erf, with_segments

_LAYER = "encoder.layer.{i}."
_EMBEDDINGS = "embeddings."


def _extra(reader: ConfigReader) -> None:
    reader.put("attention.causal", False)
    reader.put("pooling_type", 1)  # mean, unless the checkpoint's folder says otherwise


MAPPING = ArchMapping(
    classes=("BertModel",),
    model_type="bert",
    arch="bert",
    rules=(
        Rule(f"{_EMBEDDINGS}word_embeddings", "token_embd", suffixes=("weight",)),
        Rule(f"{_EMBEDDINGS}position_embeddings", "position_embd", suffixes=("weight",)),
        Rule(f"{_EMBEDDINGS}token_type_embeddings", "token_types", suffixes=("weight",)),
        Rule(f"{_EMBEDDINGS}LayerNorm", "token_embd_norm"),
        Rule(f"{_LAYER}attention.self.query", "blk.{i}.attn_q"),
        Rule(f"{_LAYER}attention.self.key", "blk.{i}.attn_k"),
        Rule(f"{_LAYER}attention.self.value", "blk.{i}.attn_v"),
        Rule(f"{_LAYER}attention.output.dense", "blk.{i}.attn_output"),
        Rule(f"{_LAYER}attention.output.LayerNorm", "blk.{i}.attn_output_norm"),
        Rule(f"{_LAYER}intermediate.dense", "blk.{i}.ffn_up"),
        Rule(f"{_LAYER}output.dense", "blk.{i}.ffn_down"),
        Rule(f"{_LAYER}output.LayerNorm", "blk.{i}.layer_output_norm"),
    ),
    keys=(
        Key("block_count", ("num_hidden_layers",)),
        Key("context_length", ("max_position_embeddings",)),
        Key("embedding_length", ("hidden_size",)),
        Key("feed_forward_length", ("intermediate_size",)),
        Key("attention.head_count", ("num_attention_heads",)),
        Key("attention.layer_norm_epsilon", ("layer_norm_eps",), float),
    ),
    guards=(
        ConfigCheck("hidden_act", ("gelu",), "gelu"),
        ConfigCheck("position_embedding_type", ("absolute", None), "absolute"),
        ConfigCheck("is_decoder", (False,), False),
    ),
    extra=_extra,
    rope=False,
    renames=((r"^bert\.", ""),),
    ignored=(r"pooler\..*", r"bert\.pooler\..*", r"(bert\.)?embeddings\.position_ids"),
)


def _ranks(reader: ConfigReader) -> None:
    reader.put("attention.causal", False)
    reader.put("pooling_type", 4)


RERANKER = replace(
    MAPPING,
    classes=("BertForSequenceClassification",),
    rules=(
        *MAPPING.rules,
        Rule("pooler.dense", "cls"),
        Rule("classifier", "cls.output"),
    ),
    extra=_ranks,
    ignored=(r"(bert\.)?embeddings\.position_ids",),
)


def _offset(reader: ConfigReader) -> int:
    """Rows of places that come before the first one: RoBERTa counts from behind the padding token's id."""
    return 1 + int(reader.number(reader.config.get("pad_token_id", 1), "pad_token_id", int, 1))


def _shifted(reader: ConfigReader) -> None:
    _extra(reader)
    reader.put("context_length", reader.values["bert.context_length"] - _offset(reader))


def _shifted_ranks(reader: ConfigReader) -> None:
    _shifted(reader)
    _ranks(reader)


ROBERTA = replace(
    MAPPING,
    classes=("XLMRobertaModel", "RobertaModel", "XLMRobertaForMaskedLM", "RobertaForMaskedLM"),
    model_type="xlm-roberta",
    rules=tuple(
        replace(rule, made="after_padding") if rule.target == "position_embd" else rule
        for rule in MAPPING.rules
    ),
    extra=_shifted,
    renames=((r"^roberta\.", ""),),
    ignored=(r"(roberta\.)?pooler\..*", r"lm_head\..*", r"(roberta\.)?embeddings\.position_ids"),
)
ROBERTA_RERANKER = replace(
    ROBERTA,
    classes=("XLMRobertaForSequenceClassification", "RobertaForSequenceClassification"),
    model_type="xlm-roberta-classifier",
    rules=(*ROBERTA.rules, Rule("classifier.dense", "cls"), Rule("classifier.out_proj", "cls.output")),
    extra=_shifted_ranks,
)
MAPPINGS = (MAPPING, RERANKER, ROBERTA, ROBERTA_RERANKER)


class Bert(Arch):
    centered = True
    causal = False

    def embed(self, ids: Node) -> Node:
        x = super().embed(ids)
        x = with_segments(self, x)
        if self.weights.type("position_embd.weight") is not None:
            places = self.weight("position_embd.weight", self.context, self.width)
            x = ops.add(x, ops.get_rows(places, self.pos))
        return self.norm(x, "token_embd_norm")

    def layer(self, x: Node, i: int) -> Node:
        x = self.norm(ops.add(x, attention(self, x, i)), f"blk.{i}.attn_output_norm")
        return self.norm(ops.add(x, mlp_erf(self, x, i)), f"blk.{i}.layer_output_norm")

    def output_norm(self, x: Node) -> Node:
        return x

    def rotates(self, i: int) -> bool:
        return False
