"""Pass over a placed graph, for the plan of one bucket: fuses ops whose fused kernels are made for some
numbers of tokens, mostly for few, where steps are launch-bound. Each device is asked at the bucket's shapes;
plans of other buckets keep the parts.

Each rule's docstring gives the pattern.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from satchel.runtime import ops
from satchel.runtime.compiler.fuse import Local, Uses
from satchel.runtime.compiler.fuse_experts import ExpertSteps, experts_of
from satchel.runtime.compiler.fuse_heads import AttentionSteps, layers_of, variants
from satchel.runtime.compiler.fuse_latent import LatentSteps, latents_of
from satchel.runtime.compiler.fuse_post_norm import PostNormSteps, post_norms_of
from satchel.runtime.compiler.fuse_scan import ScanSteps, scans_of
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, Node, readers, toposort
from satchel.runtime.ops.op import op_of
from satchel.runtime.plan import Bucket


def normed_linear(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """linear(rms_norm(x, w), ...) -> norm_linear(x, ..., w), and so for linear_swiglu."""
    made_by = {"linear": ops.norm_linear, "linear_swiglu": ops.norm_linear_swiglu}.get(node.op)
    norm = src[0] if made_by else node
    if made_by is None or norm.op != "rms_norm" or uses[node.src[0]] > 1 or len(norm.shape) != 2:
        return None
    x, w = norm.src
    return made_by(x, *src[1:], w, eps=norm.arg("eps"))


def normed_geglu(node: Node, src: tuple[Node, ...], uses: Uses) -> Node | None:
    """geglu of both halves of norm_linear(x, gate, up, w) -> norm_linear_geglu(x, gate, up, w)."""
    if node.op != "geglu" or any(
        s.op != "cols" or uses[old] > 1 for s, old in zip(src, node.src, strict=True)
    ):
        return None
    product, starts = src[0].src[0], tuple(s.arg("start") for s in src)
    if (
        src[1].src[0] is not product
        or product.op != "norm_linear"
        or len(product.src) != 4
        or uses[node.src[0].src[0]] > 2
    ):
        return None
    if starts != (0, product.src[1].shape[0]) or product.src[1].shape != product.src[2].shape:
        return None
    return ops.norm_linear_geglu(*product.src, eps=product.arg("eps"), style=node.arg("style"))


RULES: tuple[Local, ...] = (normed_linear, normed_geglu)

# Tokens up to which those of one sequence are few. Of more a bucket with as many output rows is for sequences
# that each have one or a few tokens.
FEW = 16


class _Bucket:
    """The graph of one bucket under construction."""

    def __init__(self, optimized: Optimized, bucket: Bucket) -> None:
        self.bucket, self.uses = bucket, readers(optimized.roots)
        self.placed = optimized.assignment.device
        self.targets = {target.name: target for target in optimized.targets}
        self.new: dict[Node, Node] = {}
        self.device: dict[Node, str] = {}
        # Steps of mixtures that are fused, and what stands in the place of each.
        self.fused: dict[Node, Callable[[Node, Mapping[Node, Node]], Node | None]] = {}

    def put(self, node: Node, made: Node) -> None:
        """The new node in the place of the old one, and the views that it reads, on its device."""
        self.new[node] = made
        for one in (made, *made.src):
            if one.op not in LEAVES:
                self.device.setdefault(one, self.placed[node])

    def fits(self, made: Node | None, *parts: Node) -> bool:
        """Whether the device of the parts has the fused op, and no kernel of the user for one of them."""
        target = self.targets[self.placed[parts[0]]]
        if made is None or target.refusal(made, self.bucket):
            return False
        steps = (n for n in parts if (made_by := op_of(n)) is not None and not made_by.view)
        return not any(target.is_custom(n, self.bucket) for n in steps)

    def keep(self, node: Node) -> None:
        """The same node over its new sources, or what a rule makes of it."""
        src = tuple(self.new[s] for s in node.src)
        made = node.graph.node(node.op, src, node.type, node.name, **dict(node.args))
        for rule in RULES:
            fused = rule(node, src, self.uses)
            if fused is not None and self.fits(fused, node, *node.src):
                made = fused
        self.put(node, made)

    def post_norm(self, found: PostNormSteps) -> None:
        """A post-norm, its residual and what follows as one step; else each by itself."""
        together = len({self.placed[n] for n in found.steps}) == 1
        fused = found.fused(self.new) if together else None
        if fused is None or not self.fits(fused, *found.steps):
            for step in found.steps:
                self.keep(step)
            return
        for node, columns in found.results(fused):
            self.put(node, columns)

    def experts(self, found: ExpertSteps) -> None:
        """A mixture's steps as three, if the device has all of them, else its last ones as one. Called at its
        norm.
        """
        together = len({self.placed[n] for n in found.steps}) == 1
        whole = together and found.ranks
        if whole and all(self.fits(made, *found.steps) for made in found.trial(self.new)):
            self.fused.update(dict.fromkeys(found.steps[1:], found.replaced))
            return
        self.keep(found.norm)
        if together and self.fits(found.trial_tail(), *found.tail_steps):
            self.fused.update(dict.fromkeys(found.tail_steps, found.replaced_tail))

    def expert_step(self, node: Node) -> None:
        made = self.fused[node](node, self.new)
        if made is not None:
            self.put(node, made)

    def scan(self, found: ScanSteps) -> None:
        """A scan with its state's write as one step; else each by itself."""
        steps = (found.scan, found.outputs, found.written)
        together = len({self.placed[n] for n in steps}) == 1
        fused = found.fused(self.new) if together else None
        if fused is None or not self.fits(fused, *steps):
            self.keep(found.scan)
            return
        self.put(found.outputs, fused)
        self.put(found.written, ops.ordered_after(self.new[found.written.src[0]], fused))

    def attention(self, layer: AttentionSteps) -> None:
        """A layer's attention with the steps before it as one step; else as two, or each by itself. As one
        step each token reads its past by itself, which many tokens of one sequence would read together.
        """
        node, steps = layer.attention, (layer.rope, layer.keys, layer.values)
        together = all(self.placed[n] == self.placed[node] for n in steps)
        apart = self.bucket.tokens <= FEW or self.bucket.rows == self.bucket.tokens
        ways = (True, False) if apart else (False,)
        for whole, heads in itertools.product(ways, variants(layer) if together else ()):
            made = layer.fused(self.new, heads, whole=whole)
            if made is not None and self.fits(made, node, *steps):
                break
        else:
            for step in (*steps[1:], node):
                self.keep(step)
            return
        self.put(node if whole else layer.rope, made)
        for step in steps[1:]:
            self.put(step, ops.ordered_after(self.new[step.src[0]], made))
        if not whole:
            self.keep(node)

    def latent(self, node: Node, found: LatentSteps) -> None:
        """What stands before the attention of a layer with MLA as one step, or each by itself."""
        made = found.fused(self.new) if len({self.placed[n] for n in found.steps}) == 1 else None
        if made is not None and self.fits(made, *found.steps):
            self.put(found.asked, made)
            self.put(found.write, ops.ordered_after(self.new[found.write.src[0]], made))
        else:
            for step in found.steps:
                self.keep(step)
        self.keep(node)


def fuse_steps(optimized: Optimized, bucket: Bucket) -> Optimized:
    """The graph of this bucket's plan."""
    work, layers = _Bucket(optimized, bucket), layers_of(optimized.roots)
    post_norms, mixtures = post_norms_of(optimized.roots), experts_of(optimized.roots)
    latents = latents_of(optimized.roots)
    scans = scans_of(optimized.roots)
    late = {n for layer in layers.values() for n in (layer.keys, layer.values)}
    late |= {n for found in post_norms.values() for n in found.steps[:-1]}
    late |= {n for found in latents.values() for n in found.steps}
    order = toposort(optimized.roots)
    work.new.update((node, node) for node in order if node.op in LEAVES)
    for node in order:
        if node.op in LEAVES:
            continue
        for graph in {s.graph for s in node.src}:
            graph.label = node.name
        if node in mixtures:
            work.experts(mixtures[node])
        elif node in work.fused:
            work.expert_step(node)
        elif node in latents:
            work.latent(node, latents[node])
        elif node in layers:
            work.attention(layers[node])
        elif node in post_norms:
            work.post_norm(post_norms[node])
        elif node in scans:
            work.scan(scans[node])
        elif node not in late and node not in work.new:
            work.keep(node)
    roots = tuple(work.new[root] for root in optimized.roots)
    assignment = replace(optimized.assignment, roots=roots, device=work.device)
    return replace(optimized, roots=roots, assignment=assignment)
