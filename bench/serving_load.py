"""The load of bench/serving.py: clients that send greedy questions with known answers, and the checks of
their streams.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive
from satchel.cli.load.requests import CHAT, WORDS, LoadRequest
from satchel.cli.load.stream import Outcome

QUESTIONS = 24  # different questions; their reference answers are generated one at a time
GRACE = 30.0  # seconds that streams get to end after the last request
LENGTHS = (16, 64)  # lengths of answers in tokens


@dataclass(frozen=True, slots=True)
class Mix:
    """The mix of requests."""

    clients: int = 64  # concurrent clients
    leave: float = 0.1  # share of requests whose client disconnects during the answer
    wrong: float = 0.02  # share of invalid requests
    seed: int = 0


def questions(seed: int) -> list[LoadRequest]:
    """Greedy chats, a third of which share a prefix."""
    draw = random.Random(seed)
    begun = "We talk about a small town by the sea, where boats go out every morning. "
    found = []
    for number in range(QUESTIONS):
        words = " ".join(draw.choices(WORDS, k=draw.randint(4, 40)))
        text = f"{begun if number % 3 == 0 else ''}Tell me about {words}."
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0}
        found.append(LoadRequest(CHAT, body | {"max_tokens": draw.randint(*LENGTHS)}))
    return found


def crowd(asked: Sequence[LoadRequest], mix: Mix) -> Iterator[LoadRequest]:
    """Endless requests: the questions in random order, some of which the client abandons or the server
    refuses.
    """
    draw = random.Random(mix.seed)
    while True:
        request, fate = draw.choice(asked), draw.random()
        if fate < mix.wrong:
            yield LoadRequest(CHAT, {**request.body, "top_p": 7})
        elif fate < mix.wrong + mix.leave:
            yield LoadRequest(CHAT, request.body, leave=draw.randint(1, request.body["max_tokens"]))
        else:
            yield request


def alone(server: LoadTarget, asked: Sequence[LoadRequest]) -> dict[str, str]:
    """The reference answer of each question, generated one after another."""
    driven = asyncio.run(drive(server, iter(asked), Bounds(concurrency=1)))
    if bad := next((o.error for o in driven.outcomes if o.error), None):
        raise RuntimeError(f"a question that was asked alone: {bad}")
    return {key(o.request): "".join(o.text) for o in driven.outcomes}


def together(server: LoadTarget, asked: Sequence[LoadRequest], mix: Mix, seconds: float) -> Driven:
    bounds = Bounds(seconds=seconds, concurrency=mix.clients, grace=GRACE)
    return asyncio.run(drive(server, crowd(asked, mix), bounds))


def key(request: LoadRequest) -> str:
    return str(request.body["messages"][0]["content"])


def faults(outcomes: Sequence[Outcome], answers: dict[str, str]) -> list[str]:
    """The faults of these streams. A stream must equal its reference answer (or its beginning, where the
    client disconnected), and an invalid request must be refused.
    """
    return [text for outcome in outcomes if (text := fault(outcome, answers[key(outcome.request)]))]


def fault(outcome: Outcome, answer: str) -> str:
    came = "".join(outcome.text)
    if outcome.request.body.get("top_p"):
        return "" if outcome.status == 400 else f"what must be refused was answered with {outcome.status}"
    if outcome.error:
        return outcome.error
    if outcome.left:
        return "" if answer.startswith(came) else f"a stream began with {came!r}, not {answer[:80]!r}"
    return "" if came == answer else f"a stream was {came!r}, alone it is {answer!r}"
