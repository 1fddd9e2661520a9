"""`satchel engine`: lends engines of this host to programs on other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from satchel.cli.lending import (
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
    from collections.abc import Sequence

    from satchel.runtime.api.options import LoadKwargs


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
) -> None:
    """Lend engines of this host to other hosts, which name it as --engine-host HOST.

    A program there computes nothing but the text side; its file and the one here must have the same weights,
    which are never sent. Whoever has the key can use the engines. What is sent is signed, not encrypted.

    Examples:
        satchel engine --listen 192.168.0.2 --key-file fleet.key
        satchel engine --listen 192.168.0.2:9000 --key-file fleet.key -dev cuda:0
    """
    check_folders(models or [])
    serve(listen, required(key_file), models or [], engines, device=devices, threads=threads, sandbox=sandbox)


def serve(
    listen: str, key_file: Path, models: Sequence[Path], engines: int, **options: Unpack[LoadKwargs]
) -> None:
    """Serves engines with these load options until a signal ends it."""
    from satchel.runtime.api.options import Options
    from satchel.runtime.net.address import read_address
    from satchel.runtime.net.engine_server import EngineServer, Offered
    from satchel.runtime.net.key import read_key
    from satchel.runtime.net.remote_process import PORT
    from satchel.runtime.net.server import Lent

    key, address = read_key(key_file), read_address(listen, 0, PORT)
    offered = Offered(Lent((), tuple(models), stored), Options(**options), engines)
    serve_until_signal(
        lambda: EngineServer(address, key, offered),
        lambda server: f"{address.host} port {server.port}: lends engines",
    )
