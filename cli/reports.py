"""Formats an answer's counts, timings and usage report, as JSON or as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, Any

from satchel.cli.speculation import accepted

if TYPE_CHECKING:
    from satchel.cli.chat.respond import ChatAnswer
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.usage_report import UsageReport
    from satchel.runtime.sampling.logprobs import Logprob

MIB, GIGA, WIDTH = 1 << 20, 10**9, 22
Rows = Sequence[tuple[str, str]]


def facts(
    model: Model, answers: Sequence[ChatAnswer], loading: float, *, report: bool, logprobs: bool
) -> dict[str, Any]:
    """The JSON object of `satchel run`: the facts of one answer, or a list of several."""
    head = {"model": str(model.path), "context": model.context, "load_seconds": round(loading, 6)}
    each = [answer_facts(model, answer, report, logprobs) for answer in answers]
    seconds = max(answer.seconds for answer in answers)
    head |= {"total_seconds": round(loading + seconds, 6)}
    return head | (each[0] if len(each) == 1 else {"answers": each})


def answer_facts(model: Model, answer: ChatAnswer, report: bool, logprobs: bool) -> dict[str, Any]:
    """One answer: text, counts, times."""
    stats, reply = answer.stats, answer.reply
    found: dict[str, Any] = {
        "text": answer.text,
        "finish_reason": stats.finish,
        "seed": answer.seed,
        "prompt_tokens": stats.prompt,
        "generated_tokens": stats.generated,
        "drafted_tokens": stats.drafted,
        "accepted_tokens": stats.accepted,
        "prefill_seconds": round(stats.prefill_seconds, 6),
        "decode_seconds": round(stats.decode_seconds, 6),
        "prefill_tokens_per_second": round(stats.prefill_rate, 3),
        "decode_tokens_per_second": round(stats.decode_rate, 3),
    }
    if logprobs:
        found["logprobs"] = [_logprob(model, one) for one in reply.logprobs]
    return found | ({"report": plain_values(reply.report.as_dict())} if report else {})


def _logprob(model: Model, one: Logprob) -> dict[str, Any]:
    top = [_token(model, token, value) for token, value in one.top]
    return {**_token(model, one.token, one.logprob), "rank": one.rank, "top": top}


def _token(model: Model, token: int, logprob: float) -> dict[str, Any]:
    text = model.detokenize([token], special=True)
    return {"token": token, "text": text, "logprob": plain_values(logprob)}


def plain_values(value: Any) -> Any:
    """The value in JSON's types; NaN and infinity become strings."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_values(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def timings(answer: ChatAnswer, loading: float) -> Rows:
    """The rows that -v prints for an answer."""
    stats = answer.stats
    rows: tuple[tuple[str, str], ...] = (
        ("total duration", f"{loading + answer.seconds:.3f} s"),
        ("load duration", f"{loading:.3f} s"),
        ("prompt eval count", f"{stats.prompt} token(s)"),
        ("prompt eval duration", f"{stats.prefill_seconds:.3f} s"),
        ("prompt eval rate", f"{stats.prefill_rate:.2f} tokens/s"),
        ("eval count", f"{stats.generated} token(s)"),
        ("eval duration", f"{stats.decode_seconds:.3f} s"),
        ("eval rate", f"{stats.decode_rate:.2f} tokens/s"),
    )
    drafted = accepted(stats)
    return rows + ((("drafts", drafted),) if drafted else ())


def report_rows(r: UsageReport) -> Rows:
    """The rows of a usage report, without those that do not apply."""
    from satchel.runtime.kv import Miss

    missed = f"; the rest was not: {r.missed}" if r.missed and r.cached_tokens < r.prompt_tokens else ""
    if r.missed == Miss.NONE:
        missed = "; the rest is its last block"
    share = "" if r.bandwidth_share is None else f", {r.bandwidth_share:.0%} of what the machine can"
    rows = [
        ("sampling", drawn(r)),
        ("in the cache", f"{r.cached_tokens:,} of {r.prompt_tokens:,} prompt tokens{missed}"),
        ("generated", f"{r.generated_tokens:,} token(s) in {r.steps:,} steps; ended by {r.finish}"),
        ("waited, read, wrote", f"{r.queue_seconds:.3f}, {r.prefill_seconds:.3f}, {r.decode_seconds:.3f} s"),
        ("bytes read", f"{r.weight_bytes / MIB:,.1f} MiB of weights, {r.kv_bytes / MIB:,.1f} MiB of cache"),
        ("while writing", f"{r.bandwidth / GIGA:.1f} GB/s{share}"),
        ("devices", ", ".join(f"{name} {part:.0%}" for name, part in r.devices.items())),
    ]
    if r.drafted:
        rows.append(("drafts", f"{r.accepted:,} of {r.drafted:,} tokens were right"))
    if r.cut_tokens:
        rows.append(("cut", f"{r.cut_tokens:,} tokens; {r.cut_messages} messages, {r.shifts} shifts"))
    if r.preempted or r.restarted:
        rows.append(("restarted", f"{r.preempted} times for others, {r.restarted} times after a crash"))
    return [(name, text) for name, text in rows if text]


def drawn(r: UsageReport) -> str:
    """The seed and the sampling options that differ from their defaults."""
    s, usual = r.sampling, type(r.sampling)()
    if s.temperature == 0:
        return "the likeliest token each time"
    names = [f.name for f in fields(s) if f.compare and f.name != "seed"]
    changed = [name for name in names if getattr(s, name) != getattr(usual, name)]
    return ", ".join([f"seed {s.seed}", *(f"{name} {getattr(s, name)}" for name in changed)])


def lines(rows: Rows) -> list[str]:
    """Names and values, aligned."""
    return [f"{name + ':':<{WIDTH}}{value}" for name, value in rows]
