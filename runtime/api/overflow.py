"""What happens where the context is too small, if the caller chose it: the middle of the prompt is left out,
or the oldest tokens are forgotten while the answer goes on. By default neither: it is an error, or an end,
with the numbers in it. Whatever is left out is counted and said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satchel.runtime.api.refusals import PromptTooLong
from satchel.runtime.kv import common
from satchel.runtime.log import LOG

ROOM = 8  # an answer without a limit has room for one part in so many of the context after a cut
HEAD = 4  # of a text whose middle is cut, one part in so many of what stays stands at its beginning
SYSTEM = ("system", "developer")
Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], list[int]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits. cut: tokens that were left out of it, of `messages` whole messages; head: tokens at
    its beginning that a shift keeps.
    """

    ids: list[int]
    cut: int = 0
    messages: int = 0
    head: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.cut:
            return ()
        of = f" ({self.messages} messages)" if self.messages else ""
        return (f"{self.cut} tokens{of} were left out of the middle of the prompt to fit the context",)


def most_prompt(context: int, max_tokens: int) -> int:
    """Tokens to which a prompt is cut that does not fit: room is left for the answer, at most one part in
    ROOM of the context. The answer's last token needs no position.
    """
    wanted = context // ROOM if max_tokens < 0 else min(max_tokens, context // ROOM)
    return context - max(1, wanted) + 1


def fit_tokens(ids: Sequence[int], context: int, max_tokens: int) -> Fitted:
    """Leaves tokens out of the middle of a prompt that does not fit."""
    if len(ids) <= context:
        return Fitted(list(ids))
    most = most_prompt(context, max_tokens)
    head = most // HEAD
    return _told(Fitted([*ids[:head], *ids[len(ids) - (most - head) :]], len(ids) - most))


def fit_messages(messages: Sequence[Message], render: Render, context: int, max_tokens: int) -> Fitted:
    """Leaves whole turns out of the middle of a conversation that does not fit: what stands at its beginning
    (the system message, else the first turn) and the last turn stay as they are. RequestError where these
    alone do not fit.
    """
    ids = render(messages)
    if len(ids) <= context:
        return Fitted(ids)
    most, turns = most_prompt(context, max_tokens), _turns(messages)
    first, middle, last = turns[0], turns[1:-1], turns[-1] if len(turns) > 1 else []

    def without(n: int) -> list[Message]:
        return [*first, *(m for turn in middle[n:] for m in turn), *last]

    low, high = 0, len(middle)  # the fewest oldest turns without which it fits
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
    """Tokens at the beginning of a conversation that belong to its system messages, at most half of all."""
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
    """System messages at the beginning."""
    return next((i for i, m in enumerate(messages) if m.get("role") not in SYSTEM), len(messages))


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages in turns, each from a user's message up to the next one's; those of the system before them are
    the first turn of their own.
    """
    lead = _leading(messages)
    turns: list[list[Message]] = [list(messages[:lead])] if lead else []
    for i, message in enumerate(messages[lead:]):
        if i == 0 or message.get("role") == "user":
            turns.append([])
        turns[-1].append(message)
    return turns
