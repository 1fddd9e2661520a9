"""Response objects of OpenAI's API, built from the events of a completion."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from satchel.formats.chat import CallArguments, CallBegin, Content, Event, Reasoning, ToolCall
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.api.async_model import AsyncReply
from satchel.runtime.api.chat_reply import ChatReply
from satchel.runtime.sampling.logprobs import Logprob
from satchel.server.answer import Answer
from satchel.server.flavour import JsonObject

FINISH = {"stop": "stop", "length": "length", "cancelled": "stop", "deadline": "length"}
LEAST = -9999.0  # OpenAI's value for a log-probability of minus infinity


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def usage(answer: Answer) -> JsonObject:
    """Token counts over all completions; each prompt counts once, because it is prefilled once."""
    prompt = sum(r.stats.prompt for r in answer.firsts)
    made = sum(r.stats.generated for r in answer.replies)
    counts: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": sum(r.stats.cached for r in answer.firsts)},
    }
    thought = [r.reply.reasoning_tokens for r in answer.replies if isinstance(r.reply, ChatReply)]
    details = {"reasoning_tokens": sum(thought)} if thought else {}
    drafted = sum(r.stats.drafted for r in answer.replies)
    if drafted:
        accepted = sum(r.stats.accepted for r in answer.replies)
        details |= {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return {**counts, "completion_tokens_details": details} if details else counts


def timings(reply: AsyncReply) -> JsonObject:
    """llama-server's `timings` object, in milliseconds."""
    stats = reply.stats
    times: JsonObject = {"cache_n": stats.cached}
    # The last prefill step samples the first token, so decoding takes one step less than there are tokens.
    for name, count, timed, seconds in (
        ("prompt", stats.prompt - stats.cached, stats.prompt - stats.cached, stats.prefill_seconds),
        ("predicted", stats.generated, max(0, stats.generated - 1), stats.decode_seconds),
    ):
        times |= {
            f"{name}_n": count,
            f"{name}_ms": round(seconds * 1e3, 3),
            f"{name}_per_token_ms": round(seconds * 1e3 / timed, 3) if timed else 0.0,
            f"{name}_per_second": round(timed / seconds, 3) if seconds else 0.0,
        }
    if stats.drafted:
        times |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return times


def logprobs(tokenizer: Tokenizer, given: Sequence[Logprob], by_id: bool = False) -> JsonObject:
    """The chat shape: each token with its text, bytes and top alternatives. by_id: tokens named by id."""
    return {"content": [_logprob(tokenizer, p, by_id) for p in given], "refusal": None}


def _logprob(tokenizer: Tokenizer, p: Logprob, by_id: bool) -> JsonObject:
    one = _token(tokenizer, p.token, p.logprob, by_id)
    return {**one, "top_logprobs": [_token(tokenizer, t, value, by_id) for t, value in p.top]}


def _token(tokenizer: Tokenizer, token: int, logprob: float, by_id: bool) -> JsonObject:
    data = tokenizer.token_bytes(token)
    text = f"token_id:{token}" if by_id else data.decode("utf-8", "replace")
    return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(data)}


def prompt_logprobs(tokenizer: Tokenizer, given: Sequence[Logprob]) -> list[Any]:
    """vLLM's shape: for each prompt token, itself and the top alternatives by id; None for the
    first token.
    """
    found: list[Any] = [None]
    for p in given:
        ranked = {token: (value, rank) for rank, (token, value) in enumerate(p.top, 1)}
        ranked[p.token] = (p.logprob, p.rank + 1)
        found.append(
            {
                str(token): {
                    "logprob": max(value, LEAST),
                    "rank": rank,
                    "decoded_token": tokenizer.token_bytes(token).decode("utf-8", "replace"),
                }
                for token, (value, rank) in ranked.items()
            }
        )
    return found


def call(made: ToolCall) -> JsonObject:
    return {"id": made.id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}


def delta(event: Event) -> JsonObject | None:
    """The `delta` object of a chat event; None for an event without one."""
    match event:
        case Content(text):
            return {"content": text} if text else None
        case Reasoning(text):
            return {"reasoning_content": text} if text else None
        case CallBegin(index, id, name):
            function: Mapping[str, Any] = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return None


def head(answer: Answer, kind: str, number: str) -> JsonObject:
    return {
        "id": number,
        "object": kind,
        "created": answer.created,
        "model": answer.name,
        "system_fingerprint": "satchel",
    }
