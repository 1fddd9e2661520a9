"""`satchel device`: serves the devices of this host to programs on other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from collections.abc import Sequence

    from satchel.runtime.net.address import Address


def device(
    listen: Listen = LOOPBACK,
    key_file: KeyFile = None,
    devices: Annotated[
        str,
        typer.Option(
            "-dev", "--device", metavar="NAMES", help="Devices to serve; default: all of this host."
        ),
    ] = "auto",
    models: ModelFolders = None,
    make_key: Annotated[
        Path | None, typer.Option("--make-key", metavar="FILE", help="Write a new key to a file, and end.")
    ] = None,
) -> None:
    """Serve this host's devices to other hosts, which name them as -dev HOST/cuda:0.

    All who have the key can use the devices. Weights are read from this host's files and never sent. What is
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
    _serve(read_address(listen, 0), required(key_file), devices, models or [])


def _serve(address: Address, key_file: Path, devices: str, models: Sequence[Path]) -> None:
    from satchel.runtime.net.key import read_key
    from satchel.runtime.net.server import DeviceServer, Lent

    key = read_key(key_file)
    check_folders(models)
    names = _names(devices)
    serve_until_signal(
        lambda: DeviceServer(address, key, Lent(names, tuple(models), stored)),
        lambda server: f"{address.host} port {server.port}: serves {', '.join(names)}",
    )


def _names(devices: str) -> tuple[str, ...]:
    """Names of the devices to serve. Each is opened once, so that one that cannot be used is an error now."""
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
