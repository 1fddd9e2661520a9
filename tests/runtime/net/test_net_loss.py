"""The loss of a host in the middle of an answer, by kill -9: the model is placed anew and the answer goes on
with the same tokens, in a thread and in a worker process. A client that is killed frees its host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import net_hosts
import pytest
import tiny_file
import waiting
from devices import missing

from satchel.runtime.api.model import Model, WorkerModel
from satchel.runtime.api.options import LoadKwargs
from satchel.runtime.children import interpreter
from satchel.runtime.sampling import GREEDY

pytestmark = pytest.mark.skipif(bool(missing("cpu")), reason=missing("cpu"))
IDS = [3, 1, 4, 1, 5]
TOKENS = 40
LOAD: LoadKwargs = {"threads": 1, "context": 64, "slots": 2}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are not taken for lost because this machine is busy, and a server that begins has its time."""
    monkeypatch.setenv("SATCHEL_DEVICE_TIMEOUT_MS", "60000")
    monkeypatch.setenv("SATCHEL_DEVICE_RECONNECT_S", str(waiting.SECONDS))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("net") / "m.gguf", "llama", "q8_0")


@pytest.fixture(scope="module")
def wanted(path: Path) -> list[int]:
    with Model.load(path, device="cpu", **LOAD) as model:
        reply = model.generate(IDS, max_tokens=TOKENS, sampling=GREEDY)
        reply.read()
        return list(reply.ids)


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[net_hosts.HostProcess]:
    found = net_hosts.HostProcess(net_hosts.key_in(tmp_path))
    yield found
    found.close()


def options(lent: net_hosts.HostProcess, tmp_path: Path) -> LoadKwargs:
    key = str(tmp_path / "key")
    return {**LOAD, "device": f"cpu,{lent.name}", "tensor_split": "1,1", "device_key": key}


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_answer_goes_on_when_its_host_is_killed_and_begins_again(
    path: Path, tmp_path: Path, lent: net_hosts.HostProcess, wanted: list[int], worker: str
) -> None:
    with Model.load(path, worker=worker, **options(lent, tmp_path)) as model:
        reply = model.generate(IDS, max_tokens=TOKENS, sampling=GREEDY)
        pieces = iter(reply)
        next(pieces)
        lent.kill()
        again = net_hosts.HostProcess(tmp_path / "key", lent.port)
        try:
            for _ in pieces:
                pass
            assert list(reply.ids) == wanted
            if isinstance(model, WorkerModel):
                assert model.stats().worker_restarts == 1
            else:
                assert [d.name for d in model.devices] == ["cpu", lent.name]
        finally:
            again.close()


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_host_that_stays_away_is_left_out(
    path: Path,
    tmp_path: Path,
    lent: net_hosts.HostProcess,
    wanted: list[int],
    worker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SATCHEL_DEVICE_RECONNECT_S", "0")
    with Model.load(path, worker=worker, **options(lent, tmp_path)) as model:
        reply = model.generate(IDS, max_tokens=TOKENS, sampling=GREEDY)
        pieces = iter(reply)
        next(pieces)
        lent.kill()
        for _ in pieces:
            pass
        assert list(reply.ids) == wanted


CLIENT = """
import sys
from satchel.runtime.net.address import read_name
from satchel.runtime.net.device import NetBackend
device = NetBackend(read_name(sys.argv[1]), sys.argv[2]).open(threads=1)
device.alloc(1 << 20, 2)
print("open", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_client_held_is_freed(tmp_path: Path) -> None:
    key = net_hosts.key_in(tmp_path)
    with net_hosts.host(key) as server:
        command = [*interpreter(), "-c", CLIENT, net_hosts.name_of(server), str(key)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"open\n"
            assert len(server.sessions) == 1
            client.kill()
        waiting.until(lambda: not server.sessions, "the session ends")
