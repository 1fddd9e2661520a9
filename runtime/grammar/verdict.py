"""The verdict on a finished answer under a grammar: complete, truncated, or wrong."""

from __future__ import annotations

from satchel.errors import RequestError
from satchel.runtime.grammar.compiled import Grammar


def judge(grammar: Grammar, text: str, finish: str, stop: str | None = None) -> str:
    """Why the answer is incomplete, or "". finish: as in Stats; stop: the stop string that ended it. Raises
    RequestError if the answer ended by itself and does not satisfy the grammar, so that it is not mistaken
    for valid output.
    """
    wrong = grammar.check(text)
    if not wrong:
        return ""
    if stop is not None:
        return f"the stop string {stop!r:.40} came before the structured output was complete"
    if finish == "stop":
        raise RequestError(f"the answer ended and does not satisfy its grammar: {wrong}")
    return "it ends before the structured output is complete" if finish == "length" else ""
