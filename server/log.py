"""The server's log: lines for users, or JSON objects for programs.

The server never logs prompts or keys unless an error message quotes them. A message is one line, and repeated
messages are counted instead of written, so that no client can fill the disk.
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
SAME = 10  # lines of the same text written per window
ORIGIN = 50  # lines from the same source line written per window
KEPT = 1024  # texts that are counted; beyond them, only the source line is
LONGEST = 4096  # characters of a message
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    """The text with control characters escaped, so that a client cannot forge log lines, and truncated to
    LONGEST characters.
    """
    safe = CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return safe if len(safe) <= LONGEST else f"{safe[:LONGEST]}... ({len(safe):,} characters)"


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a record's `facts` are keys beside its message."""

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
    """Time, level and message; a request's line ends with its seconds and id."""

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
    """Lines of one text, or from one source line, in a window."""

    began: float
    written: int = 0
    left_out: int = 0  # lines that were not written
    last: logging.LogRecord | None = None  # the last line that was not written


class Limited(logging.StreamHandler[TextIO]):
    """A rate-limited handler: per window it writes SAME lines of each text and ORIGIN lines from each source
    line. It counts the others, and writes the count when the window ends. A line about a completion is always
    written: completions cost model time, which is limited elsewhere.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._counts: dict[tuple[object, ...], Count] = {}  # the oldest window first
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging under the handler's lock."""
        self.end_windows()
        if "model" in getattr(record, "facts", ()) or self._is_written(record):
            super().emit(record)

    def close(self) -> None:
        """Writes the counts of lines left out; called when the program ends."""
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
            self.end_windows(every=True)
        finally:
            self.release()
        super().close()

    def end_windows(self, every: bool = False) -> None:
        """Writes the counts of windows that are over. every: of open windows too."""
        now = self._clock()
        while self._counts:
            key, count = next(iter(self._counts.items()))
            if not every and now - count.began < WINDOW:
                return
            del self._counts[key]
            if count.left_out and count.last is not None:
                super().emit(_summary(count.last, count.left_out, now - count.began))

    def _is_written(self, record: logging.LogRecord) -> bool:
        """Counts the record, and returns whether it is within both limits."""
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
    """The message, truncated to be a key."""
    try:
        return record.getMessage()[:200]
    except Exception:  # a library's message does not fit its arguments: logging reports that itself
        return str(record.msg)[:200]


def _summary(last: logging.LogRecord, count: int, seconds: float) -> logging.LogRecord:
    line = f"{_text(last)} (repeated {count:,} times in {max(1, round(seconds))} s)"
    return logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, line, None, None)


def set_up(level: str, as_json: bool) -> None:
    """Sends the package's log and the warnings of all libraries to stderr."""
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
