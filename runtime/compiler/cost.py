"""Cost model of a plan's steps: bytes of weights and cache read, and multiply-adds. Counted from the plan's
tables, never measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from satchel.quant import FORMATS
from satchel.runtime.compiler.memory import stride_of
from satchel.runtime.device.device import WEIGHT
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Array, Node, Type, toposort
from satchel.runtime.ops import OPS
from satchel.runtime.ops.op import op_of
from satchel.runtime.plan import PACKED, Bucket, Plan, PlanStep, Segment

ROWS = 1  # index of the count of output rows in the step block, as in hal.h
NAMES = {f.id: f.name for f in FORMATS.values()}


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """One sequence's part of a step, or that of several sequences alike."""

    tokens: int
    start: int  # position of the first of them
    rows: int = 1  # how many of them are sampled
    sequences: int = 1


@dataclass(slots=True)
class PlanCost:
    """Bytes read, and multiply-adds by operand type: "int8", "bf16x2" or "f32".

    A multiply-add is one weight (or cached element) times one activation, however a kernel computes it.
    """

    bytes: float = 0.0
    macs: Counter[str] = field(default_factory=Counter)

    def add(self, other: PlanCost) -> None:
        self.bytes += other.bytes
        self.macs.update(other.macs)

    def times(self, n: int) -> PlanCost:
        """The cost of n steps like this one."""
        return PlanCost(self.bytes * n, Counter({kind: macs * n for kind, macs in self.macs.items()}))

    @property
    def total(self) -> int:
        return self.macs.total()


def kind_of(weight: str, act: str) -> str:
    """Operand type of a product of weights and activations of these formats."""
    if act == "bf16x2":
        return "f32" if weight == "f16" else "bf16x2"
    return "f32" if act in ("f32", "f16", "bf16") else "int8"


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention node. Its products count as float32, whatever the format of the cache."""

    bytes: int  # of one position in its cache
    macs: int  # of one query with one position
    window: int  # 0: the whole past
    ranks: int = 1  # that share the positions (context parallelism)

    @classmethod
    def of(cls, node: Node) -> Attention:
        value = int(node.arg("value"))
        shapes = [(s.shape[1], s.shape[3], s.type.format) for s in node.src[1 : 2 if value else 3]]
        size = sum(int(h) * stride_of(Type((1, d), f)) for h, d, f in shapes if isinstance(h, int))
        heads = int(node.src[0].type.shape[1])  # type: ignore[arg-type]
        met = value + sum(d for _, d, _ in shapes if isinstance(d, int))
        window = int(node.arg("window") or node.arg("chunk")) if node.op == "attention" else 0
        return cls(size, heads * met, window, node.arg("ranks") if node.op == "attention_parts" else 1)

    def cost(self, span: TokenSpan) -> PlanCost:
        """Each position within the window is read once, and multiplied with the queries that see it."""
        end = span.start + span.tokens
        seen = min(end, self.window + span.tokens) if self.window else end
        most = self.window or end
        pairs = sum(min(p + 1, most) for p in range(span.start, end))
        return PlanCost(self.bytes * seen / self.ranks, Counter({"f32": self.macs * pairs // self.ranks}))


class CostModel:
    """Costs of an engine's plans, per step. attention: the attention nodes by name."""

    def __init__(self, engine: Engine) -> None:
        nodes = toposort(engine.optimized("tokens").roots)
        ops = ((node, op_of(node)) for node in nodes)
        self.attention = {n.name: Attention.of(n) for n, made_by in ops if made_by and made_by.attends}

    def steps(self, segment: Segment, bucket: Bucket, span: TokenSpan) -> list[PlanCost]:
        """Cost of each step of a segment, for a plan of this bucket."""
        return [self._step(segment, i, bucket, span) for i in range(len(segment.steps))]

    def _step(self, segment: Segment, i: int, bucket: Bucket, span: TokenSpan) -> PlanCost:
        step = segment.steps[i]
        made_by = OPS[step.op]
        if made_by.attends:
            return self.attention[step.label].cost(span).times(span.sequences)
        first, n_in = int(segment.step_table["view"][i]), int(segment.step_table["n_in"][i])
        views = segment.view_table[first : first + 1 + n_in]
        own, most = (span.rows, bucket.rows) if views["count"][0] == ROWS else (span.tokens, bucket.tokens)
        count = own * span.sequences
        if not count:
            return PlanCost()
        if made_by.gathers:
            return PlanCost(step.weight_bytes * count / most)
        return PlanCost(_weight_bytes(step, views, count, most), _macs(segment, step, views, count))

    def plan(self, plan: Plan, span: TokenSpan) -> Iterator[tuple[str, PlanCost]]:
        """Device and cost of each step of a plan."""
        for segment in plan.segments:
            for own in segment.all:
                for cost in self.steps(own, plan.bucket, span):
                    yield segment.device, cost


def _weight_bytes(step: PlanStep, views: Array, count: int, most: int) -> float:
    """Each weight once, whatever the number of tokens; of experts, the most that these tokens can select."""
    if not OPS[step.op].experts:
        return step.weight_bytes
    experts, asked = int(views["shape"][2][0]), _per_token(step, views)
    return step.weight_bytes * min(experts, count * asked) / min(experts, most * asked)


def _per_token(step: PlanStep, views: Array) -> int:
    """Experts that each token has."""
    value, dimension = OPS[step.op].per_token
    return int(views["shape"][value][dimension])


def _macs(segment: Segment, step: PlanStep, views: Array, count: int) -> Counter[str]:
    """Multiply-adds of a step's weights (N, K), or (E, N, K) of which each token selects k experts."""
    found: Counter[str] = Counter()
    act = NAMES.get(int(views["format"][1]), "f32") if len(views) > 1 else "f32"
    for view in views[2:]:
        if segment.buffers[view["buffer"]].usage != WEIGHT or view["ndim"] < 2:
            continue
        rows, columns = (int(n) for n in view["shape"][view["ndim"] - 2 : view["ndim"]])
        each = _per_token(step, views) if view["ndim"] == 3 else 1
        weight = NAMES[int(view["format"]) & ~PACKED]
        found[kind_of(weight, act)] += rows * columns * count * each
    return found
