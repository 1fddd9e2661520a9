"""nomic-bert (nomic-embed-text): BERT with rotary positions, SwiGLU and no biases on products."""

from satchel.formats.convert.mapping import ArchMapping, ConfigCheck, ConfigReader, Key, Rule, unneeded
from satchel.runtime import ops
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch
from satchel.runtime.layers.blocks import attention, swiglu, with_segments

_LAYER = "encoder.layers.{i}."
_OTHER = "layers.{i}."  # as transformers names them since it has the family itself


def _extra(reader: ConfigReader) -> None:
    """The rotary base, and the context that the model was trained with: what goes beyond it is scaled."""
    config = reader.config
    stated = config.get("rope_parameters") or {}
    base = stated.get("rope_theta", config.get("rotary_emb_base", 1000.0))
    if stated.get("rope_type", "default") != "default" or config.get("rotary_emb_scale_base") is not None:
        raise reader.fault("rope_parameters", "no scaling", stated or config["rotary_emb_scale_base"])
    reader.put("rope.freq_base", reader.number(base, "rotary_emb_base", float, 1e-6))
    trained = config.get("max_trained_positions")
    if trained is not None:
        reader.put("context_length", reader.number(trained, "max_trained_positions", int, 1))
    reader.put("attention.causal", False)
    reader.put("pooling_type", 1)


MAPPING = ArchMapping(
    classes=("NomicBertModel",),
    model_type="nomic_bert",
    arch="nomic-bert",
    rules=(
        Rule("embeddings.word_embeddings", "token_embd", suffixes=("weight",)),
        Rule("embeddings.token_type_embeddings", "token_types", suffixes=("weight",), needed=False),
        *unneeded(
            Rule("emb_ln", "token_embd_norm"),
            Rule(f"{_LAYER}attn.Wqkv", "blk.{i}.attn_qkv"),
            Rule(f"{_LAYER}attn.out_proj", "blk.{i}.attn_output"),
            Rule(f"{_LAYER}norm1", "blk.{i}.attn_output_norm"),
            Rule(f"{_LAYER}mlp.fc12", "blk.{i}.ffn_gate"),
            Rule(f"{_LAYER}mlp.fc11", "blk.{i}.ffn_up"),
            Rule(f"{_LAYER}mlp.fc2", "blk.{i}.ffn_down"),
            Rule(f"{_LAYER}norm2", "blk.{i}.layer_output_norm"),
            Rule("embeddings.LayerNorm", "token_embd_norm"),
            Rule(f"{_OTHER}self_attn.q_proj", "blk.{i}.attn_q"),
            Rule(f"{_OTHER}self_attn.k_proj", "blk.{i}.attn_k"),
            Rule(f"{_OTHER}self_attn.v_proj", "blk.{i}.attn_v"),
            Rule(f"{_OTHER}self_attn.o_proj", "blk.{i}.attn_output"),
            Rule(f"{_OTHER}post_attention_layernorm", "blk.{i}.attn_output_norm"),
            Rule(f"{_OTHER}mlp.gate_proj", "blk.{i}.ffn_gate"),
            Rule(f"{_OTHER}mlp.up_proj", "blk.{i}.ffn_up"),
            Rule(f"{_OTHER}mlp.down_proj", "blk.{i}.ffn_down"),
            Rule(f"{_OTHER}post_mlp_layernorm", "blk.{i}.layer_output_norm"),
        ),
    ),
    keys=(
        Key("block_count", ("n_layer", "num_hidden_layers")),
        Key("context_length", ("n_positions", "max_position_embeddings")),
        Key("embedding_length", ("n_embd", "hidden_size")),
        Key("feed_forward_length", ("n_inner", "intermediate_size")),
        Key("attention.head_count", ("n_head", "num_attention_heads")),
        Key("attention.layer_norm_epsilon", ("layer_norm_epsilon", "layer_norm_eps"), float),
    ),
    guards=(
        ConfigCheck("activation_function", ("swiglu",), "swiglu"),
        ConfigCheck("hidden_act", ("silu",), "silu"),
        ConfigCheck("causal", (False,), False),
        ConfigCheck("prenorm", (False,), False),
        ConfigCheck("parallel_block", (False,), False),
        ConfigCheck("use_rms_norm", (False, None)),
        ConfigCheck("rotary_emb_fraction", (1, 1.0), 1.0),
        ConfigCheck("rotary_emb_interleaved", (False,), False),
        ConfigCheck("moe_every_n_layers", (0, None)),
    ),
    extra=_extra,
    rope=False,
    renames=((r"^(nomic_bert|bert)\.", ""),),
    ignored=(r"(nomic_bert\.)?pooler\..*", r"cls\..*", r".*\.inv_freq"),
)


class NomicBert(Arch):
    centered = True
    causal = False

    def embed(self, ids: Node) -> Node:
        return self.norm(with_segments(self, super().embed(ids)), "token_embd_norm")

    def layer(self, x: Node, i: int) -> Node:
        x = self.norm(ops.add(x, attention(self, x, i)), f"blk.{i}.attn_output_norm")
        return self.norm(ops.add(x, swiglu(self, x, i)), f"blk.{i}.layer_output_norm")

    def output_norm(self, x: Node) -> Node:
        return x
