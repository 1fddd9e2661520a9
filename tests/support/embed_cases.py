"""Options by which the tests of the C library compare its answers: sampler chains that the plan has alone,
and choices that the host makes between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SAMPLINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0},
    "penalties": {
        "repeat_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "repeat_last_n": 5,
    },
    "whole context": {"frequency_penalty": 0.7, "repeat_last_n": -1},
    "greedy with penalties": {"temperature": 0, "repeat_penalty": 1.5},
    "typical": {"typical_p": 0.6},
    "sigma": {"top_n_sigma": 1.5, "top_k": 0},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.02, "temperature": 0},
    "dynamic": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
    # The engine alone keeps the target as it is: test_choices.py has the ones that learn.
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "temperature": 1.0, "mirostat_eta": 0},
    "order": {"samplers": "tmpk", "min_p": 0.1},
    "all": {"temperature": 1.0, "top_k": 0, "top_p": 1, "min_p": 0},
}
END = 263  # the end token of the toy vocabulary
REPEATED = [5, 9, 17, 33, 5, 9, 17, 60, 61, 5, 9, 17, 33]
CHAINS: dict[str, dict[str, Any]] = {
    "biases": {"logit_bias": {3: 2.5, 200: -1.0, 17: 0.1, 31: -np.inf, 32: -np.inf}},
    "many biases": {"logit_bias": {i: (i % 7) / 3 - 1 for i in range(288)}, "temperature": 0},
    "allowed": {"allowed": [1, 5, 31, 32, 33, 64, 200, 255]},
    "allowed and banned": {"allowed": [5, 9, 17], "logit_bias": {9: -np.inf}},
    "bad words": {"bad_words": [(9,), (17, 33), (5, 9, 60)], "allowed": [5, 9, 17, 33, 60]},
    "min tokens": {"min_tokens": 9, "logit_bias": {END: 4.0}},
    "dry": {"dry_multiplier": 1.3, "allowed": [5, 9, 17, 33, 60, 61]},
    "dry without a free length": {"dry_multiplier": 0.7, "dry_allowed_length": 0, "dry_base": 1.1},
    "dry in a window": {"dry_multiplier": 3, "dry_last_n": 6, "allowed": [5, 9, 17, 33]},
    "dry with breakers": {
        "dry_multiplier": 2,
        "dry_breakers": ["!", "hé", "bc"],
        "allowed": [0, 64, 65, 66, 5, 9],
    },
    "greedy dry": {"dry_multiplier": 2, "temperature": 0, "allowed": [5, 9, 17, 33]},
    "dry, then others": {"dry_multiplier": 1, "samplers": "tdkpe", "repeat_penalty": 1.2},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 4.0, "mirostat_eta": 0.3},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "temperature": 1.0},
    "mirostat 2 with biases": {"mirostat": 2, "mirostat_eta": 0.05, "logit_bias": {7: 3.0}},
    "all": {
        "logit_bias": {9: 1.5, 33: -np.inf},
        "dry_multiplier": 0.8,
        "bad_words": [(17, 5)],
        "min_tokens": 3,
        "repeat_penalty": 1.1,
        "repeat_last_n": 4,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.01,
    },
}


def written(options: Mapping[str, Any]) -> dict[str, str]:
    """Sampling's options as the driver reads them."""
    found = {}
    for name, value in options.items():
        if name == "logit_bias":
            found["biases"] = ",".join(f"{token}/{amount}" for token, amount in value.items())
        elif name == "allowed":
            found[name] = ",".join(map(str, value))
        elif name == "bad_words":
            found[name] = ",".join(str(i) for word in value for i in (*word, -1))
        elif name == "dry_breakers":
            found[name] = ",".join(text.encode().hex() for text in value)
        else:
            found[name] = value
    return found
