"""A Ray cluster of one host for tests: a head without processors, and nodes, on loopback alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOPBACK = "127.0.0.2"  # Ray puts this host's other address in place of 127.0.0.1
TRIES = 5


@contextmanager
def cluster(nodes: int, cpus: int) -> Iterator[Any]:
    """A cluster with so many nodes besides its head, of so many processors each."""
    from ray.cluster_utils import Cluster

    found = Cluster()
    try:
        begun(lambda: found.add_node(num_cpus=0, include_dashboard=False, node_ip_address=LOOPBACK))
        for _ in range(nodes):
            add_node(found, cpus)
        yield found
    finally:
        found.shutdown()


def add_node(found: Any, cpus: int = 1) -> Any:
    return begun(lambda: found.add_node(num_cpus=cpus, node_ip_address=LOOPBACK))


def begun(begin: Callable[[], Any]) -> Any:
    """Begins a node. Ray gives up after 30 seconds, which a busy machine may take: then it is tried again."""
    for _ in range(TRIES - 1):
        try:
            return begin()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return begin()
