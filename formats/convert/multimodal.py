"""Multimodal checkpoints: only their text model is converted. Its configuration and tensors are renamed to
those of a text-only model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from satchel.errors import ModelError
from satchel.formats.convert.mapping import ArchMapping, Config

# Prefixes of the text model's tensors: as published, and as transformers 5 saves them.
RENAMES = (
    (r"^language_model\.model\.", "model."),
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
)
# Encoders of images and audio.
PARTS = (
    r"(model\.)?(vision_tower|vision_model|visual|audio_tower|audio_model|embed_vision|embed_audio)\..*",
    r"(model\.)?(multi_modal_projector|mm_projector|vision_language_adapter|patch_merger)\..*",
)
KEYS = ("vision_config", "audio_config", "visual", "vision_tower", "image_size", "patch_size")


def is_multimodal(config: Config) -> bool:
    """Whether a configuration is of a multimodal model (images or audio)."""
    return any(key in config for key in KEYS)


def text_mapping(mapping: ArchMapping) -> ArchMapping:
    """The mapping for a multimodal checkpoint, from that of its text model."""
    return replace(
        mapping, renames=(*RENAMES, *mapping.renames), ignored=(*mapping.ignored, *PARTS), multimodal=()
    )


def text_config(path: Path, config: Config, mapping: ArchMapping) -> Config:
    """The text model's configuration: its own values, then those of the top level, then the family's
    defaults.
    """
    inner = config.get("text_config", config if mapping.flat else None)
    if not isinstance(inner, Mapping):
        raise ModelError(
            f"{path}: text_config: expected the configuration of the text model, got {str(inner)[:60]!a}; the"
            " checkpoint is damaged"
        )
    outer = {key: value for key, value in config.items() if key not in (*KEYS, "text_config")}
    stated: dict[str, Any] = {**mapping.defaults, **outer, **inner}
    tied = {
        part["tie_word_embeddings"] for part in (outer, inner) if part.get("tie_word_embeddings") in (0, 1)
    }
    if len(tied) > 1:
        # The levels contradict each other, and which one wins depends on the library's version. Without the
        # key, the presence of the output tensor decides.
        del stated["tie_word_embeddings"]
    return {**stated, **_positions(stated), "architectures": [mapping.classes[0]]}


def _positions(stated: Config) -> Config:
    """RoPE settings without M-RoPE sections. M-RoPE rotates pairs by time, height and width; for text all
    three are the token's position.
    """
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = stated.get(key)
        if isinstance(part, Mapping) and ("mrope_section" in part or part.get("type") == "mrope"):
            kept = {k: v for k, v in part.items() if k not in ("type", "mrope_section", "mrope_interleaved")}
            found[key] = kept | ({"rope_type": "default"} if kept.get("rope_type") in (None, "mrope") else {})
    return found
