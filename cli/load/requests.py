"""The requests of a load and their times, random or from a recording.

A load is an iterator of requests in order of their due times; it may be endless.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from satchel.errors import RequestError

CHAT, TEXT = "/chat/completions", "/completions"
WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service
friend father power hour game line end member law car city community name
""".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request of a load."""

    path: str
    body: dict[str, Any] = field(hash=False)
    due: float = 0.0  # seconds after the start at which it is sent; 0: as soon as the concurrency allows
    leave: int = 0  # the client disconnects after so many chunks of the response; 0: never


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The shape of random requests."""

    # Sizes in tokens, from which each request draws one; prompts are only about that long.
    prompts: Sequence[int]
    answers: Sequence[int]  # sizes in tokens, from which each request draws one
    rate: float = 0.0  # mean arrivals per second of a Poisson process; 0: requests have no times
    text: bool = False
    whole: bool = False  # answers go on behind an end-of-sequence token (ignore_eos)


def made_up(shape: LoadShape, seed: int) -> Iterator[LoadRequest]:
    """Endless requests of this shape. All prompts begin differently, so none is found in a prefix cache."""
    draw, due = random.Random(seed), 0.0
    while True:
        due += draw.expovariate(shape.rate) if shape.rate else 0.0
        words = " ".join(draw.choices(WORDS, k=draw.choice(shape.prompts)))
        body: dict[str, Any] = {"max_tokens": draw.choice(shape.answers)}
        if shape.whole:
            body["ignore_eos"] = True
        if shape.text:
            yield LoadRequest(TEXT, body | {"prompt": words}, due)
        else:
            yield LoadRequest(CHAT, body | {"messages": [{"role": "user", "content": words}]}, due)


def recorded(path: Path) -> list[LoadRequest]:
    """Requests of a file with one JSON object a line: `at` (seconds after the start), `prompt` or `messages`,
    and whatever else belongs into the request's body. RequestError names the line that is wrong.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [_read(f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise RequestError(f"{path}: no request in it")
    return sorted(found, key=lambda request: request.due)


def _read(where: str, line: str) -> LoadRequest:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{where}: no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(f"{where}: expected an object, got {type(body).__name__}")
    due = body.pop("at", 0)
    if isinstance(due, bool) or not isinstance(due, int | float) or not 0 <= due < math.inf:
        raise RequestError(f"{where}: at is {due!r}: expected seconds after the start")
    if ("prompt" in body) == ("messages" in body):
        raise RequestError(f"{where}: expected either prompt or messages")
    return LoadRequest(CHAT if "messages" in body else TEXT, body, float(due))


def with_leavers(requests: Iterator[LoadRequest], share: float, seed: int) -> Iterator[LoadRequest]:
    """The requests, of which a share disconnects in the middle of the response."""
    draw = random.Random(seed)
    for request in requests:
        length = request.body.get("max_tokens")
        most = length if isinstance(length, int) and length > 0 else 64
        leave = draw.randint(1, most) if draw.random() < share else 0
        yield LoadRequest(request.path, request.body, request.due, leave)
