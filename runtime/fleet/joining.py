"""Fleets whose engines come and go: those of other hosts that join at this one's roster (`satchel engine
--join`), and those that a Ray cluster starts, which join there too.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.fleet.autoscale import Limits
from satchel.runtime.fleet.autoscaler import Autoscaler, EngineSource
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.roster import Listed
from satchel.runtime.kv.identity import weights_identity
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address, read_address
from satchel.runtime.net.device import deadlines
from satchel.runtime.net.key import LEAST, read_key
from satchel.runtime.net.remote_process import RemoteEngine
from satchel.runtime.net.roster_server import PORT, RosterServer
from satchel.runtime.placement.options import replica_range
from satchel.runtime.ray.source import RaySource

ANY = ("0.0.0.0", "::")  # every address of this host


class Entrance:
    """Makes members of the engines that a roster tells of."""

    def __init__(self, fleet: Fleet, key: bytes, gguf: GGUF) -> None:
        self._fleet, self._key = fleet, key
        self._identity, self._stamps = weights_identity(gguf), gguf.stamps

    def came(self, member: Listed) -> None:
        name, address = member.hello.name, read_address(member.hello.address)
        LOG.info("%s: an engine joins as %s, at %s", self._fleet.path.name, name, address)
        try:
            self._fleet.enter(name, RemoteEngine(address, self._key, self._identity, self._stamps))
        except RequestError as error:  # the fleet was closed
            LOG.info("%s: %s cannot join: %s", self._fleet.path.name, name, error)

    def retiring(self, name: str) -> None:
        self._fleet.retire(name)

    def gone(self, name: str, lost: bool) -> None:
        LOG.log(40 if lost else 20, "%s: %s %s", self._fleet.path.name, name, "is lost" if lost else "left")
        self._fleet.dismiss(name)


def joined_fleet(path: Path, options: Options, files: Sequence[Path], gguf: GGUF) -> Fleet:
    """A fleet that listens for engines, and has Ray start some where `ray` says so. Raises RequestError where
    its address cannot be listened on, or the cluster cannot be reached.
    """
    key = read_key(Path(options.device_key)) if options.device_key else secrets.token_hex(LEAST).encode()
    fleet = Fleet(path, options, 1, files, gguf.stamps, start=0)
    source = RaySource(fleet, options, key) if options.ray else None
    if source:
        fleet.attach(source.close)
    try:
        listen = options.engine_listen or (source.host if source else "")
        address = read_address(listen, 0, 0 if source else PORT)
        roster = RosterServer(address, key, Entrance(fleet, key, gguf), deadlines().patience)
    except BaseException:
        fleet.kill()
        raise
    fleet.attach(roster.close)
    LOG.info("%s: engines join at %s port %d", path.name, address.host, roster.port)
    if source:
        host = source.host if address.host in ANY else address.host
        source.listen(Address(host, roster.port))
        scaled(fleet, options, source).begin()
    return fleet


def scaled(fleet: Fleet, options: Options, source: EngineSource | None = None) -> Autoscaler:
    """The autoscaler of a fleet, which ends with it; begin() starts it."""
    least, most = replica_range(options.replicas)
    autoscaler = Autoscaler(fleet, Limits(least, most, options.replica_wait), source)
    fleet.attach(autoscaler.close)
    fleet.scaling = autoscaler
    return autoscaler
