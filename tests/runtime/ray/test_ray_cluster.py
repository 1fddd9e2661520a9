"""Engines and deployed fleets on a real Ray cluster of one machine: a head and raylets, of which some are
killed. The answers are those of one engine, whatever happens to the cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray_clusters as clusters
from fleet_requests import fleet_of
from tiny_file import write_model
from waiting import SECONDS, joined, until

from satchel import Model, Options
from satchel.cli.main import main
from satchel.runtime.children import interpreter
from satchel.runtime.fleet.autoscaler import Autoscaler
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.router import RoundRobin
from satchel.runtime.sampling import Sampling

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a cluster of several nodes on one host"),
    pytest.mark.skipif(bool(clusters.MISSING), reason=clusters.MISSING),
]
WARM = Sampling(temperature=1.5, top_k=0, seed=11)
LENGTH = 60
JOINING = 240.0  # seconds at most for an engine: its actor, its process and the load begin one after another
FILE = """
[fleet]
name = "chat"
ray = "{address}"
[front]
port = 0
[upgrade]
seconds = 0
least_agreement = 0.5
least_compared = 16
[models.tiny]
path = "{path}"
context = {context}
slots = 2
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ray") / "tiny.gguf")


@pytest.fixture(scope="module")
def shared() -> Iterator[clusters.Shared]:
    with clusters.Shared(nodes=2, cpus=1) as found:
        yield found


@pytest.fixture
def cluster(shared: clusters.Shared) -> Any:
    return shared.cluster


@pytest.fixture
def spent(shared: clusters.Shared) -> Iterator[Any]:
    """The cluster of a test that ends its head: a new head does not know the nodes, which end themselves."""
    yield shared.cluster
    shared.end()


def asked(number: int) -> list[int]:
    return [100 + (number * 7 + i) % 150 for i in range(20)]


def answers(model: Model, count: int) -> list[list[int]]:
    """All at once."""

    def one(number: int) -> list[int]:
        reply = model.generate(asked(number), max_tokens=LENGTH, sampling=WARM, ignore_eos=True)
        reply.read()
        return list(reply.ids)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@contextmanager
def asking(model: Model) -> Iterator[list[list[list[int]]]]:
    """All clients ask again and again: whenever something happens, some are at work. Gives the answers of
    each round; the last one has ended when the block is left.
    """
    over, rounds = threading.Event(), list[list[list[int]]]()

    def ask() -> None:
        while not over.is_set():
            rounds.append(answers(model, 16))

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            yield rounds
        finally:
            over.set()
        asked.result()


@pytest.fixture(scope="module")
def wanted(path: Path) -> list[list[int]]:
    with Model.load(path, slots=8, threads=1) as model:
        return answers(model, 16)


def on(cluster: Any, path: Path, **options: Any) -> Model:
    return Model.load(path, Options(slots=8, threads=1, ray=cluster.address, **options))


def ready(fleet: Fleet) -> list[str]:
    return sorted(member.name for member in list(fleet.members.values()) if member.usable)


def scaler_of(fleet: Fleet) -> Autoscaler:
    found = fleet.scaling
    assert isinstance(found, Autoscaler)
    return found


def test_an_engine_divides_its_layers_among_nodes(cluster: Any, path: Path, wanted: list[list[int]]) -> None:
    """Two stages on two nodes: a placement group with a bundle on each."""
    with on(cluster, path, ray_stages=2) as model:
        assert answers(model, 4) == wanted[:4]
        assert len(ready(fleet_of(model))) == 1


class Deployed:
    """A fleet's file, and `satchel deploy` of it in this process."""

    def __init__(self, cluster: Any, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._at, self.file, self._capsys = cluster.address, file, capsys

    def says(self, context: int, model: Path) -> None:
        self.file.write_text(FILE.format(address=self._at, path=model, context=context))

    def deploy(self, *words: str) -> tuple[int, str, str]:
        """Its exit status, and what it printed."""
        import ray

        self._capsys.readouterr()
        try:
            status = main(["deploy", str(self.file), *words])
        finally:
            ray.shutdown()
        return (status, *self._capsys.readouterr())

    def versions(self) -> dict[str, float]:
        status, told, _ = self.deploy("--status")
        assert status == 0
        found: dict[str, float] = json.loads(told)["versions"]["tiny"]
        return found


@contextmanager
def talking(address: str) -> Iterator[list[str]]:
    """A client asks all the time; gives its answers."""
    import httpx

    over, texts = threading.Event(), list[str]()
    body = {"model": "tiny", "prompt": [104, 105, 106], "max_tokens": 8, "temperature": 0}

    def ask() -> None:
        while not over.wait(0.02):
            answer = httpx.post(f"{address}/v1/completions", json=body, timeout=SECONDS)
            texts.append(answer.json()["choices"][0]["text"] if answer.is_success else answer.text)

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield texts
    finally:
        over.set()
        joined(client, "the client")


def test_a_fleet_is_deployed_upgraded_rolled_back_and_ended(
    cluster: Any, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("httpx")
    pytest.importorskip("uvicorn")
    fleet = Deployed(cluster, tmp_path / "fleet.toml", capsys)
    fleet.says(128, path)
    command = [*interpreter(), "-m", "satchel", "deploy", str(fleet.file)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS)
    assert made.returncode == 0, made.stderr
    address = made.stdout.strip()
    assert address.startswith("http://127.0.0.1:") and "has loaded" in made.stderr
    with talking(address) as texts:
        until(lambda: texts, "it answers")
        # A new version, while requests go on: none fails.
        first = fleet.versions()
        fleet.says(96, path)
        status, _, told = fleet.deploy()
        assert status == 0, told
        assert "was found as good: over" in told
        assert "10% of the requests" in told and "has all requests" in told
        second = fleet.versions()
        assert set(second.values()) == {1.0} and set(second) != set(first)
        # One that no engine can load is taken back, and the old one goes on.
        other = tmp_path / "other.gguf"
        other.write_bytes(path.read_bytes()[:1000])
        fleet.says(96, other)
        status, _, told = fleet.deploy()
        assert status == 1 and "was taken back" in told, told
        assert fleet.versions() == second
    assert len(set(texts)) == 1, set(texts)
    assert fleet.deploy("--down")[0] == 0
    status, _, told = fleet.deploy("--status")
    assert status == 1 and "is not deployed" in told


def test_a_fleet_follows_its_cluster(spent: Any, path: Path, wanted: list[list[int]]) -> None:
    """It grows, loses a node while that one answers, gets another, shrinks, and loses the head. The limits
    stand in for the load, which the simulated clock's tests judge; they also allow no third engine, for which
    there is no node.
    """
    with on(spent, path, replicas="1..2", replica_wait=1e6) as model:
        fleet = fleet_of(model)
        scaler = scaler_of(fleet)
        scaler.bound(2, 2)
        until(lambda: len(ready(fleet)) == 2, "a second has joined", JOINING)
        # The router may give all requests to one of them, where the machine made the other one's steps slow.
        fleet.policy = RoundRobin()
        before = ready(fleet)
        with asking(model) as rounds:
            until(lambda: all(m.service.requests for m in list(fleet.members.values())), "both work")
            spent.remove_node(spent.list_all_nodes()[-1], allow_graceful=False)
        assert all(found == wanted for found in rounds)
        until(lambda: len(ready(fleet)) == 1, "one is lost")
        until(lambda: len(scaler.facts().pending) == 1, "another is begun, and waits for a node")
        clusters.add_node(spent)
        until(lambda: len(ready(fleet)) == 2, "it has joined on the new node", JOINING)
        assert set(ready(fleet)) & set(before) and set(ready(fleet)) != set(before)
        assert answers(model, 16) == wanted
        scaler.bound(1, 1)
        with asking(model) as rounds:
            until(lambda: len(fleet.members) == 1, "one is drained, and leaves")
        assert all(found == wanted for found in rounds)
        spent.head_node.kill_gcs_server()
        assert answers(model, 16) == wanted
        spent.head_node.start_gcs_server()
        assert answers(model, 4) == wanted[:4]
