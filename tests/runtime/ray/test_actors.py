"""What Ray asks of an engine: its health. One that stands still is found ill and begun anew. No cluster."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import net_hosts
import pytest
from net_hosts import LOOPBACK
from serving_process import children
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.runtime.net.key import read_key
from satchel.runtime.ray.actors import EngineActor
from satchel.runtime.ray.launcher import GONE, HEALTH, LOOK, MISSED, PATIENCE, RUNNING, ClusterEngine
from satchel.runtime.ray.orders import EngineOrder

NOBODY = f"{LOOPBACK}:9"  # no roster listens there


class Actor(EngineActor):
    """An engine's actor that does not end its process when no roster answers."""

    def _watch(self) -> None:
        pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_engine_that_stands_still_is_ill_once_it_has_done_so_for_long_enough(tmp_path: Path) -> None:
    key, path = net_hosts.key_in(tmp_path), write_model(tmp_path / "tiny.gguf")
    order = EngineOrder("one", NOBODY, read_key(key).decode(), stalled=1e9)
    actor = Actor(order.as_json(), [])
    try:
        assert actor.health() == ""
        before = set(children(os.getpid()))
        name = f"{LOOPBACK}:{actor.where()['port']}"
        with Model.load(path, engine_host=name, device_key=str(key), slots=2) as model:
            assert model.generate([1, 2, 3], max_tokens=4).read() is not None
            assert actor.health() == ""
            (worker,) = set(children(os.getpid())) - before
            os.kill(worker, signal.SIGSTOP)
            try:
                until(lambda: actor._server.trouble, "it is seen to stand still")
                assert actor.health() == "", "it may be that it goes on"
                actor._order = replace(order, stalled=0.0)
                assert "no sign of life" in actor.health()
            finally:
                os.kill(worker, signal.SIGCONT)
            until(lambda: actor.health() == "", "it goes on, and is well again")
    finally:
        actor._member.close()
        actor._server.close()


class FakeRay(ModuleType):
    """Ray for one engine that runs. said: what its actor says of its health; None: it does not answer."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.said: str | None = ""
        self.killed: list[Any] = []
        self.removed: list[Any] = []
        self.util = ModuleType("ray.util")
        self.util.get_placement_group = lambda name: name  # type: ignore[attr-defined]
        self.util.remove_placement_group = self.removed.append  # type: ignore[attr-defined]
        self.exceptions = SimpleNamespace(RayError=OSError)
        self.kill = self.killed.append
        self.actor = SimpleNamespace(health=SimpleNamespace(remote=lambda: "asked"))

    def get_actor(self, name: str, namespace: str) -> Any:
        return self.actor

    def wait(self, asked: Sequence[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return (list(asked), []) if self.said is not None else ([], list(asked))

    def get(self, ready: Sequence[Any]) -> list[Any]:
        return [self.said for _ in ready]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray.util", made.util)
    yield made


def test_an_engine_that_is_ill_or_does_not_answer_is_ended_with_what_it_reserved(ray: FakeRay) -> None:
    order = EngineOrder("one", NOBODY, "key")
    for said, looks, why in (
        ("stands still", HEALTH, "stands still"),
        (None, HEALTH + int(MISSED * PATIENCE / LOOK), f"did not answer for {MISSED * PATIENCE:.0f} s"),
    ):
        ray.said = ""
        engine = ClusterEngine("fleet", order, begun=True)
        for _ in range(20 * HEALTH):
            engine.look()
        assert engine.state == RUNNING
        ray.said = said
        while engine.state == RUNNING and looks:
            engine.look()
            looks -= 1
        assert (engine.state, engine.why) == (GONE, why)
    assert ray.killed == [ray.actor] * 2 and ray.removed == ["fleet/one"] * 2
