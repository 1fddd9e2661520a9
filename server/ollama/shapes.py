"""Response objects of Ollama's API, built from the events of a completion."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from satchel.formats.chat import CallArguments, CallBegin, CallEnd, Content, Event, Hold, Reasoning
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.sampling.logprobs import Logprob
from satchel.server.answer import Answer
from satchel.server.flavour import JsonObject

FINISH = {"stop": "stop", "length": "length", "cancelled": "stop", "deadline": "length"}
NS = 10**9
FAR = (2**63 - 1) / NS  # seconds: Ollama's expiry of a model that is never unloaded


def stamp(at: float | None = None) -> str:
    """A timestamp in RFC 3339 with nanoseconds. at: seconds since 1970, None for now."""
    ns = time.time_ns() if at is None else int(at * NS)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ns // NS)) + f".{ns % NS:09d}Z"


@dataclass(slots=True)
class MessageDelta:
    """The content of some events."""

    content: str = ""
    thinking: str = ""
    calls: list[JsonObject] = field(default_factory=list)  # complete tool calls, with their arguments parsed

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls)

    def message(self) -> JsonObject:
        """The delta in the shape of /api/chat."""
        found: JsonObject = {"role": "assistant", "content": self.content}
        if self.thinking:
            found["thinking"] = self.thinking
        if self.calls:
            found["tool_calls"] = self.calls
        return {"message": found}

    def response(self) -> JsonObject:
        """The delta in the shape of /api/generate."""
        return {"response": self.content, **({"thinking": self.thinking} if self.thinking else {})}


class DeltaReader:
    """Turns the events of one completion into message deltas; a tool call is held until it is complete."""

    def __init__(self) -> None:
        self._hold, self._begun, self._calls = Hold(), CallBegin(0, "", ""), 0
        self._arguments: list[str] = []

    def read(self, events: Iterable[Event]) -> MessageDelta:
        said = MessageDelta()
        for event in events:
            for whole in self._hold.pass_on(event):
                self._add(whole, said)
        return said

    def _add(self, event: Event, said: MessageDelta) -> None:
        match event:
            case Content(text):
                said.content += text
            case Reasoning(text):
                said.thinking += text
            case CallBegin():
                self._begun, self._arguments = event, []
            case CallArguments(_, text):
                self._arguments.append(text)
            case CallEnd():
                said.calls.append(self._call())

    def _call(self) -> JsonObject:
        arguments = json.loads("".join(self._arguments) or "{}")
        function = {"index": self._calls, "name": self._begun.name, "arguments": arguments}
        self._calls += 1
        return {"id": self._begun.id, "function": function}


def timing(answer: Answer, arrived: float) -> JsonObject:
    """Token counts and durations in ns. arrived: when the request arrived, on time.perf_counter's clock."""
    stats, now = answer.replies[0].stats, time.perf_counter()
    return {
        "total_duration": int((now - arrived) * NS),
        "load_duration": int((answer.began - arrived) * NS),
        "prompt_eval_count": stats.prompt,
        "prompt_eval_duration": int(stats.prefill_seconds * NS),
        "eval_count": stats.generated,
        "eval_duration": int(stats.decode_seconds * NS),
    }


def context(answer: Answer) -> list[int]:
    """The token ids of prompt and completion, with which a later request can continue."""
    reply, tokenizer = answer.replies[0].reply, answer.model.model.tokenizer
    ended = reply.stats.finish == "stop" and reply.stop_found is None
    end = tokenizer.eos if tokenizer.specials.eot is None else tokenizer.specials.eot
    return [*reply.prompt, *reply.ids, *([end] if ended and end is not None else [])]


def done(reason: str) -> JsonObject:
    return {"done": True, "done_reason": reason}


def logprobs(tokenizer: Tokenizer, given: Sequence[Logprob]) -> list[JsonObject]:
    """Each token with its text, bytes, log-probability and top alternatives."""
    return [
        {
            **_token(tokenizer, p.token, p.logprob),
            "top_logprobs": [_token(tokenizer, t, value) for t, value in p.top],
        }
        for p in given
    ]


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> JsonObject:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}
