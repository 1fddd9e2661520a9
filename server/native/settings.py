"""The generation settings of a completion, by llama-server's names."""

from __future__ import annotations

from math import isinf

from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.sampling import NAMES, Sampling
from satchel.server.flavour import JsonObject


def generation_settings(options: GenerateOptions, sampling: Sampling) -> JsonObject:
    """The settings as they were used, with the seed that was drawn."""
    return {
        **{name: getattr(sampling, name) for name in NAMES if name != "dry_last_n"},
        "dry_penalty_last_n": sampling.dry_last_n,
        "dry_sequence_breakers": list(sampling.dry_breakers),
        "samplers": list(sampling.samplers),
        "logit_bias": [
            {"token": token, "bias": False if isinf(bias) else bias} for token, bias in sampling.bias_pairs
        ],
        "n_predict": options.max_tokens,
        "max_tokens": options.max_tokens,
        "stop": list(options.stop),
        "ignore_eos": options.ignore_eos,
        "n_probs": max(0, options.logprobs),
        "on_overflow": options.on_overflow,
        "speculative.n_max": options.draft,
    }
