"""Engines that a Ray cluster starts for a fleet: the server's side of the launcher (launcher.py). Nothing
here imports Ray.

Invariant: what the launcher or the cluster does or fails to do costs the fleet no request: engines that are
members go on, and the launcher is begun anew where it ended.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from satchel.errors import DeviceError
from satchel.errors.threads import begin
from satchel.formats.resource import Resource
from satchel.runtime.api.options import Options
from satchel.runtime.children import Child, interpreter, module_path, start
from satchel.runtime.engine.watchdog import ticking
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.scaler import Seen
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address
from satchel.runtime.ray.orders import check_order, order_of

START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path'];"
    " from satchel.runtime.ray.launcher import main; main()"
)
LOOK = 0.5  # seconds between two looks at what is to end
AGAIN = 5.0  # seconds before a launcher that ended is begun anew
STATES = {"pending": "pending", "starting": "joining", "running": "joining"}  # as scaling calls them


class BegunEngine:
    """An engine on the cluster."""

    def __init__(self) -> None:
        self.state, self.why = "pending", ""
        self.ending = self.told_to_end = False


class RaySource(Resource):
    """host: the address of this host, as the cluster knows it. listen() comes before begin(). Raises
    DeviceError where the cluster cannot be reached.
    """

    def __init__(self, fleet: Fleet, options: Options, key: bytes) -> None:
        self._fleet, self._options, self._key = fleet, options, key
        check_order(order_of(options, "0", "", key))
        self._id, self._at = secrets.token_hex(4), ""
        self._engines: dict[str, BegunEngine] = {}
        self._lock, self._over, self._numbers = threading.Lock(), threading.Event(), count()
        self.host, self.trouble = "", ""
        self._process = self._launcher()

    def listen(self, at: Address) -> None:
        """Engines join at this roster from now on."""
        self._at = f"{at.host}:{at.port}"
        begin(threading.Thread(target=self._run, name="satchel-ray", daemon=True))
        ticking(self._end_leavers, self._over, "satchel-ray-ends", LOOK)

    def _order(self, name: str) -> dict[str, Any]:
        return order_of(self._options, name, self._at, self._key).as_json()

    def begin(self) -> None:
        with self._lock:
            name = f"ray-{self._id}-{next(self._numbers)}"
            self._engines[name] = BegunEngine()
            self._send({"begin": self._order(name)})

    def end(self, name: str) -> None:
        """Ends the engine as soon as it is no member any more."""
        with self._lock:
            if engine := self._engines.get(name):
                engine.ending = True

    def pending(self) -> Sequence[Seen]:
        with self._lock:
            return [
                Seen(name, STATES.get(engine.state, "failed"))
                for name, engine in self._engines.items()
                if name not in self._fleet.members and not engine.ending
            ]

    def close(self) -> None:
        """Ends all engines, and the launcher."""
        self._over.set()
        with self._lock:
            if self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()
        self._process.wait()

    def _launcher(self) -> Child:
        """A launcher that is connected to the cluster."""
        given = {"path": module_path(), "address": self._options.ray, "fleet": f"satchel-{self._id}"}
        pipe = subprocess.PIPE
        process = start(
            [*interpreter(), "-c", START, json.dumps(given)],
            isolated=True,
            stdin=pipe,
            stdout=pipe,
            start_new_session=True,  # Ctrl-C is the server's: it tells the launcher itself
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line else {}
        if "ready" not in told:
            process.kill()
            process.wait()
            raise DeviceError(told.get("error") or "the program that connects to Ray ended as it began")
        self.host = str(told["host"])
        LOG.info("connected to the Ray cluster at %s: %s", self._options.ray, told["ready"])
        return process

    def _send(self, message: dict[str, Any]) -> None:
        """Tells the launcher. The lock is held; if it ended, _run() notices."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _run(self) -> None:
        while not self._over.is_set():
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._hear(json.loads(line))
            if self._over.is_set():
                return
            self._process.wait()
            self._begin_anew()

    def _begin_anew(self) -> None:
        """After the launcher ended, with the head of the cluster perhaps: engines that are members go on."""
        LOG.error("the connection to the Ray cluster was lost: engines that serve go on, none is begun")
        self.trouble = "the connection to the Ray cluster was lost"
        with self._lock:
            self._engines = {n: e for n, e in self._engines.items() if n in self._fleet.members}
        while not self._over.wait(AGAIN):
            try:
                process = self._launcher()
            except DeviceError as error:
                self.trouble = str(error)
                continue
            with self._lock:
                self._process, self.trouble = process, ""
                for name in self._engines:
                    self._send({"watch": self._order(name)})
            return

    def _hear(self, message: dict[str, Any]) -> None:
        name, state = str(message.get("engine")), str(message.get("is"))
        why = str(message.get("why") or message.get("trouble") or "")
        LOG.info("Ray engine %s: %s%s", name, state, f": {why}" if why else "")
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                return
            engine.state, engine.why = state, why
            if state == "gone" and (engine.ending or name in self._fleet.members):
                del self._engines[name]
        if state == "gone":
            self._fleet.dismiss(name)
            if not engine.ending:
                self._fleet.give_up(DeviceError(f"engine {name} of the Ray cluster: {why}"))

    def _end_leavers(self) -> None:
        """Ends engines that are to end and have left the fleet; forgets those that failed and were seen."""
        with self._lock:
            for name, engine in list(self._engines.items()):
                if engine.ending and name not in self._fleet.members and not engine.told_to_end:
                    engine.told_to_end = True
                    self._send({"end": name})
                    if engine.state == "gone":
                        del self._engines[name]
