"""A fleet's file: what `satchel deploy` makes of it.

    [fleet]
    name = "chat"
    ray = "auto"                  # the cluster: that of this host, or HOST:PORT of its head
    [front]                       # options of `satchel serve` by their long names
    port = 8080
    [upgrade]
    share = 0.1                   # of the requests, that a new version gets once it was found as good
    seconds = 60                  # for so long
    in_place = "auto"             # engine by engine where there is no room for both versions
    [models.chat]                 # a path and load options, as in the server's configuration file
    path = "/models/chat-q4_k_m.gguf"
    replicas = "1..4"
    ray_gpus = 2

Invariant: a version of a model is its name and a digest of its table and its file, so that it is deployed
anew exactly when one of these has changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.placement.options import replica_range
from satchel.runtime.ray.orders import LOCAL, EngineOrder, check_order, order_of
from satchel.server.catalog import ModelTable, read_table

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
REFUSED = ("host", "engine-listen")  # of the front: the deployment sets them itself, or they are a model's


class FleetTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    ray: str = "auto"


class UpgradeTable(BaseModel):
    """How a new version of a model replaces the old one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # By what it is judged before it answers requests: how its next tokens diverge from those of the version
    # that serves (runtime/fleet/comparison.py), or by nothing but failures once it does.
    judge: Literal["divergence", "errors"] = "divergence"
    judge_seconds: float = Field(default=3600.0, gt=0)  # within which there must be a verdict
    shadow_share: float = Field(default=1.0, gt=0, le=1)  # of the requests, that both versions compute
    most_divergence: float = Field(default=0.1, gt=0)  # nats a token
    least_agreement: float = Field(default=0.9, gt=0, le=1)  # share of tokens
    least_compared: int = Field(default=32, ge=8, le=100_000)  # requests before the first look
    most_compared: int = Field(default=4096, ge=8, le=1_000_000)
    webhook: str = ""  # a URL that gets each verdict as JSON
    share: float = Field(default=0.1, gt=0, lt=1)  # of the requests
    seconds: float = Field(default=60.0, ge=0)  # for which it has that share
    # It is taken back once more than this share of its last `window` requests has failed.
    errors: float = Field(default=0.2, gt=0, le=1)
    window: int = Field(default=20, ge=1, le=10_000)
    load_seconds: float = Field(default=900.0, gt=0)  # within which it must have loaded
    # Whether it takes the places of the old one's engines, one after another (rolling.py), or loads beside
    # them. auto: the former where the cluster has no room for its engines within `room_seconds`.
    in_place: Literal["auto", "always", "never"] = "auto"
    room_seconds: float = Field(default=10.0, ge=0)


class FileTables(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    fleet: FleetTable
    front: dict[str, Any] = Field(default_factory=dict)
    upgrade: UpgradeTable = Field(default_factory=UpgradeTable)
    models: dict[str, dict[str, Any]] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model as it is deployed. table: of [models.VERSION]. order: what each of its engines reserves."""

    name: str
    version: str
    table: Mapping[str, Any]
    order: EngineOrder
    replicas: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a fleet's file says."""

    name: str
    ray: str
    front: Mapping[str, Any]
    upgrade: UpgradeTable
    models: Mapping[str, ModelPlan]

    @property
    def versions(self) -> dict[str, str]:
        """The version of each model."""
        return {name: model.version for name, model in self.models.items()}

    def orders(self) -> dict[str, dict[str, Any]]:
        """By version: what an engine reserves, and how many begin at once."""
        return {
            model.version: {"order": model.order.as_json(), "count": replica_range(model.replicas)[0]}
            for model in self.models.values()
        }

    def tables(self) -> dict[str, dict[str, Any]]:
        """[models.VERSION] by version."""
        return {model.version: dict(model.table) for model in self.models.values()}


def config_text(front: Mapping[str, Any], models: Mapping[str, Any], aliases: Mapping[str, Any]) -> str:
    """The server's configuration file."""
    return tomli_w.dumps({"serve": dict(front), "models": dict(models), "aliases": dict(aliases)})


def read_plan(path: Path) -> Deployment:
    """What a fleet's file says. Raises RequestError for what cannot be deployed."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}: expected a fleet's file") from None
    except ValueError as error:
        raise RequestError(f"{path}: no TOML: {error}") from None
    tables = read_table(FileTables, given, f"{path}:")
    if not NAME.fullmatch(tables.fleet.name):
        raise RequestError(
            f"{path}: [fleet] name: expected letters, digits, dots and hyphens, got {tables.fleet.name!r:.70}"
        )
    if tables.fleet.ray == LOCAL:
        raise RequestError(
            f"{path}: [fleet] ray: a local cluster ends with the command that begins it: `ray start --head`, "
            'then ray = "auto"'
        )
    if wrong := next((name for name in REFUSED if name in tables.front), ""):
        raise RequestError(f"{path}: [front] {wrong}: the deployment sets it: leave it out")
    if "replicas" in tables.front:
        raise RequestError(
            f"{path}: [front] replicas: expected none, because a fleet has one front; engines are a model's:"
            " replicas of [models.NAME]"
        )
    models = {name: _model(path, name, table, tables.fleet.ray) for name, table in tables.models.items()}
    return Deployment(tables.fleet.name, tables.fleet.ray, tables.front, tables.upgrade, models)


def _model(where: Path, name: str, table: Mapping[str, Any], ray: str) -> ModelPlan:
    here = f"{where}: [models.{name}]"
    if not NAME.fullmatch(name):
        raise RequestError(f"{here}: expected a name of letters, digits, dots and hyphens")
    read = read_table(ModelTable, dict(table), here)
    try:
        options = read.options(Options(ray=ray, worker="process", slots=8))
        order = order_of(options, name, "", b"")
        check_order(order)
    except RequestError as error:
        raise RequestError(f"{here} {error}") from None
    whole = {**table, "ray": ray, "path": str((where.parent / read.path).resolve()), "preload": False}
    text = json.dumps([whole, _stamp(Path(whole["path"]))], sort_keys=True, default=str)
    version = f"{name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return ModelPlan(name, version, whole, order, str(options.replicas))


def _stamp(path: Path) -> list[int]:
    """Size and time of change of the file, which a new version of it has not both the same; [] where it is
    on the nodes alone.
    """
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]
