"""Response objects of Anthropic's API, built from the events of a completion."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator

from satchel.formats.chat import CallArguments, CallBegin, CallEnd, Content, Event, Hold, Reasoning
from satchel.server.answer import Answer
from satchel.server.flavour import JsonObject


class Blocks:
    """Builds content blocks from chat events: `add` yields the stream's events, `content` holds the blocks.

    A tool call is sent only when it is complete, so that no call has to be retracted. shows_thinking: whether
    the text of thinking blocks is sent.
    """

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self.content: list[JsonObject] = []
        self.calls = 0
        self._shows, self._hold = shows_thinking, Hold()
        self._open, self._texts = "", list[str]()

    def add(self, events: Iterable[Event]) -> Iterator[JsonObject]:
        for event in events:
            for whole in self._hold.pass_on(event):
                yield from self._event(whole)

    def _event(self, event: Event) -> Iterator[JsonObject]:
        match event:
            case Content(text):
                yield from self._within("text", {"type": "text", "text": ""})
                yield self._delta("text_delta", "text", text)
            case Reasoning(text):
                yield from self._within("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                if self._shows:
                    yield self._delta("thinking_delta", "thinking", text)
                else:
                    self._texts.append(text)
            case CallBegin(_, id, name):
                yield from self.close()
                yield from self._within("call", {"type": "tool_use", "id": id, "name": name, "input": {}})
            case CallArguments(_, text):
                yield self._delta("input_json_delta", "partial_json", text)
            case CallEnd():
                self.calls += 1
                yield from self.close()

    def _within(self, kind: str, block: JsonObject) -> Iterator[JsonObject]:
        """Opens a block of this kind unless one is open."""
        if self._open == kind:
            return
        yield from self.close()
        self._open = kind
        self.content.append(block)
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    @property
    def _index(self) -> int:
        return len(self.content) - 1

    def _delta(self, kind: str, field: str, text: str) -> JsonObject:
        self._texts.append(text)
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, field: text}}

    def close(self) -> Iterator[JsonObject]:
        """Ends the open block."""
        if not self._open:
            return
        block, text = self.content[-1], "".join(self._texts)
        if self._open == "text":
            block["text"] = text
        elif self._open == "call":
            block["input"] = json.loads(text or "{}")
        else:
            block |= {"thinking": text if self._shows else "", "signature": signature(text)}
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield {"type": "content_block_delta", "index": self._index, "delta": delta}
        yield {"type": "content_block_stop", "index": self._index}
        self._open, self._texts = "", []


def signature(thought: str) -> str:
    """A signature for a thinking block. Clients require one; the server does not check it."""
    return base64.b64encode(hashlib.sha256(thought.encode()).digest()).decode()


def head(answer: Answer) -> JsonObject:
    """The message object before its first block."""
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": answer.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(answer),
    }


def usage(answer: Answer) -> JsonObject:
    """Token counts so far. input_tokens excludes the tokens found in the prefix cache."""
    stats = answer.replies[0].stats
    return {
        "input_tokens": stats.prompt - stats.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached,
        "output_tokens": stats.generated,
    }


def ending(answer: Answer, blocks: Blocks) -> JsonObject:
    """The stop reason and the stop sequence that was found."""
    reply = answer.replies[0]
    sequence = reply.reply.stop_found
    if blocks.calls:
        reason, sequence = "tool_use", None
    elif sequence:
        reason = "stop_sequence"
    elif reply.stats.finish == "length" and reply.stats.generated < reply.reply.options.max_tokens:
        reason = "model_context_window_exceeded"
    elif reply.stats.finish in ("length", "deadline"):
        reason = "max_tokens"
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": sequence}
