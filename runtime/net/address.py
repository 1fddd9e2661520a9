"""Names of devices of other hosts: HOST/DEVICE or HOST:PORT/DEVICE, as in -dev cuda:0,host2/cuda:0."""

from __future__ import annotations

import re
from typing import NamedTuple

from satchel.errors import RequestError

PORT = 8093  # where `satchel device` listens
SLASH = "/"  # between a host and its device
ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
DEVICE = re.compile(r"([a-z]\w*)(?::(\d{1,4}))?")


class Address(NamedTuple):
    """Where a server listens. host: a name or a number, IPv6 without brackets."""

    host: str
    port: int = PORT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORT else f"{host}:{self.port}"


class NetName(NamedTuple):
    """A device of another host. number: its index among those of its backend."""

    address: Address
    backend: str
    number: int

    def __str__(self) -> str:
        number = f":{self.number}" if self.number else ""
        return f"{self.address}{SLASH}{self.backend}{number}"


def read_address(text: str, least: int = 1, usual: int = PORT) -> Address:
    """Parses HOST or HOST:PORT; usual: the port where none is given. Raises RequestError for all else."""
    found = ADDRESS.fullmatch(text.strip())
    port = int(found[2] or usual) if found else 0
    if not found or not least <= port < 1 << 16:
        raise RequestError(f"address {text!r}: expected HOST or HOST:PORT, as in 192.168.0.2:{usual}")
    return Address(found[1].strip("[]").lower(), port)


def read_name(text: str) -> NetName:
    """Parses the name of a device of another host. Raises RequestError for anything else."""
    host, _, device = text.partition(SLASH)
    found = DEVICE.fullmatch(device.strip().lower())
    if not found:
        raise RequestError(f"device {text!r}: expected HOST/DEVICE or HOST:PORT/DEVICE, as in host2/cuda:0")
    return NetName(read_address(host), found[1], int(found[2] or 0))
