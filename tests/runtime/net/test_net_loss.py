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
from devices import needs

from satchel.runtime.api.model import Model, WorkerModel
from satchel.runtime.api.options import LoadKwargs
from satchel.runtime.api.reply import Reply
from satchel.runtime.children import interpreter
from satchel.runtime.sampling import GREEDY

pytestmark = needs("remote")
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


class Held:
    """A host whose device runs only while a test lets it, so that the test kills it in the middle of an
    answer.
    """

    def __init__(self, folder: Path) -> None:
        self.key, self._hold = net_hosts.key_in(folder), folder / "hold"
        self.host = net_hosts.HostProcess(self.key, hold=self._hold)
        self._held, self._go = folder / "hold.0", folder / "hold.0.go"

    def options(self) -> LoadKwargs:
        key = str(self.key)
        return {**LOAD, "device": f"cpu,{self.host.name}", "tensor_split": "1,1", "device_key": key}

    def killed_after_a_token(self, reply: Reply) -> None:
        """kill -9 while a step after the first token is under way."""
        self._held.touch()
        reply.start()

        def begun() -> bool:
            self._go.touch()
            return reply.handle is not None and reply.handle.seq.generated > 0

        waiting.until(begun, "the first token")
        assert reply.handle is not None
        assert reply.handle.seq.generated < TOKENS - 1
        self.host.kill()
        self._held.unlink()

    def begin_again(self) -> None:
        port = self.host.port
        self.host.close()
        self.host = net_hosts.HostProcess(self.key, port)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    found = Held(tmp_path)
    yield found
    found.host.close()


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_answer_goes_on_when_its_host_is_killed_and_begins_again(
    path: Path, held: Held, wanted: list[int], worker: str
) -> None:
    with Model.load(path, worker=worker, **held.options()) as model:
        reply = model.generate(IDS, max_tokens=TOKENS, sampling=GREEDY)
        held.killed_after_a_token(reply)
        held.begin_again()
        reply.read()
        assert list(reply.ids) == wanted
        if isinstance(model, WorkerModel):
            assert model.stats().worker_restarts == 1
        else:
            assert [d.name for d in model.devices] == ["cpu", held.host.name]


def test_a_host_that_stays_away_is_left_out(
    path: Path, held: Held, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_DEVICE_RECONNECT_S", "0")
    with Model.load(path, **held.options()) as model:
        reply = model.generate(IDS, max_tokens=TOKENS, sampling=GREEDY)
        held.killed_after_a_token(reply)
        reply.read()
        assert list(reply.ids) == wanted
        assert model.placement_options.lost == (held.host.name,)
        assert [d.name for d in model.devices] == ["cpu"]


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
