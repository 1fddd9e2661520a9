"""Unread keys: metadata `<arch>.*` that the architecture did not read. One that would change the numbers is
an error, any other a note, so a newer variant of a known architecture never runs as the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import cast

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata, ValueType

# Keys that the tensors' shapes or the architecture itself imply, and keys of embeddings, which others read.
SETTLED = {
    *("vocab_size", "feed_forward_length", "expert_shared_count", "expert_shared_feed_forward_length"),
    *("tensor_data_layout", "decoder_start_token_id", "use_parallel_residual", "features_length"),
    *("pooling_type", "classifier.output_labels", "classifier.pooling", "attention.q_lora_rank"),
    *("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.freq_base", "rope.dimension_count", "rope.scaling.finetuned"),
    *("rope.dimension_sections", "rope.scaling.original_context_length"),  # of a text all sections are one
}
# Values of the other keys that change nothing; for a key that is not listed: 0 and false.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_gating_func": (0, 1),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "interleave_moe_layer_step": (0, 1),
    "moe_every_n_layers": (0, 1),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attention.output_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.type": ("none",),
}
PREFIXES = (
    "attention.",
    "rope.",
    "expert",
    "ssm.",
    "moe_",
    "altup.",
    "shortconv.",
    "kda.",
    "wkv.",
    "swiglu_",
)
SUFFIXES = ("scale", "softcapping", "multiplier", "_factor", "_interval", "_input")


def check_unread_keys(metadata: Metadata, arch: str, read: Set[str], context: int) -> tuple[str, ...]:
    """Notes on keys `<arch>.*` that are not in `read`; ModelError for one that changes the numbers. context:
    the model's, so that a sliding window as long as that changes nothing.
    """
    start, notes = f"{arch}.", []
    given = {key.removeprefix(start): key for key in metadata if key.startswith(start)}
    dense = not _value(metadata, given.get("expert_count", ""))
    yarn = _value(metadata, given.get("rope.scaling.type", "")) == "yarn"
    for name in sorted(given.keys() - read - SETTLED):
        if (name.startswith("expert") and dense) or (name.startswith("rope.scaling.yarn") and not yarn):
            continue
        value = _value(metadata, given[name])
        if name == "attention.sliding_window" and isinstance(value, int) and value >= context:
            continue
        if name.startswith("rope.scaling.") and "rope.scaling.type" not in read:  # no layer scales RoPE by it
            continue
        if name == "rope.freq_base_swa" and value == _value(metadata, f"{start}rope.freq_base"):
            continue
        if value in NEUTRAL.get(name, (0, False)):
            continue
        if name.startswith(PREFIXES) or name.endswith(SUFFIXES):
            raise ModelError(
                f"{metadata.source}: {given[name]}: expected none, got {str(value)!a:.60}; this version's"
                f" {arch} does not compute what it asks for, the file is of a newer variant"
            )
        notes.append(f"{given[name]} says nothing to this version and is left out")
    return tuple(notes)


def _value(metadata: Metadata, key: str) -> object:
    """A key's value, None where there is none; an array of zeros counts as 0."""
    if key not in metadata:
        return None
    found = metadata.typed(key)
    if found.type is ValueType.ARRAY:
        numbers = tuple(cast(Iterable[object], metadata[key]))
        return numbers if any(numbers) else 0
    return metadata[key]
