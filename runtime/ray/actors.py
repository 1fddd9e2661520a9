"""What runs on the nodes of a Ray cluster: an actor that serves one engine and joins the fleet's roster, and
one for each further stage, which serves the devices of its node.

Requests and tokens go over the fleet's own connections (runtime/net). Ray starts these, asks for their
health, and learns of their end.

Invariant: an engine that no roster has answered for `orphan` seconds ends itself and frees what it reserved,
so that a fleet that is gone holds nothing.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from satchel.errors.threads import begin
from satchel.runtime.api.options import Options
from satchel.runtime.net.address import SLASH, Address, read_address
from satchel.runtime.net.engine_server import EngineServer, Offered
from satchel.runtime.net.roster_client import Joining, RosterClient
from satchel.runtime.net.server import DeviceServer, Lent
from satchel.runtime.ray.orders import EngineOrder

LOOK = 1.0  # seconds between two looks whether the fleet is still there


class StageActor:
    """Serves the devices of a node to the engine of which it is a stage."""

    def __init__(self, order: dict[str, Any]) -> None:
        wanted = EngineOrder(**order)
        names = tuple(wanted.devices.split("+"))
        lent = Lent(names)
        self._host, self._names = towards(wanted.at), names
        self._server = DeviceServer(Address(self._host, 0), wanted.key.encode(), lent)

    def devices(self) -> str:
        """Names by which another host has the devices."""
        address = Address(self._host, self._server.port)
        return ",".join(f"{address}{SLASH}{name}" for name in self._names)

    def health(self) -> str:
        return ""


class EngineActor:
    """Serves an engine of a node. stages: devices of the further ones, as StageActor.devices() names them."""

    def __init__(self, order: dict[str, Any], stages: list[str]) -> None:
        self._order = wanted = EngineOrder(**order)
        self._key_file = key_file(wanted.key) if stages else ""
        options = Options(
            device=",".join([wanted.devices, *stages]),
            device_key=self._key_file,
            threads=wanted.threads,
            sandbox=wanted.sandbox,
        )
        key, offered = wanted.key.encode(), Offered(Lent(()), options)
        self._host = towards(wanted.at)
        self._server = EngineServer(Address(self._host, 0), key, offered)
        joining = Joining(read_address(wanted.at), key, wanted.name, self._host)
        self._member = RosterClient(self._server, joining)
        self._stalled_since = 0.0
        begin(threading.Thread(target=self._watch, name="satchel-orphan", daemon=True))

    def health(self) -> str:
        """Why it must be begun anew; "" if it need not. It is asked by the launcher every few seconds."""
        now, trouble = time.monotonic(), self._server.trouble
        self._stalled_since = (self._stalled_since or now) if trouble else 0.0
        return trouble if trouble and now - self._stalled_since >= self._order.stalled else ""

    def where(self) -> dict[str, Any]:
        """What people are told of it."""
        told = "" if self._member.joined else self._member.trouble
        return {"host": self._host, "port": self._server.port, "pid": os.getpid(), "trouble": told}

    def drain(self) -> bool:
        """Leaves the fleet once its requests are done, at most `drain` seconds from now."""
        done = self._member.drain(self._order.drain)
        self._forget()
        return done

    def _watch(self) -> None:
        while self._member.alone < self._order.orphan:
            time.sleep(LOOK)
        self._forget()
        free_place()
        os._exit(0)

    def _forget(self) -> None:
        if self._key_file:
            with suppress(OSError):
                Path(self._key_file).unlink()


def key_file(key: str) -> str:
    """A new file with the key, which its owner alone can read."""
    handle, path = tempfile.mkstemp(prefix="satchel-", suffix=".key")
    with os.fdopen(handle, "w") as file:
        file.write(key)
    return path


def towards(address: str) -> str:
    """The address of this host from which it reaches another, HOST:PORT."""
    host, port = read_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing: the system chooses the way
        return str(probe.getsockname()[0])


def free_place() -> None:
    """Gives back what this actor reserved, its stages with it."""
    from ray import util

    with suppress(Exception):  # the cluster may be gone as well
        found = util.get_current_placement_group()
        if found is not None:
            util.remove_placement_group(found)
