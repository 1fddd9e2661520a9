"""Context overflow. The caller may choose that the middle of the prompt is cut, or that the oldest tokens are
forgotten while the answer continues (context shift). By default an overflow is an error, or ends the answer,
with the numbers. Whatever is dropped is counted and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satchel.runtime.api.refusals import PromptTooLong
from satchel.runtime.kv import common
from satchel.runtime.log import LOG

ROOM = 8  # a cut leaves at most 1/8 of the context for the answer
HEAD = 4  # when the middle is cut, 1/4 of what remains is the head
SYSTEM = ("system", "developer")
Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], list[int]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits."""

    ids: list[int]
    cut: int = 0  # tokens that were cut
    messages: int = 0  # whole messages that were cut
    head: int = 0  # tokens at the beginning that a context shift keeps

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.cut:
            return ()
        of = f" ({self.messages} messages)" if self.messages else ""
        return (f"{self.cut} tokens{of} were left out of the middle of the prompt to fit the context",)


def most_prompt(context: int, max_tokens: int) -> int:
    """Length to which a too long prompt is cut. It leaves room for the answer, at most 1/ROOM of the context.
    The answer's last token needs no position.
    """
    wanted = context // ROOM if max_tokens < 0 else min(max_tokens, context // ROOM)
    return context - max(1, wanted) + 1


def fit_tokens(ids: Sequence[int], context: int, max_tokens: int) -> Fitted:
    """Cuts the middle of a prompt that does not fit."""
    if len(ids) <= context:
        return Fitted(list(ids))
    most = most_prompt(context, max_tokens)
    head = most // HEAD
    return _told(Fitted([*ids[:head], *ids[len(ids) - (most - head) :]], len(ids) - most))


def fit_messages(messages: Sequence[Message], render: Render, context: int, max_tokens: int) -> Fitted:
    """Cuts whole turns from the middle of a conversation that does not fit. The head (the system message,
    else the first turn) and the last turn stay. Raises RequestError if these alone do not fit.
    """
    ids = render(messages)
    if len(ids) <= context:
        return Fitted(ids)
    most, turns = most_prompt(context, max_tokens), _turns(messages)
    first, middle, last = turns[0], turns[1:-1], turns[-1] if len(turns) > 1 else []

    def without(n: int) -> list[Message]:
        return [*first, *(m for turn in middle[n:] for m in turn), *last]

    low, high = 0, len(middle)  # binary search for the fewest oldest turns to cut
    while low < high:
        mid = (low + high) // 2
        low, high = (low, mid) if len(render(without(mid))) <= most else (mid + 1, high)
    kept = render(without(low))
    if len(kept) > (context if low == len(middle) else most):
        line = (
            f"the first and the last message alone are {len(kept)} tokens, the context holds {context}: "
            "shorten them or raise -c"
        )
        raise PromptTooLong(len(kept), context, line)
    dropped = sum(len(turn) for turn in middle[:low])
    return _told(Fitted(kept, len(ids) - len(kept), dropped))


def shifted(ids: Sequence[int], head: int) -> list[int]:
    """The first `head` tokens and the newer half of the others."""
    rest = ids[head:]
    return [*ids[:head], *rest[len(rest) - len(rest) // 2 :]]


def head_of(messages: Sequence[Message], ids: Sequence[int], render: Render, context: int) -> int:
    """Tokens of the system messages at the beginning of a conversation, at most half of all."""
    lead = _leading(messages)
    if not lead:
        return 0
    alone = render(messages[:lead])
    same = common(alone, ids)
    return min(same, context // 2)


def _told(fitted: Fitted) -> Fitted:
    for note in fitted.notes:
        LOG.warning("%s", note)
    return fitted


def _leading(messages: Sequence[Message]) -> int:
    """Number of system messages at the beginning."""
    return next((i for i, m in enumerate(messages) if m.get("role") not in SYSTEM), len(messages))


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages grouped into turns, each from a user message up to the next. System messages before the first
    are a turn of their own.
    """
    lead = _leading(messages)
    turns: list[list[Message]] = [list(messages[:lead])] if lead else []
    for i, message in enumerate(messages[lead:]):
        if i == 0 or message.get("role") == "user":
            turns.append([])
        turns[-1].append(message)
    return turns
