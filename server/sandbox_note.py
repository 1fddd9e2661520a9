"""What a server says at its start of the sandboxes of its models' worker processes."""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.api.options import Options


def sandbox_note(served: Iterable[Options]) -> str:
    """What the sandboxes of models with these options lack; "" where each is whole, or none is wanted."""
    from satchel.runtime.sandbox.enter import lacking

    options = list(served)
    if any(o.worker == "thread" for o in options):
        return "no sandbox: with --worker thread the engine runs in the server's process (docs/server.md)"
    if any(o.sandbox for o in options) and (missing := lacking()):
        return missing
    return ""
