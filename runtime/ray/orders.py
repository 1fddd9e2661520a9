"""What a server asks of a Ray cluster for one engine, as plain values that can be sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from satchel.errors import RequestError
from satchel.runtime.api.options import Options

MISSING = "ray is missing: pip install 'satchel[ray]'"
NAMESPACE = "satchel"  # of actors and placement groups
LOCAL, AUTO = "local", "auto"  # addresses: a cluster that is begun here, and that of this host
GPU = "cuda"


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """name: of the member. at: HOST:PORT of the roster. key: that of the fleet. cpus, gpus: of each stage.
    device: of each stage; "": as cpus and gpus say. orphan: seconds without a roster after which it ends.
    """

    name: str
    at: str
    key: str
    cpus: float = 1.0
    gpus: float = 0.0
    stages: int = 1
    device: str = ""
    sandbox: bool = True
    stalled: float = 60.0  # seconds without progress after which it is ended
    drain: float = 60.0  # seconds that its requests have once it is to end
    orphan: float = 120.0

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What it reserves: one bundle for each stage, of which each lies on one node."""
        one = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
        return [one for _ in range(self.stages)]

    @property
    def strategy(self) -> str:
        """How Ray places the bundles: the GPUs of a group on one node, stages on a node each."""
        return "STRICT_SPREAD" if self.stages > 1 else "STRICT_PACK"

    @property
    def devices(self) -> str:
        """Names of a stage's devices."""
        if self.device:
            return self.device
        return "+".join(f"{GPU}:{i}" for i in range(max(1, round(self.gpus)))) if self.gpus else "cpu"

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def order_of(options: Options, name: str, at: str, key: bytes) -> EngineOrder:
    """The order for an engine under these load options."""
    return EngineOrder(
        name=name,
        at=at,
        key=key.decode(),
        cpus=options.ray_cpus,
        gpus=options.ray_gpus,
        stages=options.ray_stages,
        device="" if options.device == AUTO else options.device,
        sandbox=options.sandbox,
        stalled=options.worker_timeout or 60.0,
    )


def check_order(order: EngineOrder) -> None:
    """Raises RequestError for what no engine can be made of."""
    if not order.cpus and not order.gpus:
        raise RequestError("ray_cpus and ray_gpus are 0: an engine needs something to compute with")
    if order.gpus > 1 and order.gpus != round(order.gpus):
        raise RequestError(f"ray_gpus is {order.gpus:g}: expected a whole number above 1, or a part of one")
