"""Tells a URL of the administrator's what changed, as JSON, in a thread of its own.

Invariant: no request waits for it. What cannot be told in TRIES tries is logged and dropped; events of one
URL arrive in their order, unless a try of one fails.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from satchel.errors import SatchelError
from satchel.errors.threads import begin
from satchel.server.log import LOG

TRIES = 4
PAUSE = 2.0  # seconds before the second try, then twice as many each time
TIMEOUT = 10.0  # seconds for connecting, and for each read
MOST_ANSWER = 1 << 16  # bytes of an answer, which nobody reads


def tell(url: str, event: Mapping[str, Any]) -> None:
    """Sends the event without waiting for the answer."""
    try:
        begin(threading.Thread(target=_send, args=(url, dict(event)), name="satchel-webhook", daemon=True))
    except SatchelError as error:
        LOG.error("the webhook %s was not told: %s", _host(url), error)


def _send(url: str, event: Mapping[str, Any]) -> None:
    import json

    from satchel.store.web import Interrupted, Web

    pause, waiting = PAUSE, threading.Event()
    why = ""
    for _ in range(TRIES):
        web = Web(trusted=[url], timeout=TIMEOUT)
        try:
            sent = {"content-type": "application/json"}
            with web.open(url, method="POST", headers=sent, body=json.dumps(event).encode()) as answer:
                answer.read(MOST_ANSWER)
                if answer.status < 400:
                    return
                why = f"status {answer.status}"
        except (Interrupted, SatchelError, OSError) as error:
            why = str(error)
        finally:
            web.close()
        waiting.wait(pause)
        pause *= 2
    LOG.error("the webhook %s was not told of %s: %s", _host(url), event.get("change"), why)


def _host(url: str) -> str:
    """What a log may say of a URL: its path may hold a secret."""
    return "/".join(url.split("/", 3)[:3])
