"""The network between a program and the hosts of its engines is silent, or the program dies: requests go on
elsewhere with the tokens that they have, and a host is free again once it has heard nothing for its patience.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import net_hosts
import numpy as np
import pytest
from cable import Cable
from net_hosts import LOOPBACK
from tiny_file import write_model
from waiting import until, until_amid

from satchel import Model, Options
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.recovering import RECONNECT_NAME
from satchel.runtime.net.address import Address
from satchel.runtime.net.device import TIMEOUT_NAME
from satchel.runtime.net.engine_server import EngineServer, Offered
from satchel.runtime.net.key import read_key
from satchel.runtime.net.link import LinkDeadlines
from satchel.runtime.net.server import Lent
from satchel.runtime.sampling import Sampling
from satchel.runtime.worker import process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the link polls sockets")
WARM = Sampling(temperature=1.5, top_k=0, seed=11)
# A host that hears nothing for so long ends the session: long enough for a busy machine, short for a test.
SOON = LinkDeadlines(handshake=60.0, beat=1.0, missed=5, frame=60.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("partition") / "tiny.gguf")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_hosts.key_in(tmp_path_factory.mktemp("key"))


@pytest.fixture
def hosts(key: Path) -> Iterator[tuple[EngineServer, EngineServer]]:
    offered, known = Offered(Lent((), ()), Options(device="cpu", threads=1), 1), read_key(key)
    with (
        EngineServer(Address(LOOPBACK, 0), known, offered, SOON) as first,
        EngineServer(Address(LOOPBACK, 0), known, offered, SOON) as second,
    ):
        yield first, second


def test_a_cut_cable_loses_no_token_and_nobody_answers_twice(
    path: Path, key: Path, hosts: tuple[EngineServer, EngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECONNECT_NAME, "0.01")
    monkeypatch.setenv(TIMEOUT_NAME, "3000")
    rng = np.random.default_rng(5)
    asked = [[int(t) for t in rng.integers(100, 250, 20)] for _ in range(6)]
    with Model.load(path, slots=4, threads=1) as here:
        wanted = []
        for ids in asked:
            reply = here.generate(ids, max_tokens=70, sampling=WARM, ignore_eos=True)
            reply.read()
            wanted.append(reply.ids)
    first, second = hosts
    with Cable(first.port) as cable:
        names = f"{LOOPBACK}:{cable.port},{LOOPBACK}:{second.port}"
        with Model.load(path, slots=4, engine_host=names, device_key=str(key)) as model:
            assert isinstance(model, WorkerModel) and model.fleet is not None
            fleet = model.fleet
            member = fleet.members["0"]

            def read() -> list[list[int]]:
                replies = [
                    model.generate(ids, max_tokens=70, sampling=WARM, ignore_eos=True) for ids in asked
                ]
                for reply in replies:
                    reply.start()
                for reply in replies:
                    reply.read()
                return [reply.ids for reply in replies]

            with ThreadPoolExecutor(1) as pool:
                reading = until_amid(
                    lambda: pool.submit(read), lambda: member.service.requests, "the first host has some"
                )
                cable.cut.set()
                assert reading.result() == wanted
            until(lambda: fleet.restarts == 1 and not member.usable, "its silence is seen")
            until(lambda: not first.sessions, "the host ends the session of a program that it hears no more")
            cable.cut.clear()
            until(lambda: member.usable, "the cable is whole, and the member is back")
            again = model.generate(asked[0], max_tokens=70, sampling=WARM, ignore_eos=True)
            again.read()
            assert again.ids == wanted[0]


PROGRAM = """
import sys
from satchel import Model
model = Model.load(sys.argv[1], slots=2, threads=1, replicas=2)
print(*(member.service.pid for member in model.fleet.members.values()), flush=True)
reply = model.generate([1] * 20, max_tokens=50, ignore_eos=True)
reply.start()
sys.stdin.read()
"""


def gone(pid: int) -> bool:
    """Whether the process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_all_members_of_this_host_end_with_the_program(path: Path) -> None:
    """kill -9 of the program leaves no process behind."""
    start = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); exec(sys.argv.pop(1))"
    command = [*process.interpreter(), "-c", start, json.dumps(sys.path), PROGRAM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 2 and not any(map(gone, pids))
        program.send_signal(signal.SIGKILL)
    until(lambda: all(map(gone, pids)), "all have ended")
