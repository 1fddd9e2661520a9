"""A worker process whose RPC method `rerank` attempts what the sandbox must refuse, for tests. It tries in
four threads: the method's own, a new one, the engine's (started before the sandbox was entered), and the one
that reads the pipe. SATCHEL_TEST_TRIES is JSON: the paths of the attempts by the names of probe.py.
"""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from satchel.runtime.api.model import Model
from satchel.runtime.sandbox.probe import ATTEMPTS, attempt
from satchel.runtime.worker import child

GIVEN: dict[str, str] = json.loads(os.environ["SATCHEL_TEST_TRIES"])
SERVE = child.Worker.serve
reading: list[str] = []


def tries() -> list[str]:
    """The outcome of each attempt, as "name: answer"."""
    return [f"{name}: {attempt(name, GIVEN)}" for name in ATTEMPTS]


def beside(work: Callable[[], list[str]]) -> list[str]:
    """The outcomes in a new thread."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(work()))
    thread.start()
    thread.join()
    return found


def rerank(self: Model, query: Any, documents: Any, **_: Any) -> Any:
    """[outcomes here, in a new thread, in the engine's, in the reader's, what the worker may do]"""
    allowed = [f"{name}: {permitted(path)}" for name, path in GIVEN.items() if name.startswith("own")]
    limits = [resource.getrlimit(r) for r in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]
    engine = self._own_service().ask(tries)
    return [tries(), beside(tries), engine, list(reading), [*allowed, *map(repr, limits), *lazy()]]


def permitted(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return repr(error)
    return "opened"


def lazy() -> list[str]:
    """What a worker does after entering the sandbox: imports, threads, memory, reading its own /proc
    files.
    """
    import wave  # a module that nothing else imports

    return [wave.__name__, Path("/proc/self/cgroup").read_text()[:1], str(len(os.sched_getaffinity(0)) > 0)]


def serve(self: child.Worker, model: Model, source: BinaryIO) -> None:
    reading.extend(tries())
    SERVE(self, model, source)


def main() -> None:
    Model.rerank = rerank  # type: ignore[method-assign]
    child.Worker.serve = serve  # type: ignore[method-assign]
    child.main()
