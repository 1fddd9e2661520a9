"""Keys and values of a prompt that go between engines of different hosts, in frames of their links."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import net_hosts
import numpy as np
import pytest
from net_hosts import LOOPBACK, PATIENT
from tiny_file import write_model
from waiting import SECONDS, until

from satchel import Model, Options
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.recovering import RECONNECT_NAME
from satchel.runtime.fleet import move as moving
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.move import Move
from satchel.runtime.fleet.router import Ask, LeastTime, Route, View
from satchel.runtime.net.address import Address
from satchel.runtime.net.engine_server import EngineServer, Offered
from satchel.runtime.net.key import read_key
from satchel.runtime.net.server import Lent
from satchel.runtime.sampling import Sampling

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the link polls sockets")
WARM = Sampling(temperature=1.5, top_k=0, seed=11)


class PromptsAtFirst(LeastTime):
    """Member 0 computes every prompt, and the others answer."""

    def choose(self, ask: Ask, views: Mapping[str, View]) -> Route:
        others = {name: view for name, view in views.items() if name != "0"}
        route = super().choose(ask, others or views)
        return route._replace(prefill="0") if "0" in views and others else route


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moves") / "tiny.gguf", qwen3__context_length=512)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_hosts.key_in(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def hosts(key: Path) -> Iterator[tuple[EngineServer, EngineServer]]:
    offered = Offered(Lent((), ()), Options(device="cpu", threads=1), 1)
    known = read_key(key)
    with (
        EngineServer(Address(LOOPBACK, 0), known, offered, PATIENT) as first,
        EngineServer(Address(LOOPBACK, 0), known, offered, PATIENT) as second,
    ):
        yield first, second


def answers(model: Model) -> list[list[int]]:
    rng = np.random.default_rng(5)
    asked = [[int(t) for t in rng.integers(100, 250, 100)] for _ in range(4)]

    def one(ids: list[int]) -> list[int]:
        reply = model.generate(ids, max_tokens=24, sampling=WARM, ignore_eos=True)
        reply.read()
        return reply.ids

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, asked))


def fleet_of(model: Model) -> Fleet:
    assert isinstance(model, WorkerModel) and model.fleet is not None
    model.fleet.policy = PromptsAtFirst()
    return model.fleet


def test_blocks_go_from_host_to_host_and_a_lost_host_loses_no_token(
    path: Path, key: Path, hosts: tuple[EngineServer, EngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECONNECT_NAME, "0.01")
    monkeypatch.setattr(moving, "PATIENCE", SECONDS)  # where this machine is busy
    with Model.load(path, slots=4, threads=1) as here:
        wanted = answers(here)
    names = ",".join(f"{LOOPBACK}:{host.port}" for host in hosts)
    with Model.load(path, slots=4, engine_host=names, device_key=str(key), pools="1+1") as model:
        fleet = fleet_of(model)
        assert answers(model) == wanted
        until(lambda: fleet.meter.moves == 4, "all have moved")
        assert (fleet.meter.given_up, fleet.meter.tokens) == (0, 4 * 96)
        assert fleet.member_stats()["1"].cached_tokens == 4 * 96

        ask, closed = Move._ask, threading.Event()

        def lost(move: Move, member: object, most: int, called: str, *args: object) -> object:
            if called == "import_kv" and not closed.is_set():
                closed.set()
                hosts[1].close()
            return ask(move, member, most, called, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Move, "_ask", lost)
        rng = np.random.default_rng(6)
        ids = [int(t) for t in rng.integers(100, 250, 100)]
        reply = model.generate(ids, max_tokens=24, sampling=WARM, ignore_eos=True)
        reply.read()
        assert closed.is_set()
    with Model.load(path, slots=4, threads=1) as here:
        again = here.generate(ids, max_tokens=24, sampling=WARM, ignore_eos=True)
        again.read()
        assert again.ids == reply.ids
