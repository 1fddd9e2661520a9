"""A Ray cluster of one host for tests: a head, whose node computes too, and other nodes, on loopback alone.
It has the fewest processes that Ray does with: no dashboard, log monitor or autoscaler, and no worker that
waits for work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

LOOPBACK = "127.0.0.2"  # Ray puts this host's other address in place of 127.0.0.1
TRIES = 5
LIGHTER = Path(__file__).parent / "lighter"
STORE = 80 << 20  # bytes of a node's object store, the least that Ray takes; nothing lies there
MISSING = "" if find_spec("ray") else "ray is not installed: pip install 'satchel[ray]'"
SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",  # else 15: on a busy machine engines would wait for all else
    "RAY_enable_metrics_collection": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextmanager
def lighter() -> Iterator[None]:
    """What is started meanwhile has SETTINGS, and imports what takes long only if it is needed."""
    path = os.pathsep.join([str(LIGHTER), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = list(sys.path)
    sys.path.insert(0, str(LIGHTER))
    try:
        with patch.dict(os.environ, SETTINGS | {"PYTHONPATH": path}):
            yield
    finally:
        sys.path[:] = kept


@contextmanager
def cluster(nodes: int, cpus: int) -> Iterator[Any]:
    """A cluster with so many nodes, the head's among them, of so many processors each."""
    with lighter():
        from ray._private.node import Node
        from ray.cluster_utils import Cluster

        found = Cluster()
        none = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        try:
            with patch.object(Node, "start_api_server", lambda self, **how: None):
                add_node(found, cpus, **none)
            for _ in range(nodes - 1):
                add_node(found, cpus)
            yield found
        finally:
            found.shutdown()


class Shared:
    """The cluster that tests share. What has broken it ends it, and the next test begins another."""

    def __init__(self, nodes: int, cpus: int) -> None:
        self._sizes, self._open = (nodes, cpus), ExitStack()
        self._found: Any = None

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *why: object) -> None:
        self.end()

    @property
    def cluster(self) -> Any:
        if self._found is None:
            self._found = self._open.enter_context(cluster(*self._sizes))
        return self._found

    def end(self) -> None:
        self._found = None
        self._open.close()


def add_node(found: Any, cpus: int = 1, **how: Any) -> Any:
    return begun(
        lambda: found.add_node(num_cpus=cpus, node_ip_address=LOOPBACK, object_store_memory=STORE, **how)
    )


def begun(begin: Callable[[], Any]) -> Any:
    """Begins a node. Ray gives up after 30 seconds, which a busy machine may take: then it is tried again."""
    for _ in range(TRIES - 1):
        try:
            return begin()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return begin()
