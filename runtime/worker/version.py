"""The version of the messages between a program and its worker processes. The two must be equal: a program
that runs while it is upgraded begins its next process from the new files.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from hashlib import sha256

from satchel.runtime.worker.rpc_methods import METHODS
from satchel.runtime.worker.wire import CARRIED, DTYPES, ERRORS

PROTOCOL = 2  # raised with each change of the messages that the kinds below do not show


@cache
def wire_version() -> str:
    """Digest of the protocol, the kinds of values with their fields, and the methods."""
    kinds = [[name, *(f"{f.name}: {f.type}" for f in fields(kind))] for name, kind in sorted(CARRIED.items())]
    told = [PROTOCOL, kinds, sorted(METHODS), sorted(ERRORS), DTYPES]
    return sha256(repr(told).encode()).hexdigest()[:16]
