"""One streamed request to an OpenAI-style server, with the arrival times of its chunks.

Errors become part of the outcome; only cancellation is raised.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from satchel.cli.load.requests import LoadRequest

if TYPE_CHECKING:
    import httpx

DONE = "[DONE]"


class Broken(Exception):
    """A failed response. The message is short, and equal for equal reasons, so that failures can
    be counted.
    """


@dataclass(slots=True)
class Outcome:
    """The outcome of a request. All times (due, sent, pieces, ended) are seconds of one clock."""

    request: LoadRequest
    due: float
    sent: float = 0.0
    ended: float = 0.0
    # Arrival times of events with text, mostly one token each.
    pieces: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish: str = ""
    tokens: int = 0  # as counted by the server, else the number of pieces
    prompt_tokens: int = 0
    cached_tokens: int = 0
    status: int = 0
    error: str = ""  # "" for a complete response
    left: bool = False  # the client disconnected on purpose

    @property
    def whole(self) -> bool:
        return not self.error and not self.left

    @property
    def refused(self) -> bool:
        """Whether the server refused the request as overloaded."""
        return self.status in (429, 503)


async def ask(client: httpx.AsyncClient, request: LoadRequest, due: float) -> Outcome:
    """Sends the request and reads its response to the end, or until the client disconnects."""
    import httpx

    body = request.body | {"stream": True, "stream_options": {"include_usage": True}}
    outcome = Outcome(request, due, sent=time.perf_counter())
    try:
        async with client.stream("POST", request.path, json=body) as response:
            outcome.status = response.status_code
            if response.status_code != 200:
                raise Broken(f"HTTP {response.status_code}: {message(await response.aread())}")
            await _read(response, request.leave, outcome)
    except Broken as error:
        outcome.error = str(error)
    except httpx.TimeoutException as error:
        outcome.error = f"timeout: {type(error).__name__}"
    except httpx.HTTPError as error:
        what = "the stream broke" if outcome.status == 200 else "connection"
        outcome.error = f"{what}: {type(error).__name__}"
    outcome.ended = time.perf_counter()
    outcome.tokens = outcome.tokens or len(outcome.pieces)
    return outcome


async def _read(response: httpx.Response, leave: int, outcome: Outcome) -> None:
    async for data in events(response.aiter_bytes()):
        if data == DONE:
            break
        _take(data, outcome)
        if leave and len(outcome.pieces) >= leave:
            outcome.left = True
            return
    if not outcome.finish:
        raise Broken("cut off: the stream ended without a finish_reason")


def _take(data: str, outcome: Outcome) -> None:
    """Records one event of the stream."""
    try:
        event = json.loads(data)
        if error := event.get("error"):
            raise Broken(f"in the stream: {error.get('message') if isinstance(error, dict) else error}")
        usage, choices = event.get("usage"), event.get("choices") or ()
        if usage:
            outcome.tokens, outcome.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
            outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in choices:
            outcome.finish = choice.get("finish_reason") or outcome.finish
            if text := written(choice):
                outcome.pieces.append(time.perf_counter())
                outcome.text.append(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Broken("in the stream: an event that is no chunk of an answer") from None


def written(choice: dict[str, Any]) -> str:
    """The text in a chunk's choice: content, reasoning, or a tool call's arguments."""
    delta = choice.get("delta")
    if delta is None:
        return str(choice.get("text") or "")
    calls = delta.get("tool_calls") or ()
    parts = (c["function"].get("arguments") or c["function"].get("name") or "" for c in calls)
    return delta.get("content") or delta.get("reasoning_content") or "".join(parts)


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event; comments and other fields are skipped."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


def message(body: bytes) -> str:
    """The message in an error body of any API flavour; else the beginning of the body."""
    try:
        found = json.loads(body)
        error = found.get("error", found)
        text = error if isinstance(error, str) else error.get("message") or error.get("detail")
    except (ValueError, AttributeError):
        text = None
    return " ".join(str(text or body[:120].decode("utf-8", "replace")).split())[:160]
