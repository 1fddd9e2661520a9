"""Finds the steps of a recurrent layer's scan: its outputs, the write of its state, and the outputs without
the updates that the write reads. One kernel can compute them, with one pass over the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, toposort


@dataclass(frozen=True, slots=True)
class ScanSteps:
    scan: Node  # gated_scan
    outputs: Node  # take of its outputs
    written: Node  # scan_write

    def fused(self, new: Mapping[Node, Node]) -> Node:
        """The fused node over new sources."""
        return ops.gated_scan_write(*(new[s] for s in self.scan.src), **dict(self.scan.args))


def scans_of(roots: Roots) -> dict[Node, ScanSteps]:
    """By gated_scan, the steps of each scan whose result only a write of the same state and its outputs
    read.
    """
    order = toposort(roots)
    read_by: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for source in node.src:
            read_by[source].append(node)
    found = {}
    for scan in order:
        if scan.op != "gated_scan" or scan in roots or len(read_by[scan]) != 2:
            continue
        outputs, written = sorted(read_by[scan], key=lambda n: n.op == "scan_write")
        if _takes_outputs(outputs, scan) and _writes(written, scan):
            found[scan] = ScanSteps(scan, outputs, written)
    return found


def _takes_outputs(node: Node, scan: Node) -> bool:
    return node.op == "take" and (node.arg("start"), node.arg("size")) == (0, scan.src[2].shape[2])


def _writes(node: Node, scan: Node) -> bool:
    _, k, _, g, _, state, *place = scan.src
    same = all(node.arg(name) == scan.arg(name) for name in ("block", "tiled") if node.op == "scan_write")
    return node.op == "scan_write" and node.src == (state, k, scan, g, *place) and same
