"""Rotary embeddings as checkpoints configure them: every kind of scaling, at several lengths, factors and
head sizes. tests/data/convert/make_rope.py stores the frequencies that transformers computes.
"""

from __future__ import annotations

from typing import Any

from families import DATA

STORED = DATA / "rope.json"
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA31 = _LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 8192}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
_LONG = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


def _listed(pairs: int) -> dict[str, list[float]]:
    """LongRoPE's two factor lists for so many pairs."""
    return {
        "short_factor": [1.0 + i / 64 for i in range(pairs)],
        "long_factor": [1.0 + i * i / 8 for i in range(pairs)],
    }


# Case name -> (head size, rotary base, trained positions, further rope_parameters).
CASES: dict[str, tuple[int, float, int, dict[str, Any]]] = {
    "default": (64, 1e4, 4096, {"rope_type": "default"}),
    "default odd head": (36, 1e6, 4096, {"rope_type": "default"}),
    "linear": (128, 1e4, 16384, {"rope_type": "linear", "factor": 4.0}),
    "linear one": (80, 1e4, 4096, {"rope_type": "linear", "factor": 1.0}),
    "linear less": (64, 1e4, 4096, {"rope_type": "linear", "factor": 0.5}),
    "dynamic": (64, 1e4, 4096, {"rope_type": "dynamic", "factor": 4.0}),
    "yarn": (128, 1e6, 16384, _YARN),
    "yarn one": (64, 1e4, 4096, _YARN | {"factor": 1.0}),
    "yarn less": (64, 1e4, 4096, _YARN | {"factor": 0.5}),
    "yarn far": (64, 1e4, 163840, _YARN | {"factor": 40.0}),
    "yarn short": (96, 1e4, 256, _YARN | {"factor": 16.0, "original_max_position_embeddings": 16}),
    "yarn small head": (10, 5e5, 16384, _YARN),
    "yarn borders": (64, 1.5e5, 16384, _YARN | {"beta_fast": 64.0, "beta_slow": 2.0}),
    "yarn factor": (64, 1e4, 16384, _YARN | {"attention_factor": 1.3}),
    "yarn mscale": (64, 1e4, 16384, _YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}),
    "yarn mscale alike": (64, 1e6, 16384, _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    "llama3": (128, 5e5, 131072, _LLAMA31),
    "llama3 small": (64, 5e5, 131072, _LLAMA31 | {"factor": 32.0}),
    "llama3 one": (64, 5e5, 8192, _LLAMA31 | {"factor": 1.0}),
    "llama3 narrow": (36, 5e5, 8192, _LLAMA31 | {"high_freq_factor": 1.5}),
    "longrope": (96, 1e4, 131072, _LONG | _listed(48)),
    "longrope same": (64, 1e4, 4096, _LONG | _listed(32)),
    "longrope factor": (64, 1e4, 131072, _LONG | _listed(32) | {"attention_factor": 1.05}),
    "longrope part": (128, 1e4, 131072, _LONG | _listed(48) | {"partial_rotary_factor": 0.75}),
}


def config(case: str) -> dict[str, Any]:
    """config.json of a case: Phi 3's for LongRoPE and for partly rotated heads, else Llama's."""
    dim, base, trained, stated = CASES[case]
    long = stated["rope_type"] == "longrope"
    found = {
        "architectures": ["Phi3ForCausalLM" if long else "LlamaForCausalLM"],
        "model_type": "phi3" if long else "llama",
        "vocab_size": 64,
        "hidden_size": 4 * dim,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": trained,
        "rms_norm_eps": 1e-5,
        "rope_parameters": stated | {"rope_theta": base},
        "pad_token_id": 0,
    }
    return found | ({"original_max_position_embeddings": 4096} if long else {})
