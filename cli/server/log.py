"""The server's log: lines for people, or JSON objects for programs. Prompts and keys are never in it by
themselves.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

LOG = logging.getLogger("satchel.server")


class JsonLines(logging.Formatter):
    """One JSON object a line; what a record has as `facts` stands beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        made: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            made["traceback"] = self.formatException(record.exc_info)
        return json.dumps(made, ensure_ascii=False, default=str)


class Lines(logging.Formatter):
    """Time, level and message, with the seconds of a request."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        facts = getattr(record, "facts", None)
        return (
            f"{text} {facts['seconds']:.3f} s {facts['request_id']}" if facts and "seconds" in facts else text
        )


def set_up(level: str, as_json: bool) -> None:
    """Sends what the package logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("satchel")
    root.handlers, root.propagate = [handler], False
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").handlers = [handler]
    logging.getLogger("uvicorn").setLevel("WARNING")
