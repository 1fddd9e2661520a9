"""The front of a deployed fleet: an actor of a Ray cluster that keeps `satchel serve` on its node, and
replaces versions of models while requests go on.

Requests go to that server directly. The actor writes its configuration file, tells it to read it again, and
asks it over loopback.

Invariant: at every moment each model has a version that is loaded and gets requests. A new one gets copies of
them once it has loaded, some of them once it was found as good by those, all only after it had a share of
them for a while, and none once it failed; the old one ends with its last request.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from satchel.cli.deploying.plan import UpgradeTable, config_text
from satchel.cli.deploying.rolling import Rolling
from satchel.errors import DeviceError, SatchelError
from satchel.errors.threads import begin
from satchel.runtime.children import Child, interpreter, start
from satchel.runtime.fleet.comparison import PROMOTE, TAKE_BACK
from satchel.runtime.ray.orders import EngineOrder
from satchel.runtime.ray.room import has_room

Room = Callable[[Mapping[str, Any], float], bool]
LINES = 200  # of the server's log that are kept
PAUSE = 0.5  # seconds between two questions
STARTING = 120.0  # seconds that a server has until it listens
ANSWER = 30.0  # seconds for an answer, besides loads
COMPARED = ("shadow_share", "most_divergence", "least_agreement", "least_compared", "most_compared")


def cluster_has_room(order: Mapping[str, Any], seconds: float) -> bool:
    """Whether this actor's cluster has room for a version, as Deployment.orders() tells of it."""
    return has_room(EngineOrder(**order["order"]), order["count"], seconds)


class FrontActor:
    """host: the address on which the server listens. room: whether there is room for the engines of a version
    beside those that run, or comes within some seconds.
    """

    def __init__(self, host: str, room: Room = cluster_has_room) -> None:
        self._room = room
        self._host, self._folder = host, TemporaryDirectory(prefix="satchel-front-")
        self._config = Path(self._folder.name) / "config.toml"
        self._server: Child | None = None
        self._lines: deque[str] = deque(maxlen=LINES)
        self._listening = threading.Event()
        self._address, self._key = "", ""
        self._front: dict[str, Any] = {}
        self._tables: dict[str, dict[str, Any]] = {}  # [models.VERSION] of what is served
        self._weights: dict[str, dict[str, float]] = {}  # [aliases.NAME] versions
        self._shadows: dict[str, str] = {}  # of a model, the version that gets copies of its requests
        self._upgrade = UpgradeTable()
        self._doing, self._events = "", deque[str](maxlen=LINES)
        self._lock = threading.Lock()

    # Called through Ray

    def deploy(self, given: dict[str, Any]) -> list[str]:
        """Serves what a file says: the first time all of it, later what changed, one model after another.
        Returns what was done. Raises DeviceError for a version that was taken back; the others stay.
        given: front, upgrade, versions, tables, orders, as Deployment has them.
        """
        if not self._lock.acquire(blocking=False):
            raise DeviceError(f"another deployment is under way: {self._doing}")
        try:
            done = self._events
            done.clear()
            self._upgrade = UpgradeTable.model_validate(given["upgrade"])
            first = self._server is None or self._server.poll() is not None
            if first:  # nobody was served before: each version has all requests at once
                self._tables = {version: given["tables"][version] for version in given["versions"].values()}
                self._weights = {name: {version: 1.0} for name, version in given["versions"].items()}
                self._begin_server(given["front"])
            elif dict(given["front"]) != self._front:
                raise DeviceError("[front] changed: `satchel deploy --down`, then deploy it anew")
            for name in [name for name in self._weights if name not in given["versions"]]:
                self._remove(name)
            failed = []
            for name, version in given["versions"].items():
                try:
                    if first:
                        self._load(version)
                    else:
                        self._replace(name, version, given["tables"][version], given["orders"].get(version))
                except SatchelError as error:
                    failed.append(str(error))
            if failed:
                raise DeviceError("; ".join(failed))
            return list(done)
        finally:
            self._doing = ""
            self._lock.release()

    def status(self) -> dict[str, Any]:
        """The server, its models and their engines; deploy() may be at work in another thread meanwhile."""
        running = self._server is not None and self._server.poll() is None
        found: dict[str, Any] = {
            "address": self._address,
            "running": running,
            "doing": self._doing,
            "versions": dict(self._weights),
            "done": list(self._events),
            "fleets": {},
        }
        for version in list(self._tables) if running else ():
            try:
                told = self._ask(f"/fleet?model={version}")
            except SatchelError as error:
                told = {"error": str(error)}
            found["fleets"][version] = told
        return found

    def log(self) -> list[str]:
        """The last lines of the server's log."""
        return list(self._lines)

    def stop(self) -> None:
        """Ends the server once its requests are done, as far as its --drain lets them, and its engines."""
        server = self._server
        if server is not None and server.poll() is None:
            server.send_signal(signal.SIGTERM)
            server.wait()
        self._folder.cleanup()

    # The server

    def _begin_server(self, front: Mapping[str, Any]) -> None:
        self._front = dict(front)
        self._key = admin_key(self._front)
        self._listening.clear()
        self._write()
        command = [*interpreter(), "-m", "satchel", "--config", str(self._config), "serve"]
        self._server = start(
            command, isolated=False, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=self._folder.name
        )
        begin(threading.Thread(target=self._read, args=(self._server,), name="satchel-log", daemon=True))
        if not self._listening.wait(STARTING) or not self._address:
            self._server.kill()
            self._server.wait()
            raise DeviceError(f"the server did not start: {' '.join(list(self._lines)[-3:])}")
        self._events.append(f"the server listens on {self._address}")

    def _read(self, server: Child) -> None:
        assert server.stderr is not None
        for line in server.stderr:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            if "Satchel listens on http" in text:
                self._address = text.partition("listens on ")[2].split()[0]
                self._listening.set()
        self._listening.set()

    def _write(self) -> None:
        upgrade = self._upgrade
        aliases: dict[str, dict[str, Any]] = {
            name: {"versions": versions, "rollback_errors": upgrade.errors, "window": upgrade.window}
            for name, versions in self._weights.items()
        }
        for alias in aliases.values() if upgrade.webhook else ():
            alias["webhook"] = upgrade.webhook
        for name, version in self._shadows.items():
            aliases[name]["shadow"] = version
            aliases[name] |= {key: getattr(upgrade, key) for key in COMPARED}
        text = config_text({**self._front, "host": self._host}, self._tables, aliases)
        tomllib.loads(text)
        beside = self._config.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._config)

    def _serve(self) -> None:
        """The server serves what is written."""
        self._write()
        self._ask("/config/reload", {})

    def _ask(self, path: str, body: Any = None, seconds: float = ANSWER) -> Any:
        """What the server answers. Raises DeviceError for a refusal."""
        headers = {"content-type": "application/json"}
        headers |= {"authorization": f"Bearer {self._key}"} if self._key else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told = error.read(2000).decode(errors="replace")
            raise DeviceError(f"{path}: {told}") from None
        except OSError as error:
            raise DeviceError(f"{path}: {error}") from None

    # Versions

    def _replace(
        self, name: str, version: str, table: dict[str, Any], order: Mapping[str, Any] | None
    ) -> None:
        """Serves a version of a model in place of the one before, by steps. Takes it back if it fails."""
        before = self._weights.get(name)
        if before is not None and set(before) == {version}:
            return
        tables, rolling = dict(self._tables), None
        try:
            rolling = self._rolling(before, table, order)
            self._tables[version] = {**table, "replicas": rolling.replicas} if rolling else table
            self._weights[name] = {**before, version: 0.0} if before else {version: 1.0}
            self._serve()
            if rolling:
                self._doing = f"{version} gets the place of one of {rolling.engines} engines"
                self._events.append(self._doing)
                rolling.make_room()
            self._load(version)
            if rolling:
                rolling.begin(version)
            if before and self._upgrade.judge == "divergence":
                self._compare(name, version)
            if before:
                self._try(name, version, before)
            if rolling:
                self._roll(name, version, rolling)
        except SatchelError as error:
            self._shadows.pop(name, None)
            self._events.append(f"{version} was taken back: {error}")
            self._tables = tables
            if before:
                self._weights[name] = before
            else:
                self._weights.pop(name, None)
            self._serve()
            if rolling:
                self._give_back(rolling)
            raise DeviceError(f"{version} was taken back: {error}") from None
        self._weights[name] = {version: 1.0}
        for old in before or ():
            self._tables.pop(old, None)
        self._serve()
        on = f", on {rolling.finish()} engines" if rolling else ""
        self._events.append(f"{version} has all requests{on}")

    def _rolling(
        self,
        before: Mapping[str, float] | None,
        table: Mapping[str, Any],
        order: Mapping[str, Any] | None,
    ) -> Rolling | None:
        """How a version takes the places of the one before, where it does not load beside it."""
        way = self._upgrade.in_place
        if not before or way == "never" or order is None:
            return None
        if way == "auto" and self._room(order, self._upgrade.room_seconds):
            return None
        old, replicas = next(iter(before)), table.get("replicas", 1)
        try:
            rolling = Rolling(self._ask, old, replicas, self._upgrade.load_seconds)
        except DeviceError:
            if way == "always":
                raise
            return None
        # One engine has no other that answers meanwhile: the new version waits for room.
        return rolling if rolling.possible or way == "always" else None

    def _roll(self, name: str, version: str, rolling: Rolling) -> None:
        """Moves one engine after another to the new version, and requests with them. Raises DeviceError where
        it was rolled back meanwhile.
        """
        for weights in rolling.steps():
            self._weights[name] = dict(weights)
            self._doing = f"{version} has {weights[version]:.0%} of the requests"
            self._events.append(self._doing)
            self._serve()
            self._check_kept(name, version)
        self._check_kept(name, version)

    def _give_back(self, rolling: Rolling) -> None:
        """The version before has its engines again, as far as they come."""
        try:
            self._events.append(f"the version before has {rolling.undo()} engines again")
        except SatchelError as error:
            self._events.append(f"the version before has lost an engine: {error}")

    def _load(self, version: str) -> None:
        """Loads a version, for which its engines begin."""
        self._doing = f"{version} is loading"
        self._ask("/models/load", {"model": version}, self._upgrade.load_seconds)
        self._events.append(f"{version} has loaded")

    def _compare(self, name: str, version: str) -> None:
        """Has the new version compute copies of requests until it is judged. Raises DeviceError where it does
        not answer as the one that serves, or no verdict came in time.
        """
        end = time.monotonic() + self._upgrade.judge_seconds
        self._doing = f"{version} is compared with what serves"
        self._events.append(self._doing)
        self._shadows[name] = version
        self._serve()
        while True:
            alias, record = self._record(name, version)
            figures = self._figures(record)
            if record["rolled_back"]:
                why = next((c["reason"] for c in reversed(alias["changes"]) if "reason" in c), figures)
                raise DeviceError(f"it cannot be compared: {why}")
            if record.get("verdict") == TAKE_BACK:
                raise DeviceError(f"it does not answer as the version that serves: {figures}")
            if record.get("verdict") == PROMOTE:
                break
            if time.monotonic() >= end:
                raise DeviceError(
                    f"no verdict within {self._upgrade.judge_seconds:g} s: {figures}; it takes more requests,"
                    ' or judge = "errors" in [upgrade]'
                )
            time.sleep(PAUSE)
        del self._shadows[name]
        self._events.append(f"{version} was found as good: {figures}")

    def _record(self, name: str, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the server tells of an alias, and of one of its versions."""
        alias = next(a for a in self._ask("/aliases")["aliases"] if a["name"] == name)
        return alias, next(v for v in alias["versions"] if v["model"] == version)

    @staticmethod
    def _figures(record: Mapping[str, Any]) -> str:
        """How a version compares so far, in words."""
        compared = record.get("compared", 0)
        if "divergence" not in record:
            return f"{compared} requests were compared"
        (far, low, high), (near, least, most) = record["divergence"], record["agreement"]
        return (
            f"over {compared} requests its next tokens diverge by {far:.3g} nats ({low:.3g} to {high:.3g}),"
            f" {near:.1%} of the likeliest are the same ({least:.1%} to {most:.1%})"
        )

    def _try(self, name: str, version: str, before: Mapping[str, float]) -> None:
        """Gives the new version its share for a while. Raises DeviceError where it was rolled back."""
        share, end = self._upgrade.share, time.monotonic() + self._upgrade.seconds
        self._doing = f"{version} has {share:.0%} of the requests"
        self._events.append(self._doing)
        self._weights[name] = {**{old: (1 - share) * w for old, w in before.items()}, version: share}
        self._serve()
        while True:
            self._check_kept(name, version)
            if time.monotonic() >= end:
                return
            time.sleep(PAUSE)

    def _check_kept(self, name: str, version: str) -> None:
        """Raises DeviceError where the version was rolled back."""
        _, record = self._record(name, version)
        if record["rolled_back"]:
            raise DeviceError(f"{record['failed']} of its {record['requests']} requests failed")

    def _remove(self, name: str) -> None:
        for version in self._weights.pop(name):
            self._tables.pop(version, None)
        self._serve()
        self._events.append(f"{name} is served no more")


def admin_key(front: Mapping[str, Any]) -> str:
    """A key of the role admin, of the front's key file; "" where it has none."""
    path = front.get("api-key-file")
    if not path:
        return ""
    try:
        lines = [line.split() for line in Path(str(path)).read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DeviceError(f"[front] api-key-file {path}: {error.strerror} on the front's node") from None
    found = next((words[0] for words in lines if len(words) > 1 and words[1] == "admin"), "")
    if not found:
        raise DeviceError(f"[front] api-key-file {path}: expected a line KEY admin, found none")
    return found
