"""The output items of a response and its stream events. Every event carries its sequence number and the
indices of its item and part, from which clients assemble the response.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

from satchel.formats.chat import CallArguments, CallBegin, CallBroken, CallEnd, Content, Event, Reasoning
from satchel.server.flavour import JsonObject
from satchel.server.openai.shapes import new_id

OutputEvent = tuple[str, JsonObject]
PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponseOutput:
    """Builds output items from chat events. Events hold copies of items, because the open item changes."""

    def __init__(self) -> None:
        self.items: list[JsonObject] = []  # the complete items, then the open one
        self._open: dict[str, int] = {}  # index of the open item by its type, "call 0" for calls
        self._number = 0

    def event(self, kind: str, data: JsonObject) -> OutputEvent:
        """An event with the next number."""
        fields = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        return kind, fields

    def add(self, event: Event, logprobs: Sequence[JsonObject] = ()) -> Iterator[OutputEvent]:
        """The stream events of one chat event. logprobs: of its tokens."""
        match event:
            case Content(text) if text:
                yield from self._text("message", text, logprobs)
            case Reasoning(text) if text:
                yield from self._text("reasoning", text, ())
            case CallBegin(index, id, name):
                yield from self.close()
                item = {
                    "type": "function_call",
                    "id": new_id("fc"),
                    "call_id": id,
                    "name": name,
                    "arguments": "",
                }
                yield self._begin(f"call {index}", item)
            case CallArguments(index, text):
                yield self._arguments(f"call {index}", text)
            case CallEnd(index) | CallBroken(index):
                status = "completed" if isinstance(event, CallEnd) else "incomplete"
                yield from self._end(f"call {index}", status)

    def close(self, status: str = "completed") -> Iterator[OutputEvent]:
        """Ends all open items."""
        for name in list(self._open):
            yield from self._end(name, status)

    def _text(self, name: str, text: str, logprobs: Sequence[JsonObject]) -> Iterator[OutputEvent]:
        if name not in self._open:
            yield from self.close()
            yield from self._begin_text(name)
        at = self._open[name]
        item, part = self.items[at], self.items[at]["content"][0]
        part["text"] += text
        place = {"item_id": item["id"], "output_index": at, "content_index": 0}
        more: JsonObject = {"logprobs": list(logprobs)} if name == "message" else {}
        if name == "message":
            part["logprobs"] += logprobs
        yield self.event(f"response.{PARTS[name]}.delta", {**place, "delta": text, **more})

    def _begin_text(self, name: str) -> Iterator[OutputEvent]:
        if name == "message":
            part: JsonObject = {"type": PARTS[name], "text": "", "annotations": [], "logprobs": []}
            item: JsonObject = {"type": name, "id": new_id("msg"), "role": "assistant", "content": []}
        else:
            part = {"type": PARTS[name], "text": ""}
            item = {"type": name, "id": new_id("rs"), "summary": [], "content": []}
        yield self._begin(name, item)
        at = self._open[name]
        place = {"item_id": item["id"], "output_index": at, "content_index": 0}
        yield self.event("response.content_part.added", {**place, "part": deepcopy(part)})
        self.items[at]["content"] = [part]

    def _begin(self, name: str, item: JsonObject) -> OutputEvent:
        item["status"] = "in_progress"
        self._open[name] = len(self.items)
        self.items.append(item)
        fields = {"output_index": self._open[name], "item": deepcopy(item)}
        return self.event("response.output_item.added", fields)

    def _arguments(self, name: str, text: str) -> OutputEvent:
        at = self._open[name]
        self.items[at]["arguments"] += text
        fields = {"item_id": self.items[at]["id"], "output_index": at, "delta": text}
        return self.event("response.function_call_arguments.delta", fields)

    def _end(self, name: str, status: str) -> Iterator[OutputEvent]:
        at = self._open.pop(name, None)
        if at is None:
            return
        item = self.items[at]
        item["status"] = status
        place: JsonObject = {"item_id": item["id"], "output_index": at}
        if item["type"] == "function_call":
            done = {**place, "name": item["name"], "arguments": item["arguments"]}
            yield self.event("response.function_call_arguments.done", done)
        else:
            part = item["content"][0]
            more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            place["content_index"] = 0
            yield self.event(f"response.{part['type']}.done", {**place, "text": part["text"], **more})
            yield self.event("response.content_part.done", {**place, "part": deepcopy(part)})
        yield self.event("response.output_item.done", {"output_index": at, "item": deepcopy(item)})
