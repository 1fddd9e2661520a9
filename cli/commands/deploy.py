"""`satchel deploy FILE`: a fleet on a Ray cluster, its server with it, as a file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from satchel.cli.console import note
from satchel.cli.groups import wrong
from satchel.errors import DeviceError, RequestError

if TYPE_CHECKING:
    from satchel.cli.deploying.plan import Deployment

UPGRADES = {  # by [upgrade] in_place
    "auto": "beside the version that serves; engine by engine in its places where the cluster has no room",
    "always": "engine by engine, in the places of the version that serves",
    "never": "beside the version that serves",
}
LATEST = 20  # lines of the server's log that are shown where it failed


def deploy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fleet's file; see docs/ray.md.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deployed, and ask no cluster.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Print what is deployed, as JSON.")] = False,
    down: Annotated[bool, typer.Option("--down", help="End the fleet once its requests are done.")] = False,
    host: Annotated[
        str, typer.Option("--host", help="Address on which the server listens, on this node.")
    ] = "127.0.0.1",
) -> None:
    """Deploy a fleet on a Ray cluster: a server, and engines for its models.

    A model whose table or file changed is replaced while requests go on: the new version loads beside the old
    one, or engine by engine in its places, and gets a share of the requests; if it fails it is taken back.

    Examples:
        satchel deploy fleet.toml --dry-run
        satchel deploy fleet.toml
        satchel deploy fleet.toml --status
        satchel deploy fleet.toml --down
    """
    if sum((dry_run, status, down)) > 1:
        raise wrong("--dry-run", "expected one of --dry-run, --status and --down")
    try:
        from satchel.cli.deploying.plan import read_plan
    except ImportError as error:
        raise RequestError(f"{error.name} is missing: pip install 'satchel[server,ray]'") from None
    plan = read_plan(file)
    if dry_run:
        print(json.dumps(shown(plan), indent=2))
        return
    front = Front(plan)
    if status:
        print(json.dumps(front.status(), indent=2))
    elif down:
        note(front.down())
    else:
        for line in front.deploy(host):
            note(line)
        print(front.status()["address"])


def shown(plan: Deployment) -> dict[str, Any]:
    """What would be deployed."""
    models = {
        model.version: {
            "path": model.table["path"],
            "replicas": model.replicas,
            "each": {"bundles": model.order.bundles, "strategy": model.order.strategy},
            "devices": model.order.devices,
            "upgrade": UPGRADES[plan.upgrade.in_place],
        }
        for model in plan.models.values()
    }
    return {"fleet": plan.name, "ray": plan.ray, "front": dict(plan.front), "models": models}


class Front:
    """The fleet's front on its cluster. Raises DeviceError where the cluster cannot be reached."""

    def __init__(self, plan: Deployment) -> None:
        from satchel.runtime.ray.launcher import connect

        self._plan, self._ray = plan, connect(plan.ray)

    @property
    def _name(self) -> str:
        return f"satchel-front/{self._plan.name}"

    def _actor(self) -> Any:
        """The front's actor. RequestError where there is none."""
        from satchel.runtime.ray.orders import NAMESPACE

        try:
            return self._ray.get_actor(self._name, namespace=NAMESPACE)
        except ValueError:
            raise RequestError(f"the fleet {self._plan.name} is not deployed on {self._plan.ray}") from None

    def _done(self, reference: Any) -> Any:
        """What the actor answers, its errors as ours."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise DeviceError(str(error.cause)) from None
        except self._ray.exceptions.RayError as error:
            raise DeviceError(f"the fleet {self._plan.name}: {type(error).__name__}: {error}") from None

    def deploy(self, host: str) -> list[str]:
        """Deploys the plan, beginning the front where there is none. Returns what was done."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from satchel.cli.deploying.front import FrontActor
        from satchel.runtime.ray.orders import NAMESPACE

        plan, node = self._plan, self._ray.get_runtime_context().get_node_id()
        actor = (
            self._ray.remote(FrontActor)
            .options(
                name=self._name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
                num_cpus=0, max_concurrency=8, max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(host)
        )  # fmt: skip
        given = {
            "front": dict(plan.front),
            "upgrade": plan.upgrade.model_dump(),
            "versions": plan.versions,
            "tables": plan.tables(),
            "orders": plan.orders(),
        }
        try:
            done: list[str] = self._done(actor.deploy.remote(given))
        except DeviceError:
            for line in self._done(actor.log.remote())[-LATEST:]:
                note(line)
            if not self._done(actor.status.remote())["running"]:
                self._ray.kill(actor)
            raise
        return done

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._done(self._actor().status.remote())
        return found

    def down(self) -> str:
        actor = self._actor()
        self._done(actor.stop.remote())
        self._ray.kill(actor)
        return f"the fleet {self._plan.name} has ended"
