"""Device servers on loopback for tests, in this process and in one that can be killed; pairs of sockets."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from satchel.runtime.children import interpreter
from satchel.runtime.net.address import Address
from satchel.runtime.net.key import make_key, read_key
from satchel.runtime.net.link import LinkDeadlines
from satchel.runtime.net.server import DeviceServer, Lent

LOOPBACK = "127.0.0.1"
PATIENT = LinkDeadlines(handshake=60.0, missed=60, frame=60.0)  # for a machine that is busy with other tests


def key_in(folder: Path) -> Path:
    """A new key's file."""
    path = folder / "key"
    make_key(path)
    return path


def host(
    key: Path,
    devices: Sequence[str] = ("cpu",),
    folders: Sequence[Path] = (),
    deadlines: LinkDeadlines = PATIENT,
) -> DeviceServer:
    """A server in this process, on a free port."""
    return DeviceServer(Address(LOOPBACK, 0), read_key(key), Lent(devices, folders), deadlines)


def name_of(server: DeviceServer, device: str = "cpu") -> str:
    return f"{LOOPBACK}:{server.port}/{device}"


def served_port(process: subprocess.Popen[str]) -> int:
    """The port of loopback at which `satchel device` or `satchel engine` says that it serves. Lines of its
    log may come before that one.
    """
    said = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if found := re.match(rf"{re.escape(LOOPBACK)} port (\d+): serves ", line):
            return int(found[1])
    raise AssertionError(f"it does not say that it serves: {said}")


class HostProcess:
    """`satchel device` in a process of its own, with one device. port: 0 for a free one. hold: the remote
    device's SATCHEL_REMOTE_HOLD.
    """

    def __init__(self, key: Path, port: int = 0, device: str = "remote", hold: Path | None = None) -> None:
        command = [*interpreter(), "-m", "satchel", "device", "--listen", f"{LOOPBACK}:{port}"]
        command += ["--key-file", str(key), "-dev", device]
        environ = {**os.environ, "SATCHEL_REMOTE_HOLD": str(hold or "")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1, env=environ)
        self.port = served_port(self.process)
        self.name = f"{LOOPBACK}:{self.port}/{device}"

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


class EngineHost:
    """`satchel engine` in a process of its own, on a free port; `with` ends it. join: a roster, where
    it has that name.
    """

    def __init__(self, key: Path, join: str = "", name: str = "") -> None:
        command = [*interpreter(), "-m", "satchel", "engine", "--listen", f"{LOOPBACK}:0"]
        command += ["--key-file", str(key), "-dev", "cpu", "-t", "1"]
        command += ["--join", join, "--name", name] if join else []
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.name = f"{LOOPBACK}:{served_port(self.process)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


@contextmanager
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection over loopback."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        yield one, other


def closed(sock: socket.socket) -> bool:
    """Whether the peer ended the connection: waits for it, and drops what comes before."""
    sock.settimeout(120.0)
    with suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass
    return True
