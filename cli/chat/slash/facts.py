"""Commands that show information: counts of this chat, the model, its chat template."""

from __future__ import annotations

from satchel.cli.chat.about import describe
from satchel.cli.chat.registry import command
from satchel.cli.chat.session import Session
from satchel.cli.reports import lines
from satchel.errors import RequestError

KINDS = ("info", "system", "parameters", "template", "license")


@command("stats")
def _stats(session: Session, text: str) -> None:
    """Counts and times of this chat."""
    totals = session.totals
    rows = [
        ("messages", f"{len(session.conversation.turns)}, {totals.answers} answered in this run"),
        ("prompt tokens", f"{totals.prompt:,}, of which {totals.cached:,} were known"),
        ("prompt rate", _rate(totals.prompt - totals.cached, totals.prefill_seconds)),
        ("answer tokens", f"{totals.generated:,}"),
        ("answer rate", _rate(totals.generated - totals.answers, totals.decode_seconds)),
        ("context", session.look.meter(session.used, session.model.context).removeprefix("context ")),
    ]
    if totals.drafted:
        rows.append(("drafts", f"{totals.accepted:,} of {totals.drafted:,} tokens were right"))
    for line in lines(rows):
        session.say(f"  {line}")


@command("show", "[KIND]", words=lambda: KINDS)
def _show(session: Session, text: str) -> None:
    """The model's info, license or template, the system prompt or the parameters."""
    kind, metadata = text or "info", session.model.gguf.metadata
    if kind not in KINDS:
        raise RequestError(f"/show {kind[:40]}: there are {', '.join(KINDS)}")
    if kind == "info":
        found = "\n".join([*describe(session.model), str(session.model.path)])
    elif kind == "system":
        found = session.conversation.system
    elif kind == "parameters":
        found = "\n".join(f"{name:<20} {value}" for name, value in session.settings.facts().items())
    else:
        key = "tokenizer.chat_template" if kind == "template" else "general.license"
        found = metadata.get_str(key, "")
    for line in (found or f"there is no {kind}").split("\n"):
        session.say(f"  {line}")


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f} tokens/s" if seconds and tokens > 0 else "none yet"
