"""The verdict on an answer under a grammar, once it has ended: complete, cut, or wrong."""

from __future__ import annotations

from satchel.errors import RequestError
from satchel.runtime.grammar.compiled import Grammar


def judge(grammar: Grammar, text: str, finish: str, stop: str | None = None) -> str:
    """Why the answer is not whole, or empty. finish: as in Stats; stop: the stop string that ended it.

    RequestError where it claims to be whole and is not: such a text must not be taken for what was asked for.
    """
    wrong = grammar.check(text)
    if not wrong:
        return ""
    if stop is not None:
        return f"the stop string {stop!r:.40} came before what was asked for was complete"
    if finish == "stop":
        raise RequestError(f"the answer ended, and is not what was asked for: {wrong}")
    return "it ends before what was asked for is complete" if finish == "length" else ""
