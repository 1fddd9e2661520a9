"""A worker with devices of other hosts may connect to the ports of those, and to no other."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from satchel.runtime.api.options import Options
from satchel.runtime.children import interpreter
from satchel.runtime.sandbox import landlock
from satchel.runtime.sandbox.policy import policy_of

TRY = """
import errno, socket, sys
from satchel.runtime.sandbox import landlock
landlock.restrict([(landlock.READ, ["/"])], [int(sys.argv[1])])
for port in sys.argv[1:]:
    with socket.socket() as sock:
        print(errno.errorcode.get(sock.connect_ex(("127.0.0.1", int(port))), "connected"))
"""


def ports_are_limited() -> bool:
    try:
        return landlock.version() >= 4
    except (OSError, AttributeError):
        return False


@pytest.mark.skipif(not ports_are_limited(), reason="Landlock limits ports from Linux 6.7 on")
def test_only_the_named_ports_are_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(server.getsockname()[1]) for server in (one, other)]
        # Landlock needs a privilege or no_new_privs, which the worker sets before.
        start = ["import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)", TRY]
        command = [*interpreter(), "-c", "\n".join(start), *ports]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["connected", "EACCES"]


def test_the_policy_names_the_ports_of_hosts_and_reads_their_key(tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    far = policy_of((tmp_path / "m.gguf",), Options(device="a/cpu,b:9000/cpu,cpu", device_key=str(key)))
    assert far["ports"] == [8093, 9000]
    assert {str(key), "/etc/hosts"} <= set(far["read"])
    near = policy_of((tmp_path / "m.gguf",), Options(device="cpu", device_key=str(key)))
    assert near["ports"] == []
    assert not {str(key), "/etc/hosts"} & set(near["read"])
