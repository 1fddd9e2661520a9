"""Engines on a real Ray cluster of one machine: a head and raylets, of which some are killed. The answers are
those of one engine, whatever happens to the cluster.
"""

from __future__ import annotations

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
from waiting import until

from satchel import Model, Options
from satchel.runtime.fleet.autoscaler import Autoscaler
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.router import RoundRobin
from satchel.runtime.sampling import Sampling

pytest.importorskip("ray", reason="ray is not installed: pip install 'satchel[ray]'")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a cluster of several nodes on one host")
WARM = Sampling(temperature=1.5, top_k=0, seed=11)
LENGTH = 60
JOINING = 240.0  # seconds at most for an engine: its actor, its process and the load begin one after another


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ray") / "tiny.gguf")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with clusters.cluster(nodes=2, cpus=1) as found:
        yield found


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


def test_nodes_are_lost_and_come_and_the_fleet_follows(
    cluster: Any, path: Path, wanted: list[list[int]]
) -> None:
    # Without a limit on the wait: on a busy machine it asks for a third engine, and then two are pending.
    with on(cluster, path, replicas="2..3", replica_wait=1e6) as model:
        fleet = fleet_of(model)
        until(lambda: len(ready(fleet)) == 2, "two engines have joined", JOINING)
        # The router may give all requests to one of them, where the machine made the other one's steps slow.
        fleet.policy = RoundRobin()
        assert answers(model, 16) == wanted
        # A node with an engine is killed while that one answers.
        before = ready(fleet)
        with asking(model) as rounds:
            until(lambda: all(m.service.requests for m in list(fleet.members.values())), "both work")
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        assert all(found == wanted for found in rounds)
        until(lambda: len(ready(fleet)) == 1, "one is lost")
        scaling = scaler_of(fleet)
        until(lambda: len(scaling.facts().pending) == 1, "another is begun, and waits for a node")
        clusters.add_node(cluster)
        until(lambda: len(ready(fleet)) == 2, "it has joined on the new node", JOINING)
        assert set(ready(fleet)) & set(before) and set(ready(fleet)) != set(before)
        assert answers(model, 16) == wanted


def test_engines_are_added_and_drained(cluster: Any, path: Path, wanted: list[list[int]]) -> None:
    """The limits stand in for the load, which the simulated clock's tests judge."""
    with on(cluster, path, replicas="1..2", replica_wait=1e6) as model:
        fleet = fleet_of(model)
        scaler = scaler_of(fleet)
        scaler.bound(2, 2)
        until(lambda: len(ready(fleet)) == 2, "a second has joined", JOINING)
        fleet.policy = RoundRobin()
        scaler.bound(1, 1)
        with asking(model) as rounds:
            until(lambda: len(ready(fleet)) == 1, "one is drained")
        assert all(found == wanted for found in rounds)
        until(lambda: len(fleet.members) == 1, "it has left")


def test_an_engine_divides_its_layers_among_nodes(cluster: Any, path: Path, wanted: list[list[int]]) -> None:
    """Two stages on two nodes: a placement group with a bundle on each."""
    with on(cluster, path, ray_stages=2) as model:
        fleet = fleet_of(model)
        assert answers(model, 4) == wanted[:4]
        assert len(ready(fleet)) == 1


def test_the_head_is_lost_and_answers_go_on(cluster: Any, path: Path, wanted: list[list[int]]) -> None:
    with on(cluster, path, replicas=1) as model:
        assert answers(model, 4) == wanted[:4]
        cluster.head_node.kill_gcs_server()
        assert answers(model, 16) == wanted
        cluster.head_node.start_gcs_server()
        assert answers(model, 4) == wanted[:4]
