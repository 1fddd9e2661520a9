"""The server's log: lines for users, or JSON objects for programs. Prompts and keys are never in it by
themselves, a message is one line, and no client can fill a disk with it: what repeats is counted instead.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

LOG = logging.getLogger("satchel.server")

WINDOW = 10.0  # seconds in which repeated lines are counted
SAME = 10  # lines of one text in a window
ORIGIN = 50  # lines of one place in the program in a window
KEPT = 1024  # texts that are counted; above it the place alone counts
LONGEST = 4096  # characters of a message
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    """The text without line ends and other control characters, with which a client could write lines of its
    own, and cut where it is very long.
    """
    safe = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return safe if len(safe) <= LONGEST else f"{safe[:LONGEST]}... ({len(safe):,} characters)"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what a record has as `facts` stands beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        made: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage()),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            made["traceback"] = self.formatException(record.exc_info)
        return json.dumps(made, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message, with the seconds of a request."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        facts = getattr(record, "facts", None)
        return (
            f"{text} {facts['seconds']:.3f} s {facts['request_id']}" if facts and "seconds" in facts else text
        )


@dataclass(slots=True)
class Count:
    """Lines of one text, or of one place in the program, since `began`. left_out: those not written, and the
    last of them.
    """

    began: float
    written: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None


class Limited(logging.StreamHandler[TextIO]):
    """Writes lines, of which each text comes SAME times in a window and each place in the program ORIGIN
    times; the others are counted, and at the window's end a line tells how many there were. A line about an
    answer of a model is always written: it cost the model's time, which is limited elsewhere.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._counts: dict[tuple[object, ...], Count] = {}  # the oldest window first
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Under the handler's lock, as logging calls it."""
        self.end_windows()
        if "model" in getattr(record, "facts", ()) or self._is_written(record):
            super().emit(record)

    def close(self) -> None:
        """At the end of the program: what was left out is told."""
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
            self.end_windows(every=True)
        finally:
            self.release()
        super().close()

    def end_windows(self, every: bool = False) -> None:
        """Tells what windows that are over left out."""
        now = self._clock()
        while self._counts:
            key, count = next(iter(self._counts.items()))
            if not every and now - count.began < WINDOW:
                return
            del self._counts[key]
            if count.left_out and count.last is not None:
                super().emit(_summary(count.last, count.left_out, now - count.began))

    def _is_written(self, record: logging.LogRecord) -> bool:
        """Counts the record."""
        now = self._clock()
        keys: list[tuple[tuple[object, ...], int]] = [((record.pathname, record.lineno), ORIGIN)]
        text = (record.name, record.levelno, _text(record))
        if text in self._counts or len(self._counts) < KEPT:
            keys.insert(0, (text, SAME))
        for key, most in keys:
            count = self._counts.setdefault(key, Count(now))
            if count.written >= most:
                count.left_out += 1
                count.last = record
                self._ring_later()
                return False
            count.written += 1
        return True

    def _ring_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(WINDOW, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def _ring(self) -> None:
        self.acquire()
        try:
            self._timer = None
            self.end_windows()
            if any(count.left_out for count in self._counts.values()):
                self._ring_later()
        finally:
            self.release()


def _text(record: logging.LogRecord) -> str:
    """What the line says, short enough to be kept."""
    try:
        return record.getMessage()[:200]
    except Exception:  # wrong arguments of a library's line: logging itself tells of it
        return str(record.msg)[:200]


def _summary(last: logging.LogRecord, count: int, seconds: float) -> logging.LogRecord:
    told = f"{_text(last)} (repeated {count:,} times in {max(1, round(seconds))} s)"
    return logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, told, None, None)


def set_up(level: str, as_json: bool) -> None:
    """Sends to stderr what the package logs, and the warnings of all libraries."""
    handler = Limited(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else TextFormatter("%(asctime)s %(levelname)s %(message)s")
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel("WARNING")
    logging.captureWarnings(True)
    for name in ("satchel", "uvicorn"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    logging.getLogger("satchel").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel("WARNING")
