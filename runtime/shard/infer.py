"""Inference of specs: one walk over the graph asks each op's split rule. What does not fit is collected, and
`decide` makes the products behind it whole and infers again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from satchel.quant import FORMATS
from satchel.runtime.graph import LEAVES, Node, Roots, toposort
from satchel.runtime.ops.op import OPS
from satchel.runtime.ops.split import GATHERED, LORA_A, PARTIAL, WHOLE, Experts, Spec, Split, SplitOutcome
from satchel.runtime.shard.pieces import Piece

LEAST_ROWS = 16  # a product with fewer rows for each rank is not divided


def state_of(cache: Node) -> Node:
    """The state behind a cache and the writes to it."""
    while cache.op not in LEAVES:
        cache = cache.src[0]
    return cache


@dataclass(slots=True)
class CutGroup:
    """Divisions that met, and what their cut points must divide."""

    units: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)  # blocks of the weights that close it
    complete: bool = False  # closed by a product, or by a gather
    # Divisions of keys that its queries attend to, with the numbers of heads and of KV heads.
    links: list[tuple[str, int, int]] = field(default_factory=list)
    products: list[Node] = field(default_factory=list)


class Inference:
    """Specs of all nodes that the roots need. whole: weights that are not divided by rows; experts: weights
    that are divided by experts; blocks: caches that are divided by blocks, all by name.
    """

    def __init__(
        self,
        roots: Roots,
        ranks: int,
        whole: Collection[str] = (),
        experts: Collection[str] = (),
        blocks: Collection[str] = (),
    ) -> None:
        self.ranks, self.whole, self.experts, self.blocks = ranks, whole, experts, blocks
        self.order, self._roots = toposort(roots), roots
        self.reduced: set[Node] = set()  # partial sums that an op needs whole
        while True:
            before = len(self.reduced)
            self._walk()
            if len(self.reduced) == before:
                break

    def _walk(self) -> None:
        self.specs: dict[Node, Spec] = {}
        self.outcomes: dict[Node, SplitOutcome] = {}
        self.states: dict[str, Spec] = {}
        self.conflicts: dict[str, str] = {}  # why, by the cut that does not fit
        self.gathered: set[Node] = set()
        self._parents: dict[str, str] = {}
        self._groups: dict[str, CutGroup] = {}
        for node in self.order:
            self.specs[node] = WHOLE if node.op in LEAVES else self._spec(node)
        for root in self._roots:
            if root.op not in LEAVES and not OPS[root.op].alias:
                self._meet(root, root, GATHERED)

    def _spec(self, node: Node) -> Spec:
        rule = OPS[node.op].split
        specs = tuple(self.specs[s] for s in node.src)
        needed = rule is not None and (any(s != WHOLE for s in specs) or OPS[node.op].weights.stop != 0)
        outcome = rule(node, specs, self) if rule is not None and needed else None
        outcome = outcome or SplitOutcome(WHOLE, (WHOLE,) * len(specs))
        fits = [self._meet(node, s, w) for s, w in zip(node.src, outcome.wants, strict=True)]
        self.outcomes[node] = outcome = outcome if all(fits) else SplitOutcome(WHOLE, (WHOLE,) * len(specs))
        return WHOLE if outcome.spec == PARTIAL and node in self.reduced else outcome.spec

    def _meet(self, node: Node, source: Node, want: Spec) -> bool:
        """Whether the source can be had as wanted; notes what that takes, or the conflict."""
        spec = self.specs[source]
        if want == PARTIAL:
            return True
        if spec == PARTIAL:
            self.reduced.add(source)
            spec = WHOLE
        if want in (WHOLE, GATHERED):
            if spec == WHOLE:
                return self._as_state(node, source, WHOLE)
            if want == GATHERED and isinstance(spec, Split) and spec.axis == 1 and len(source.shape) == 2:
                self.complete(spec.cut)
                self.gathered.add(source)
                return True
            return self._conflict(node, spec)
        if isinstance(want, Experts):
            return isinstance(spec, Experts) or source.op in LEAVES or self._conflict(node, spec)
        if isinstance(spec, Split) and isinstance(want, Split) and spec.axis == want.axis:
            self._join(spec.cut, want.cut)
            return True
        if spec != WHOLE:
            return self._conflict(node, spec)
        if source.op in LEAVES and source.op != "input":
            return self._as_state(node, source, want)
        columns = isinstance(want, Split) and want.axis == 1 and len(source.shape) == 2
        return columns or self._conflict(node, want)

    def _as_state(self, node: Node, source: Node, want: Spec) -> bool:
        """A state is divided in one way for all its readers."""
        if source.op != "state":
            return True
        first = self.states.setdefault(source.name, want)
        if isinstance(first, Split) and isinstance(want, Split):
            self._join(first.cut, want.cut)
            return True
        return first == want or self._conflict(node, first if isinstance(first, Split) else want)

    def _conflict(self, node: Node, spec: Spec) -> bool:
        if isinstance(spec, Split | Experts):
            self.conflicts.setdefault(spec.cut, f"{node.op} needs it whole")
        return False

    def begin(self, product: Node) -> Spec:
        weight = product.src[0] if OPS[product.op].gathers else product.src[1]
        rows = weight.shape[0 if OPS[product.op].gathers else len(weight.shape) - 2]
        if weight.name in self.experts:
            return Experts(weight.name)
        if Piece.of(weight.name).tensor.endswith(LORA_A):
            return WHOLE  # its rows are few, and the product behind it is divided
        if weight.name in self.whole:
            return WHOLE
        if not isinstance(rows, int) or rows < LEAST_ROWS * self.ranks:
            return WHOLE
        group = self.group(weight.name)
        group.units.append(rows)
        group.products.append(product)
        return Split(0 if OPS[product.op].gathers else len(product.shape) - 1, weight.name)

    def units(self, cut: str, count: int) -> None:
        self.group(cut).units.append(count)

    def closes(self, cut: str, weight: Node) -> None:
        group = self.group(cut)
        group.complete = True
        group.units.append(weight.width)
        group.blocks.append(-(-weight.width // FORMATS[weight.type.format].block))

    def complete(self, cut: str) -> None:
        self.group(cut).complete = True

    def link(self, queries: Split, keys: Split, heads: int, kv_heads: int) -> None:
        found = self.group(queries.cut).links
        if found:
            self._join(found[0][0], keys.cut)
        found.append((keys.cut, heads, kv_heads))

    def by_blocks(self, cache: Node) -> bool:
        return state_of(cache).name in self.blocks

    def find(self, cut: str) -> str:
        while (above := self._parents.setdefault(cut, cut)) != cut:
            cut = above
        return cut

    def group(self, cut: str) -> CutGroup:
        return self._groups.setdefault(self.find(cut), CutGroup())

    def groups(self) -> Mapping[str, CutGroup]:
        return self._groups

    def members(self) -> Mapping[str, Sequence[str]]:
        """Names of the divided weights of each group."""
        found: dict[str, list[str]] = {}
        for cut in self._parents:
            found.setdefault(self.find(cut), []).append(cut)
        return found

    def _join(self, a: str, b: str) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        mine, other = self.group(a), self._groups.pop(b, CutGroup())
        self._parents[b] = a
        mine.units += other.units
        mine.blocks += other.blocks
        mine.links += other.links
        mine.products += other.products
        mine.complete |= other.complete
