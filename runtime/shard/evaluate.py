"""Runs the graphs of all ranks by the definitions, in step: the oracle of tensor parallelism."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from satchel.runtime.graph import LEAVES, Array, Node, Roots, toposort
from satchel.runtime.ops import OPS, run

Meeting = tuple[Node, tuple[Array, ...]]
Running = Generator[Meeting, Array | None, list[Array]]


def evaluate_ranks(ranks: Sequence[Roots], values: Sequence[Mapping[str, Array]]) -> list[list[Array]]:
    """The roots' values on each rank. values: as of `evaluate`, for each rank. Raises AssertionError where
    ranks meet at different collectives.
    """
    running = [_run(roots, own) for roots, own in zip(ranks, values, strict=True)]
    results: list[list[Array]] = []
    sent: list[Array | None] = [None] * len(running)
    while not results:
        meetings, ended = list[Meeting](), list[list[Array]]()
        for rank, value in zip(running, sent, strict=True):
            try:
                meetings.append(rank.send(value))
            except StopIteration as end:
                ended.append(end.value)
        if ended:
            assert not meetings, f"a rank waits at {meetings[0][0].op}, another has ended"
            return ended
        sent = [*_met(meetings)]
    return results


def _met(meetings: Sequence[Meeting]) -> list[Array]:
    """What each rank gets from a collective."""
    nodes, sources = [node for node, _ in meetings], [src for _, src in meetings]
    places = {(node.op, node.name) for node in nodes}
    assert len(places) == 1, f"ranks meet at {places}"
    made_by = OPS[nodes[0].op]
    if made_by.scatters is not None:
        return made_by.scatters(sources)
    assert made_by.meets is not None
    return [made_by.meets(sources, **dict(nodes[0].args))] * len(meetings)


def _run(roots: Roots, values: Mapping[str, Array]) -> Running:
    """One rank: yields at each collective, and goes on with the value that comes back."""
    known: dict[Node, Array] = {}
    for node in toposort(roots):
        if node.op == "const":
            known[node] = node.arg("value").array
        elif node.op in LEAVES:
            known[node] = values[node.name]
        elif OPS[node.op].collective:
            met = yield node, tuple(known[s] for s in node.src)
            assert met is not None
            known[node] = met
        else:
            known.update(run(node, known))
    return [known[root] for root in roots]
