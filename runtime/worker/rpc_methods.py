"""RPC methods of a worker besides requests: methods of its Model, by name. Arguments and results travel as
values.
"""

from __future__ import annotations

BARE = frozenset({"stats"})  # methods that need no engine step
METHODS = BARE | {
    "bandwidth",
    "beam_search",
    "embed",
    "embed_tokens",
    "export_kv",
    "import_kv",
    "logits",
    "prompt_logprobs",
    "rerank",
    "restore_state",
    "save_state",
    "score",
    "score_many",
}
