"""The launcher: a program between a server and a Ray cluster, which starts engines as actors and looks after
them.

It is a process of its own because Ray ends the process that is connected to it once its head has been away
for a while; the server is not to end with that. The server writes one JSON object a line to its standard
input: {"begin": an EngineOrder}, {"watch": one that another launcher began}, {"end": name}. The launcher
writes {"ready": ...} or {"error": text} first, then what becomes of each engine: {"engine": name, "is":
"pending", "starting", "running" or "gone", "why": text}. When its input ends, it ends all engines. Where it
is killed, they go on until another launcher watches them, or end by themselves (actors.py).

Invariant: an engine has one placement group, which is removed with it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

from satchel.errors import DeviceError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.ray.actors import EngineActor, StageActor, towards
from satchel.runtime.ray.orders import AUTO, LOCAL, MISSING, NAMESPACE, EngineOrder

LOOK = 0.5  # seconds between two looks at the engines
HEALTH = 4  # looks between two questions for an engine's health
PATIENCE = 10.0  # seconds that an actor has to answer
MISSED = 3  # questions in a row without an answer after which it is ended
# A cluster that is begun here is this host's alone. Ray puts an address of the network in place of 127.0.0.1.
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
PENDING, STARTING, RUNNING, GONE = "pending", "starting", "running", "gone"


class ClusterEngine:
    """An engine on the cluster. It has a placement group, then actors for its further stages, then its own.
    begun: another launcher has begun it.
    """

    def __init__(self, fleet: str, order: EngineOrder, begun: bool = False) -> None:
        import ray
        from ray import util as groups

        self.order, self.state, self.why = order, PENDING, ""
        self._ray, self._groups = ray, groups
        self._prefix = f"{fleet}/{order.name}"
        self._place, self._placed = None, None
        self._stages: list[Any] = []
        self._devices: list[Any] = []  # names of theirs, awaited
        self._actor: Any = None
        self._where: Any = None  # what the actor says of itself, awaited
        self._asked: Any = None  # its health, awaited
        self._looks = self._missed = 0
        self.told: dict[str, Any] = {}
        if begun:
            self._find()
        else:
            self._place = groups.placement_group(
                order.bundles, strategy=order.strategy, name=self._prefix, lifetime="detached"
            )
            self._placed = self._place.ready()

    def _find(self) -> None:
        """Its placement group and actors; it is gone where they are."""
        names = ["engine", *(f"stage{index}" for index in range(1, self.order.stages))]
        try:
            self._place = self._groups.get_placement_group(self._prefix)
            self._actor, *self._stages = (
                self._ray.get_actor(f"{self._prefix}/{name}", namespace=NAMESPACE) for name in names
            )
            self.state = RUNNING
        except ValueError as error:
            self.end(f"was not found again: {str(error).strip().splitlines()[0]}")

    def look(self) -> None:
        """Goes one step on, if it can. Sets `state` and `why`."""
        try:
            if self.state == PENDING:
                self._place_actors()
            elif self.state == STARTING:
                self._start()
            elif self.state == RUNNING:
                self._ask()
        except (self._ray.exceptions.RayError, ValueError) as error:
            self.end(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")

    def _done(self, *waited: Any) -> bool:
        return len(self._ray.wait(list(waited), num_returns=len(waited), timeout=0)[1]) == 0

    def _place_actors(self) -> None:
        if not self._done(self._placed):
            return
        self._ray.get(self._placed)
        self._stages = [
            self._actor_of(StageActor, index, f"stage{index}").remote(self.order.as_json())
            for index in range(1, self.order.stages)
        ]
        self._devices = [stage.devices.remote() for stage in self._stages]
        self.state = STARTING

    def _start(self) -> None:
        if self._actor is None:
            if self._devices and not self._done(*self._devices):
                return
            stages = self._ray.get(self._devices)
            self._actor = self._actor_of(EngineActor, 0, "engine").remote(self.order.as_json(), stages)
            self._where = self._actor.where.remote()
        if self._done(self._where):
            self.told, self.state = self._ray.get(self._where), RUNNING

    def _actor_of(self, kind: type, bundle: int, name: str) -> Any:
        """An actor class on one of the bundles."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._place, placement_group_bundle_index=bundle)
        return self._ray.remote(kind).options(
            name=f"{self._prefix}/{name}",
            lifetime="detached",
            namespace=NAMESPACE,
            num_cpus=self.order.cpus,
            num_gpus=self.order.gpus,
            max_restarts=0,
            max_concurrency=8,
            scheduling_strategy=strategy,
        )

    def _ask(self) -> None:
        """Asks for the health of its actors, and ends it where one is ill or does not answer."""
        self._looks += 1
        if self._asked is None and self._looks % HEALTH == 0:
            self._asked = [actor.health.remote() for actor in (self._actor, *self._stages)]
            self._missed = 0
        if self._asked is None:
            return
        ready, late = self._ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
        if ill := next((told for told in self._ray.get(ready) if told), ""):
            self.end(ill)
        elif not late:
            self._asked, self._missed = None, 0
        else:
            self._missed += 1
            if self._missed * LOOK >= PATIENCE * MISSED:
                self.end(f"did not answer for {self._missed * LOOK:.0f} s")

    def end(self, why: str) -> None:
        """Ends its actors and frees what they reserved."""
        if self.state == GONE:
            return
        self.state, self.why = GONE, why
        for actor in (self._actor, *self._stages):
            if actor is not None:
                self._ray.kill(actor)
        if self._place is not None:
            self._groups.remove_placement_group(self._place)


class Launcher:
    """The engines of one fleet."""

    def __init__(self, fleet: str) -> None:
        self.fleet, self.engines = fleet, dict[str, ClusterEngine]()
        self._told: dict[str, tuple[str, str]] = {}

    def do(self, message: dict[str, Any]) -> None:
        """Does what the server says."""
        if given := message.get("begin") or message.get("watch"):
            order = EngineOrder(**given)
            self.engines[order.name] = ClusterEngine(self.fleet, order, begun="watch" in message)
            return
        if engine := self.engines.get(str(message.get("end"))):
            engine.end("was ended")

    def look(self) -> Iterator[dict[str, Any]]:
        """What became of the engines since the last look."""
        for name, engine in list(self.engines.items()):
            engine.look()
            if self._told.get(name) != (engine.state, engine.why):
                self._told[name] = engine.state, engine.why
                yield {"engine": name, "is": engine.state, "why": engine.why, **engine.told}
            if engine.state == GONE:
                del self.engines[name], self._told[name]

    def end(self) -> None:
        for engine in self.engines.values():
            engine.end("the server ended")


def connect(address: str) -> Any:
    """The cluster at an address. Raises DeviceError where it cannot be reached."""
    try:
        import ray
    except ImportError:
        raise DeviceError(MISSING) from None
    quiet = {"log_to_driver": False, "namespace": NAMESPACE, "logging_level": "ERROR"}
    try:
        if address == LOCAL:
            ray.init(include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # of many kinds
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "start one: ray start --head" if address == AUTO else "is it HOST:PORT of a Ray head?"
        raise DeviceError(f"no Ray cluster at {address}: {why}; {hint}") from None
    return ray


def main() -> None:
    """Serves the server that started it. Its first argument is {"address", "fleet"}."""
    given = json.loads(sys.argv[-1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints to the standard output

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    try:
        ray = connect(str(given["address"]))
    except SatchelError as error:
        tell({"error": str(error)})
        return
    tell({"ready": ray.cluster_resources(), "host": towards(ray.get_runtime_context().gcs_address)})
    inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            inbox.put(json.loads(line))
        inbox.put(None)

    begin(threading.Thread(target=read, name="satchel-orders", daemon=True))
    launcher = Launcher(str(given["fleet"]))
    serve(launcher, inbox, tell)
    launcher.end()
    ray.shutdown()


def serve(launcher: Launcher, inbox: SimpleQueue[dict[str, Any] | None], tell: Any) -> None:
    """Does what comes, and looks at the engines between, until the input ends."""
    while True:
        try:
            while True:
                message = inbox.get(timeout=LOOK)
                if message is None:
                    return
                launcher.do(message)
        except Empty:
            pass
        for told in launcher.look():
            tell(told)
