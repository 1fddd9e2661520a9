"""Pass over a placed graph, for the plan of one bucket: fuses ops whose fused kernels are made for few
tokens, where steps are launch-bound. Each device is asked at the bucket's shapes; the plan of a larger bucket
keeps the parts.

Each rule's docstring gives the pattern.
"""

from __future__ import annotations

from dataclasses import replace

from satchel.runtime import ops
from satchel.runtime.compiler.fuse import Local, Uses
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, Node, readers, rewrite
from satchel.runtime.plan import Bucket


def normed_linear(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """linear(rms_norm(x, w), ...) -> norm_linear(x, ..., w), and so for linear_swiglu."""
    made_by = {"linear": ops.norm_linear, "linear_swiglu": ops.norm_linear_swiglu}.get(node.op)
    norm = src[0] if made_by else node
    if made_by is None or norm.op != "rms_norm" or uses[node.src[0]] > 1 or len(norm.shape) != 2:
        return None
    x, w = norm.src
    return made_by(x, *src[1:], w, eps=norm.arg("eps"))


RULES: tuple[Local, ...] = (normed_linear,)


def fuse_steps(optimized: Optimized, bucket: Bucket) -> Optimized:
    """The graph of this bucket's plan."""
    uses, placed = readers(optimized.roots), optimized.assignment.device
    targets = {target.name: target for target in optimized.targets}
    device: dict[Node, str] = {}

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op in LEAVES:
            return None
        made = node.graph.node(node.op, src, node.type, node.name, **dict(node.args))
        src[0].graph.label = node.name
        for local in RULES:
            fused = local(node, src, uses)
            if fused is not None and not targets[placed[node]].refusal(fused, bucket):
                made = fused
        device[made] = placed[node]
        return made

    roots = rewrite(optimized.roots, rule)
    return replace(
        optimized, roots=roots, assignment=replace(optimized.assignment, roots=roots, device=device)
    )
