"""`satchel device`: lends the devices of this host to programs on other hosts."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.console import note
from satchel.cli.groups import wrong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from satchel.runtime.net.address import Address

LOOPBACK = "127.0.0.1"


def device(
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST[:PORT]",
            help="Address of this host on which to listen; 127.0.0.1 is for programs of this host alone.",
        ),
    ] = LOOPBACK,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="The key that clients have too; required."),
    ] = None,
    devices: Annotated[
        str,
        typer.Option("-dev", "--device", metavar="NAMES", help="Devices to lend; default: all of this host."),
    ] = "auto",
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--models",
            metavar="DIR",
            help="Folder of model files, repeatable; default: where the client's file lies, and the store.",
        ),
    ] = None,
    make_key: Annotated[
        Path | None, typer.Option("--make-key", metavar="FILE", help="Write a new key to a file, and end.")
    ] = None,
) -> None:
    """Lend this host's devices to other hosts, which name them as -dev HOST/cuda:0.

    Whoever has the key can use the devices. Weights are read from this host's files and never sent. What is
    sent is signed, not encrypted.

    Examples:
        satchel device --make-key fleet.key
        satchel device --listen 192.168.0.2 --key-file fleet.key
        satchel device --listen 10.0.0.2:9000 --key-file fleet.key -dev cuda:0
    """
    from satchel.runtime.net.address import read_address
    from satchel.runtime.net.key import make_key as write_key

    if make_key is not None:
        write_key(make_key)
        note(f"{make_key}: a new key; copy it to each host, readable by its user alone")
        return
    if key_file is None:
        raise wrong("--key-file", "it is required: `satchel device --make-key FILE` writes a key")
    _serve(read_address(listen, 0), key_file, devices, models or [])


def _serve(address: Address, key_file: Path, devices: str, models: Sequence[Path]) -> None:
    from satchel.runtime.net.key import read_key
    from satchel.runtime.net.server import DeviceServer, Lent

    key = read_key(key_file)
    for folder in models:
        if not folder.is_dir():
            raise wrong("--models", f"{folder} is no folder")
    names = _names(devices)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    log_sessions()
    with DeviceServer(address, key, Lent(names, tuple(models), stored)) as server:
        shown = address._replace(port=server.port)
        note(f"{shown.host} port {shown.port}: lends {', '.join(names)}")
        over.wait()
    note("ended")


def stored(name: str) -> list[Path]:
    """Files of that name in the store."""
    from satchel.store import Store

    return [entry.path for entry in Store().list() if entry.path.name == name]


def _names(devices: str) -> tuple[str, ...]:
    """Names of the devices to lend. Each is opened once, so that one that cannot be used is an error now."""
    from satchel.runtime.api.options import Options
    from satchel.runtime.placement.devices import open_for

    options = Options(device=devices)
    wanted = options.placement_options
    if wanted.far or wanted.grouped:
        raise wrong("--device", f"{devices}: expected devices of this host, one by one")
    with open_for(options) as opened:
        for line in opened.notes:
            note(line)
        found = tuple(device.name for device in opened.devices)
    return wanted.devices or found


def log_sessions() -> None:
    """Shows what the server logs: who comes and goes."""
    import logging

    from satchel.runtime.log import LOG

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
