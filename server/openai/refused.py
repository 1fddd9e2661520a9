"""Fields of other servers that this one does not support: each with the values that change nothing, and what
to do instead. Any other value is refused rather than silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from satchel.server.problem import Problem

NOTHING: tuple[Any, ...] = (None, False, "", [], {})
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n_keep": ((0,), "an answer may go on in a full context with on_overflow: 'shift'"),
    "n_discard": ((0,), "an answer may go on in a full context with on_overflow: 'shift'"),
    "n_indent": ((0,), "leave it out"),
    "min_keep": ((0, 1), "leave it out"),
    "n_cache_reuse": ((0,), "beginnings of prompts are found in the cache by themselves"),
    "adaptive_target": ((-1.0, 0), "this stage of sampling is not known"),
    "adaptive_decay": ((), "this stage of sampling is not known"),
    "backend_sampling": (NOTHING, "leave it out"),
    "post_sampling_probs": (NOTHING, "probabilities are the model's own, before any stage of sampling"),
    "grammar_lazy": (NOTHING, "ask for tools, with tool_choice auto"),
    "grammar_triggers": (NOTHING, "ask for tools, with tool_choice auto"),
    "preserved_tokens": (NOTHING, "leave it out"),
    "parse_tool_calls": ((True,), "leave tools out, and put them into the prompt"),
    "reasoning_control": (NOTHING, "leave it out"),
    "speculative.n_min": ((0,), "only speculative.n_max can be chosen by a request"),
    "speculative.p_min": ((0,), "only speculative.n_max can be chosen by a request"),
    "speculative.type": ((), "how tokens are drafted is chosen at the start: serve --lookup, --draft-model"),
    "chat_template": (
        (),
        "the template is the model file's: satchel edit --set tokenizer.chat_template=@FILE changes that",
    ),
    "documents": (NOTHING, "put them into a message"),
    "skip_special_tokens": ((True,), "control tokens are never shown"),
    "spaces_between_special_tokens": ((True, False), ""),
    "prompt_embeds": ((), "prompts are text or token ids"),
    "logits_processors": (NOTHING, "requests bring no code"),
    "early_stopping": ((False,), "a beam search ends when no beam can become better"),
    "guided_decoding_backend": (("auto", "guidance"), "leave it out"),
    "guided_whitespace_pattern": ((), "take structured_outputs.disable_any_whitespace"),
    "echo": (NOTHING, "the client has the prompt already"),
    "functions": (NOTHING, "take tools"),
    "function_call": (("none", None), "take tool_choice"),
    "modalities": ((["text"],), "the answer is text"),
    "audio": (NOTHING, "the answer is text"),
    "prediction": ((), "serve --lookup drafts from the prompt and the answer without it"),
    "web_search_options": ((), "this server asks no other"),
    "mm_processor_kwargs": (NOTHING, "prompts are text"),
    "multimodal_data": (NOTHING, "prompts are text"),
    "image_data": (NOTHING, "prompts are text"),
    "kv_transfer_params": (NOTHING, "leave it out"),
    "vllm_xargs": (NOTHING, "leave it out"),
    "background": (NOTHING, "wait for the answer, or stream it"),
    "conversation": (NOTHING, "send the conversation's items as input"),
    "previous_response_id": (
        NOTHING,
        "this server keeps no responses: send the earlier turns as items of input",
    ),
    "prompt": ((), "this server keeps no prompts: send input and instructions"),
    "max_tool_calls": ((), "the server calls no tools by itself"),
    "verbosity": (("medium",), "say in the prompt how long the answer should be"),
    "structural_tag": ((), "take a grammar"),
    "whitespace_pattern": ((), "take disable_any_whitespace"),
}
# Fields that are accepted without effect, as documented.
NO_EFFECT = frozenset(
    (
        "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "request_id",
    )
)  # fmt: skip


def check_refused(extra: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Raises a Problem for an unsupported value. Returns the names of unknown fields."""
    unknown: list[str] = []
    for name, value in extra.items():
        neutral = REFUSED.get(name)
        if neutral is None:
            if name not in NO_EFFECT:
                unknown.append(name)
        elif not _changes_nothing(value, neutral[0]):
            where = f"{prefix}{name}"
            raise Problem("unsupported", f"{where} cannot be given here: {neutral[1]}", where)
    return sorted(unknown)


def _changes_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral)
