"""The note on the sandboxes of worker processes that a server prints at its start."""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.api.options import Options


def sandbox_note(served: Iterable[Options]) -> str:
    """The protection that the sandboxes lack; "" where each is complete or no model wants one."""
    from satchel.runtime.sandbox.enter import lacking

    options = list(served)
    if any(o.worker == "thread" for o in options):
        return "no sandbox: with --worker thread the engine runs in the server's process (docs/server.md)"
    if any(o.sandbox for o in options) and (missing := lacking()):
        return missing
    return ""
