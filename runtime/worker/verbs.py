"""What may be asked of a worker besides requests: methods of its Model, by name. Their arguments go there as
values, and what they give comes back as one.
"""

from __future__ import annotations

BARE = frozenset({"stats"})  # these need no step of the engine
VERBS = BARE | {
    "bandwidth",
    "beam_search",
    "embed",
    "embed_tokens",
    "logits",
    "prompt_logprobs",
    "rerank",
    "restore_state",
    "save_state",
    "score",
    "score_many",
}
