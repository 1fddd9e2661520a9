"""Runs the probe of the worker's sandbox for `satchel doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 60  # seconds until a probe is killed
REFUSALS = ("EACCES", "EPERM", "ENOSYS")  # errors of a sandboxed call, or of a system without the call
MODULE = "satchel.runtime.sandbox.probe"


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of the probe."""

    text: str  # the protection in effect
    note: str  # the protection that is missing
    # The outcome of each attempt by name: an error's name, or a text that says it was not refused.
    answers: dict[str, str]

    @property
    def allowed(self) -> list[str]:
        """The attempts that the sandbox did not refuse."""
        return [name for name, answer in self.answers.items() if answer not in REFUSALS]


def probe() -> Probe:
    """Starts a process in a worker's sandbox, which attempts everything that a worker must not do. OSError
    where it can't be started or prints nothing.
    """
    from satchel.runtime.api.options import Options
    from satchel.runtime.children import interpreter, module_path, start
    from satchel.runtime.sandbox.policy import policy_of
    from satchel.runtime.sandbox.probe import ATTEMPTS
    from satchel.runtime.worker.process import START
    from satchel.store.resolve import default_model

    model = default_model()
    with tempfile.TemporaryDirectory(prefix="satchel-doctor-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("none", encoding="utf-8")
        paths = {"file": secret, "folder": folder, "new": Path(folder) / "new", "program": sys.executable}
        paths["allowed"] = model
        policy = policy_of([model], Options(device="cpu"))
        given: dict[str, Any] = {"path": module_path(), "sandbox": policy, "cpus": []}
        given["probe"] = {name: str(path) for name, path in paths.items()}
        child = start(
            [*interpreter(), "-c", START.format(MODULE), json.dumps(given)],
            isolated=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise OSError(f"the probe did not end within {SECONDS} seconds") from None
    rows: dict[str, Any] = {}
    for line in out.decode(errors="replace").splitlines():
        with suppress(ValueError):
            name, answer = json.loads(line)
            rows[name] = answer
    held = rows.pop("sandbox", None)
    if held is None:
        said = err.decode(errors="replace").strip().splitlines()
        raise OSError(f"the probe ended with {child.returncode}: {said[-1] if said else 'it said nothing'}")
    # An attempt without an outcome has replaced the probe by another program (exec).
    return Probe(held["text"], held["note"], {name: rows.get(name, "it went through") for name in ATTEMPTS})
