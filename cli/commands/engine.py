"""`satchel engine`: serves engines of this host to programs on other hosts."""

from __future__ import annotations

import platform
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Unpack

import typer

from satchel.cli.console import note
from satchel.cli.groups import wrong
from satchel.cli.host_serving import (
    LOOPBACK,
    KeyFile,
    Listen,
    ModelFolders,
    check_folders,
    required,
    serve_until_signal,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from satchel.runtime.api.options import LoadKwargs
    from satchel.runtime.net.address import Address
    from satchel.runtime.net.engine_server import EngineServer, Offered


ANY = ("0.0.0.0", "::")  # every address of this host


def engine(
    listen: Listen = LOOPBACK,
    key_file: KeyFile = None,
    devices: Annotated[
        str, typer.Option("-dev", "--device", metavar="NAMES", help="Devices of the engines.")
    ] = "auto",
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, help="CPU threads; 0: all.")] = 0,
    engines: Annotated[
        int, typer.Option("--engines", min=1, help="Programs that may have an engine at the same time.")
    ] = 1,
    models: ModelFolders = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox/--no-sandbox", help="Keep the engines in a sandbox.")
    ] = True,
    join: Annotated[
        str | None,
        typer.Option("--join", metavar="HOST[:PORT]", help="Join the fleet of a server's --engine-listen."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name in that fleet; default: this host's name and the port.")
    ] = None,
    drain: Annotated[
        float,
        typer.Option("--drain", min=0, help="Seconds that its requests have once it is told to stop."),
    ] = 60.0,
) -> None:
    """Serve engines of this host to other hosts: those that name it as --engine-host, or a fleet to --join.

    A program there computes nothing but the text side; its file and the one here must have the same weights,
    which are never sent. All who have the key can use the engines. What is sent is signed, not encrypted.

    Examples:
        satchel engine --listen 192.168.0.2 --key-file fleet.key
        satchel engine --listen 192.168.0.2:9000 --key-file fleet.key -dev cuda:0
        satchel engine --listen 192.168.0.2 --key-file fleet.key --join 192.168.0.1
    """
    check_folders(models or [])
    membership = RosterEntry(join or "", name or "", drain)
    serve(
        listen, required(key_file), models or [], engines, membership,
        device=devices, threads=threads, sandbox=sandbox,
    )  # fmt: skip


class RosterEntry(NamedTuple):
    """at: the roster to join; "": none. name: "" for the usual one. drain: seconds."""

    at: str
    name: str
    drain: float


def serve(
    listen: str,
    key_file: Path,
    models: Sequence[Path],
    engines: int,
    membership: RosterEntry,
    **options: Unpack[LoadKwargs],
) -> None:
    """Serves engines with these load options until a signal ends it."""
    from satchel.runtime.api.options import Options
    from satchel.runtime.net.address import read_address
    from satchel.runtime.net.engine_server import Offered
    from satchel.runtime.net.key import read_key
    from satchel.runtime.net.remote_process import PORT
    from satchel.runtime.net.server import Lent

    key, address = read_key(key_file), read_address(listen, 0, PORT)
    offered = Offered(Lent((), tuple(models), stored), Options(**options), engines)
    serve_until_signal(
        lambda: serving(address, key, offered, membership),
        lambda server: f"{address.host} port {server.port}: serves engines",
    )


@contextmanager
def serving(
    address: Address, key: bytes, offered: Offered, membership: RosterEntry
) -> Iterator[EngineServer]:
    """The server, and its membership of a fleet, which it leaves at the end once its requests are done."""
    from satchel.runtime.net.address import read_address
    from satchel.runtime.net.engine_server import EngineServer
    from satchel.runtime.net.roster_client import Joining, RosterClient
    from satchel.runtime.net.roster_server import NAME, PORT

    at = read_address(membership.at, usual=PORT) if membership.at else None
    if membership.name and not NAME.fullmatch(membership.name):
        raise wrong("--name", f"{membership.name!r}: expected letters, digits, dots and hyphens")
    with EngineServer(address, key, offered) as server:
        if at is None:
            yield server
            return
        host_name = re.sub(r"[^\w.-]", "", platform.node(), flags=re.ASCII).strip("._-")[:40] or "engine"
        name = membership.name or f"{host_name}-{server.port}"
        host = "" if address.host in ANY else address.host
        with RosterClient(server, Joining(at, key, name, host)) as member:
            yield server
            if not member.drain(membership.drain):
                note(f"requests that ran for {membership.drain:g} s more go on elsewhere")
