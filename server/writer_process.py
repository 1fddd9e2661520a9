"""A process that writes streams of answers for the server: it turns tokens into text, text into chunks, and
writes these to the clients' connections, which the server leases to it.

It knows nothing of requests, models and limits. It gives a stream back with the number of tokens that it has
written, and the server goes on from there: where the server asks for it, where the client reads slowly, and
where an event comes for which it has no frame. It ends when the server's end of the socket closes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from satchel.formats.chat import Content, Event, Reasoning
from satchel.runtime.api.answer_text import AnswerText, AnswerTextSettings
from satchel.runtime.worker.wire import Message, decode, encode, read_message, write_message
from satchel.server.text_frame import TextFrame

Frames = Mapping[str, TextFrame]
KINDS = {"content": Content, "reasoning": Reasoning}  # events with frames


class Writing:
    """A stream that this process writes. descriptor: of its connection, which does not block."""

    def __init__(self, descriptor: int, text: AnswerText, frames: Frames) -> None:
        self.descriptor, self.tokens = descriptor, 0
        self._text = text
        self._frames = {KINDS[name]: frame for name, frame in frames.items()}

    def write(self, tokens: Sequence[int]) -> bytes | None:
        """Writes the text of these tokens. None if all is written; else what is left of it, and the stream
        must be given back. Tokens are counted in `tokens` if their text is written, or is what is left.
        """
        chunk = self._chunk(self._text.feed(tokens))
        if chunk is None or self._text.stopped:
            return b""
        self.tokens += len(tokens)
        if not chunk:
            return None
        data = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        try:
            sent = os.write(self.descriptor, data)
        except BlockingIOError:
            return data
        except OSError:  # the client hung up, which the server notices too
            return b""
        return data[sent:] if sent < len(data) else None

    def _chunk(self, events: Sequence[Event]) -> bytes | None:
        """The chunks of these events; None where one has no frame."""
        found = b""
        for event in events:
            frame = self._frames.get(type(event))
            if frame is None or not isinstance(event, Content | Reasoning):
                return None
            if event.text:
                found += frame.of(event.text)
        return found


class StreamWriter:
    """The streams of this process, by the server's numbers, and the vocabularies as far as they were told."""

    def __init__(self, out: BinaryIO, side: socket.socket) -> None:
        self._out, self._side = out, side
        self._streams: dict[int, Writing] = {}
        self._pieces: dict[int, dict[int, bytes]] = {}

    def take(self, message: Message, data: bytes) -> None:
        if "tokens" in message:
            self._write(array("i", data).tolist())
        elif "pieces" in message:
            pieces = self._pieces.setdefault(message["vocabulary"], {})
            pieces.update((token, text.encode("latin-1")) for token, text in message["pieces"])
        elif "begin" in message:
            self._begin(message)
        elif "recall" in message:
            self._give_back(message["recall"], b"")
        elif "drop" in message and (stream := self._streams.pop(message["drop"], None)):
            os.close(stream.descriptor)
        elif "forget" in message:
            self._pieces.pop(message["forget"], None)

    def _begin(self, message: Message) -> None:
        _, descriptors, _, _ = socket.recv_fds(self._side, 1, 1)
        settings = settings_of(message["settings"])
        text = AnswerText(settings, self._pieces.setdefault(message["vocabulary"], {}).__getitem__)
        text.feed(message["ids"])  # the server has written their text
        frames = {name: TextFrame(*frame) for name, frame in message["frames"].items()}
        self._streams[message["begin"]] = Writing(descriptors[0], text, frames)

    def _write(self, told: Sequence[int]) -> None:
        at = 0
        while at < len(told):
            number, count = told[at : at + 2]
            at += 2 + count
            stream = self._streams.get(number)
            if stream is not None and (left := stream.write(told[at - count : at])) is not None:
                self._give_back(number, left)

    def _give_back(self, number: int, left: bytes) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:  # else it is on its way back
            os.close(stream.descriptor)
            write_message(self._out, {"back": number, "tokens": stream.tokens}, left)


def told_settings(settings: AnswerTextSettings) -> dict[str, Any]:
    """The settings as a JSON object."""
    return {
        "strip": settings.strip,
        "stops": list(settings.stops),
        "keeps_stop": settings.keeps_stop,
        "style": encode(settings.style),
        "opening": settings.opening,
        "markers": list(settings.markers.items()),
    }


def settings_of(told: Mapping[str, Any]) -> AnswerTextSettings:
    """The inverse of told_settings()."""
    return AnswerTextSettings(**{**told, "style": decode(told["style"]), "markers": dict(told["markers"])})


def main() -> None:
    for stop in (signal.SIGINT, signal.SIGTERM):  # for the server, which drains; this process ends with it
        signal.signal(stop, signal.SIG_IGN)
    given = json.loads(sys.argv[1])
    control, side = (socket.socket(fileno=given[name]) for name in ("control", "side"))
    out, source = control.makefile("wb"), control.makefile("rb")
    writer = StreamWriter(out, side)
    try:
        write_message(out, {"ready": 1})
        while (got := read_message(source, 1 << 30)) is not None:
            writer.take(*got)
    except (BrokenPipeError, ConnectionResetError):  # the server has ended
        pass
