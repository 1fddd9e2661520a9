"""Hostile clients of bench/endurance.py, each with an API key of its own: prompts beyond every limit, extreme
priorities, schemas that are expensive to compile or to check, streams that are never read, and incomplete
request bodies.

A client repeats such acts until it is told to stop. The status of a response does not matter, only that the
server responds or closes the connection: no client waits longer than WAIT.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

WAIT = 10.0  # seconds for a connection, and for each part of an answer
HELD = 16  # connections that one client holds without reading
PROMPT = 2_000_000  # characters
DOUBLINGS = 60  # levels of a schema; a checker that follows every reference takes 2^DOUBLINGS steps
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me about the harbour."}]


@dataclass
class Hostile:
    """One client.

    acts: names of ACTS that it performs. done: how often it performed each. answers: response statuses, 0
    where the connection ended without one.
    """

    url: str
    key: str
    seed: int
    acts: tuple[str, ...]
    stop: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    held: list[socket.socket] = field(default_factory=list)

    def run(self) -> None:
        draw = random.Random(self.seed)
        while not self.stop.is_set():
            act = draw.choice(self.acts)
            try:
                ACTS[act](self, draw)
            except OSError:  # refused, reset or timed out, all of which the server may do
                self.answers[0] += 1
                self.stop.wait(0.05)
            self.done[act] += 1
        for wire in self.held:
            wire.close()

    def connect(self, reads: bool = True) -> socket.socket:
        """A connection. One that does not read has the smallest receive window that the system grants."""
        split = urlsplit(self.url)
        wire = socket.socket()
        if not reads:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        wire.settimeout(WAIT)
        wire.connect((split.hostname, split.port))
        return wire

    def head(self, size: int) -> bytes:
        lines = (f"POST {CHAT} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}")
        kind = ("Content-Type: application/json", f"Content-Length: {size}", "Connection: close")
        return "\r\n".join([*lines, *kind, "", ""]).encode()

    def ask(self, body: Mapping[str, Any]) -> None:
        """Sends a request and reads the response to its end, or until WAIT."""
        data = json.dumps(body).encode()
        with self.connect() as wire:
            # The server may refuse the request before reading it; its response can be read.
            with suppress(ConnectionError):
                wire.sendall(self.head(len(data)) + data)
            first = wire.recv(1 << 16)
            words = first.split(b" ", 2)
            self.answers[int(words[1]) if len(words) > 1 and words[1].isdigit() else 0] += 1
            while not self.stop.is_set() and wire.recv(1 << 16):
                pass

    def hold(self, wire: socket.socket) -> None:
        """Keeps a connection open, and closes the oldest of too many."""
        self.held.append(wire)
        if len(self.held) > HELD:
            self.held.pop(0).close()
        self.stop.wait(0.1)


def huge_prompt(client: Hostile, draw: random.Random) -> None:
    text = draw.choice(["a", "word ", "<|im_end|>", "\U0001f600"])
    client.ask({"messages": [{"role": "user", "content": text * (PROMPT // len(text))}], "max_tokens": 1})


def extreme_priority(client: Hostile, draw: random.Random) -> None:
    priority = draw.choice([-1000, -(1 << 31), 1 << 62, -1])
    client.ask({"messages": MESSAGES, "max_tokens": 64, "priority": priority, "ignore_eos": True})


def several_answers(client: Hostile, draw: random.Random) -> None:
    client.ask(
        {"messages": MESSAGES, "max_tokens": 64, "n": draw.choice([8, 64, 100_000]), "ignore_eos": True}
    )


def dear_schema(client: Hostile, draw: random.Random) -> None:
    """A schema that is large, deep, or different each time, so that no cache has it."""
    size = draw.choice([10, 500])
    names = {
        f"p{draw.random()}": {"type": "string", "pattern": f"^[a-z]{{1,{draw.randint(1, 500)}}}$"}
        for _ in range(size)
    }
    deep: dict[str, Any] = {"type": "object", "properties": names}
    for _ in range(draw.choice([1, 40])):
        deep = {"type": "object", "properties": {"a": deep}}
    client.ask(structured(deep))


def doubled_schema(client: Hostile, draw: random.Random) -> None:
    """A schema in which each definition refers twice to the next: few bytes, 2^DOUBLINGS steps."""
    defs: dict[str, Any] = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(DOUBLINGS)}
    client.ask(structured({"$defs": defs | {f"a{DOUBLINGS}": {"type": "integer"}}, "$ref": "#/$defs/a0"}))


def structured(schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"messages": MESSAGES, "max_tokens": 16, "response_format": wanted}


def slow_reader(client: Hostile, draw: random.Random) -> None:
    """A stream that the client never reads."""
    body = {"messages": MESSAGES, "max_tokens": 400, "stream": True, "logprobs": True, "top_logprobs": 20}
    data = json.dumps(body | {"ignore_eos": True}).encode()
    wire = client.connect(reads=False)
    wire.sendall(client.head(len(data)) + data)
    client.hold(wire)


def half_body(client: Hostile, draw: random.Random) -> None:
    """An incomplete request: part of its header, or of its body."""
    wire = client.connect()
    head = client.head(1000)
    wire.sendall(head[: draw.randint(0, len(head))] + (b"{" if draw.random() < 0.5 else b""))
    client.hold(wire)


def nonsense(client: Hostile, draw: random.Random) -> None:
    with client.connect() as wire:
        wire.sendall(draw.randbytes(200) + b"\r\n\r\n")
        wire.recv(1000)


ACTS: dict[str, Callable[[Hostile, random.Random], None]] = {
    act.__name__: act
    for act in (
        huge_prompt,
        extreme_priority,
        several_answers,
        dear_schema,
        doubled_schema,
        slow_reader,
        half_body,
        nonsense,
    )
}
