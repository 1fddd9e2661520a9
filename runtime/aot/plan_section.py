"""The plan section: plan tables that hold for every context and number of slots.

Plans of one model for different sizes of its cache differ in the shapes, strides and offsets of views into
states and the step block, and in the sizes of these. So a view is stored by what it shows (a state, a field
of the step block, a weight) with its offset in that, and a dimension that follows the cache by its kind.

No rule about plans is stated here: two sizes are compiled, what differs is attributed, and the result is
relocated to further sizes and compared with fresh plans of these, table by table. A difference is an error of
the build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from satchel.errors import ModelError
from satchel.formats.gguf import GGUF
from satchel.runtime.aot.compiled import (
    MASKED,
    TOKENS,
    CompiledModel,
    PlanKind,
    architecture,
    compile_model,
    pooling_number,
)
from satchel.runtime.aot.records import (
    HAL_HASH,
    PLAN_ENTRY,
    PLAN_FIELD,
    PLAN_GROUP,
    PLAN_HEAD,
    PLAN_STATE,
    PLAN_VIEW,
    PLAN_WEIGHT,
    section,
)
from satchel.runtime.compiler.memory import nbytes
from satchel.runtime.device.device import Device
from satchel.runtime.engine.engine import MAX_TOKENS, bucket_of
from satchel.runtime.graph import Array, Dim, Type
from satchel.runtime.layers.arch import RECURRENT, Cache
from satchel.runtime.plan import COUNTS_BYTES, ONE, Bucket, Plan, Segment, align_up

MAGIC = b"SATPLAN2"
ROWS = 64  # most tokens that a step samples: one for each slot
# Inputs by number, as in sections.h.
FIELDS = ("ids", "pos", "slot", "rows", "params", "table", "segment_ids", "token_bitmask", "edits")
BUFFERS = ("step", "arena", "state", "const", "out", "weights.0", "weights.packed", "link")  # by number, too
FIXED, SLOTS, RING, WIDTH, POOL = range(5)  # kinds of dimensions; POOL + k: blocks of layer group k
CHECKED = 4  # further sizes that the relocated tables are compared at


class CacheSize(NamedTuple):
    """A size of the cache."""

    context: int
    slots: int


class Relocated(NamedTuple):
    """A plan's tables for one size of the cache."""

    views: Array  # hal_view, by BUFFERS; a weight's offset counts from its begin
    fields: tuple[int, ...]  # offsets in the step block
    block: int  # bytes of it
    states: tuple[int, ...]  # offsets, and the size of the buffer


@dataclass(frozen=True, slots=True)
class Dims:
    """A shape of which dimensions follow the cache: `unit` bytes times these kinds."""

    unit: int
    kinds: tuple[int, ...]

    def size(self, value: Mapping[int, int]) -> int:
        return self.unit * prod(value[kind] for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Entry:
    """A plan as it is stored. fields, with their numbers among FIELDS and layer groups; views: PLAN_VIEW."""

    kind: PlanKind
    plan: Plan
    segment: Segment
    fields: tuple[tuple[int, int, Dims], ...]
    views: Array


@dataclass(frozen=True, slots=True)
class PlanTables:
    """The plans of one variant, for every size of the cache."""

    windows: tuple[int, ...]
    weights: tuple[str, ...]
    states: tuple[Dims, ...]
    entries: tuple[Entry, ...]

    def relocate(self, entry: Entry, cache: Cache) -> Relocated:
        """The tables of a plan for this cache: what cext/embed does when it opens the file."""
        value = values(cache, self.windows)
        states, at = [], 0
        for dims in self.states:
            states.append(at)
            at = align_up(at + dims.size(value))
        offsets, block = [], COUNTS_BYTES
        for _, _, dims in entry.fields:
            block = align_up(block, 8)
            offsets.append(block)
            block += dims.size(value)
        views = entry.views["view"].copy()
        for view, row in zip(views, entry.views, strict=True):
            base = {"step": offsets, "state": states}.get(BUFFERS[int(row["of"])])
            if base is not None:
                view["offset"] += base[int(row["index"])]
            for place, kind in enumerate(row["kinds"].tolist()):
                if kind:
                    view["shape"][place] = value[kind]
                    view["stride"] *= value[kind] if place else 1
        return Relocated(views, tuple(offsets), align_up(block), (*states, at))


def values(cache: Cache, windows: Sequence[int]) -> dict[int, int]:
    """The number that each kind of dimension stands for."""
    pools = {POOL + k: cache.pool_of(window) for k, window in enumerate(windows)}
    return {FIXED: 1, SLOTS: cache.slots, RING: cache.context + 1, WIDTH: cache.table_width, **pools}


class Attribution:
    """Explains what differs between the plans of two sizes."""

    def __init__(self, first: CompiledModel, second: CompiledModel) -> None:
        self.models = first, second
        known = [values(m.cache, m.windows) for m in self.models]
        self.kinds = {kind: (known[0][kind], known[1][kind]) for kind in known[0] if kind}
        self.weights = tuple(sorted(self._read(), key=list(first.places).index))
        self.index = {name: i for i, name in enumerate(self.weights)}

    def tables(self) -> PlanTables:
        first, second = self.models
        states = tuple(
            self.dims(type, second.states[name], first.group_of.get(name))
            for name, type in first.states.items()
        )
        entries = tuple(self._entry(k, first.plans[k], second.plans[k]) for k in first.plans)
        return PlanTables(first.windows, self.weights, states, entries)

    def dims(self, one: Type, other: Type, group: int | None) -> Dims:
        """A type of which dimensions may differ between the two. group: its layer group, if it has one."""
        kinds = [self.kind(a, b, group) for a, b in zip(_sizes(one), _sizes(other), strict=True)]
        return Dims(
            nbytes(one, ONE) // prod(a for a, k in zip(_sizes(one), kinds, strict=True) if k), _four(kinds)
        )

    def kind(self, one: int, other: int, group: int | None = None) -> int:
        """The kind of a dimension; FIXED where it is the same in both."""
        if one == other:
            return FIXED
        order = [*([] if group is None else [POOL + group]), *self.kinds]
        found = next((kind for kind in order if self.kinds[kind] == (one, other)), None)
        if found is None:
            raise ModelError(f"a dimension of {one} and {other}: it follows neither context nor slots")
        return found

    def _read(self) -> set[str]:
        """Names of the weights that the plans' views show."""
        first = self.models[0]
        segments = (plan.segments[0] for plan in first.plans.values())
        return {self._weight(s, view)[0] for s in segments for view in s.view_table if _is_weight(s, view)}

    def _weight(self, segment: Segment, view: Array) -> tuple[str, int]:
        """The weight that a view shows, and the offset in it."""
        buffer, offset = segment.buffers[int(view["buffer"])].name, int(view["offset"])
        first = self.models[0]
        start, name = max(
            (p.offset, name) for name, p in first.places.items() if p.buffer == buffer and p.offset <= offset
        )
        return name, offset - start

    def _entry(self, kind: PlanKind, plan: Plan, other: Plan) -> Entry:
        one, two = _only_segment(plan), _only_segment(other)
        same = (
            np.array_equal(one.step_table, two.step_table)
            and np.array_equal(one.op_table, two.op_table)
            and one.args == two.args
            and plan.consts == other.consts
            and len(one.view_table) == len(two.view_table)
        )
        if not same:
            raise ModelError("steps, arguments or constants follow the context")
        fields = tuple(
            (*_field(f.name, self.models[0].windows), self._field_dims(f.type, g.type, plan.bucket))
            for f, g in zip(plan.fields, other.fields, strict=True)
        )
        views = np.zeros(len(one.view_table), PLAN_VIEW)
        for i, (a, b) in enumerate(zip(one.view_table, two.view_table, strict=True)):
            self._fill(views[i], a, b, one, two, plan, other)
        return Entry(kind, plan, one, fields, views)

    def _field_dims(self, one: Type, other: Type, bucket: Bucket) -> Dims:
        full = [tuple(bucket.size(d) for d in t.shape) for t in (one, other)]
        return self.dims(Type(full[0], one.format), Type(full[1], other.format), None)

    def _fill(
        self, row: Array, a: Array, b: Array, one: Segment, two: Segment, plan: Plan, other: Plan
    ) -> None:
        """A PLAN_VIEW of the two plans' views a and b."""
        name = one.buffers[int(a["buffer"])].name
        row["of"], row["view"] = BUFFERS.index(name), a
        row["view"]["buffer"], group = row["of"], None
        if name == "step":
            row["index"], row["view"]["offset"] = _within([f.offset for f in plan.fields], a)
        elif name == "state":
            first = self.models[0]
            row["index"], row["view"]["offset"] = _within([first.offsets[n] for n in first.states], a)
            group = first.group_of.get([*first.states][int(row["index"])])
        elif _is_weight(one, a):
            weight, row["view"]["offset"] = self._weight(one, a)
            row["index"] = self.index[weight]
            return
        row["kinds"] = [self.kind(int(x), int(y), group) for x, y in zip(a["shape"], b["shape"], strict=True)]
        for place, kind in enumerate(row["kinds"].tolist()):
            if kind:
                row["view"]["stride"] //= self.kinds[kind][0] if place else 1
                row["view"]["shape"][place] = 0


def plain(model: CompiledModel, tables: PlanTables, entry: Entry, plan: Plan) -> Relocated:
    """A fresh plan's tables in the form of relocate()."""
    segment, starts = _only_segment(plan), {name: p.offset for name, p in model.places.items()}
    views = segment.view_table.copy()
    for view, row in zip(views, entry.views, strict=True):
        view["buffer"] = BUFFERS.index(segment.buffers[int(view["buffer"])].name)
        if BUFFERS[int(view["buffer"])].startswith("weights"):
            view["offset"] -= starts[tables.weights[int(row["index"])]]
    states = tuple(model.offsets[name] for name in (*model.states, ""))
    return Relocated(views, tuple(f.offset for f in plan.fields), plan.block_bytes, states)


def _check(tables: PlanTables, model: CompiledModel) -> None:
    """ModelError unless the tables, relocated to this model's cache, are those of its plans."""
    for entry in tables.entries:
        plan = model.plans[entry.kind]
        if not (_same_steps(plan, entry) and _same_places(tables, model, entry, plan)):
            raise ModelError(
                f"the plan for {plan.bucket.tokens} tokens at a context of {model.cache.context} and "
                f"{model.cache.slots} slots is not the relocated one"
            )


def _same_steps(plan: Plan, entry: Entry) -> bool:
    """Whether a plan has the steps of the tables' one, with the same arguments and constants."""
    segment = _only_segment(plan)
    return (
        np.array_equal(segment.step_table, entry.segment.step_table)
        and len(segment.view_table) == len(entry.views)
        and segment.args == entry.segment.args
        and plan.consts == entry.plan.consts
        and plan.outputs == entry.plan.outputs
        and _sizes_of(segment) == _sizes_of(entry.segment)
    )


def _same_places(tables: PlanTables, model: CompiledModel, entry: Entry, plan: Plan) -> bool:
    """Whether the tables, relocated, have the shapes and places of a plan with the same steps."""
    got, wanted = tables.relocate(entry, model.cache), plain(model, tables, entry, plan)
    return (
        got.fields == wanted.fields
        and got[2:] == wanted[2:]
        and bool(np.array_equal(got.views, wanted.views))
    )


def _is(tables: PlanTables, model: CompiledModel) -> bool:
    """Whether the tables are those of this model."""
    try:
        _check(tables, model)
    except ModelError:
        return False
    return True


def _least(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least context from `low` on at which it holds, which it does at `high`: some layers, such as those
    of chunked attention, have another form where the context is no longer than what they see.
    """
    if holds(low):
        return low
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def plan_tables(gguf: GGUF, device: Device) -> tuple[PlanTables, CompiledModel, int]:
    """The model's plans on this device for every size of the cache, a compiled model of them, and the least
    context that they hold for. ModelError where they follow the context in another way than by sizes.
    """
    trained = architecture(gguf, Cache(1)).context
    batch = bucket_of(min(trained, MAX_TOKENS), MAX_TOKENS)
    embeds = pooling_number(gguf, architecture(gguf, Cache(1)))  # then a step may give a row for each token
    buckets = dict.fromkeys((ONE, Bucket(batch, batch if embeds else min(batch, ROWS))))
    outputs = (TOKENS,) if embeds else (TOKENS, MASKED)
    plans = tuple(PlanKind(output, bucket) for output in outputs for bucket in buckets)

    def compiled(size: CacheSize) -> CompiledModel:
        return compile_model(gguf, device, Cache(size.context, size.slots, batch=batch), plans)

    whole = compiled(CacheSize(trained, 2))
    windows = [window for window in whole.windows if window != RECURRENT]
    least = min(trained, max(windows, default=0) + 1)
    try:
        first, second, *others = _distinct(trained, least, whole)
        tables = Attribution(whole if first == (trained, 2) else compiled(first), compiled(second)).tables()
        least = _least(lambda context: _is(tables, compiled(CacheSize(context, 1))), least, trained)
        for size in others:
            _check(tables, compiled(CacheSize(max(least, size.context), size.slots)))
    except ModelError as error:
        raise ModelError(f"{gguf.path}: no plan holds for every context: {error}") from None
    return tables, whole, least


def _distinct(trained: int, least: int, whole: CompiledModel) -> Iterator[CacheSize]:
    """Sizes to compile: two that differ in every kind of dimension and tell most kinds apart, then those to
    check.
    """

    def kinds(size: CacheSize) -> dict[int, int]:
        return values(Cache(size.context, size.slots, batch=whole.cache.batch), whole.windows)

    def told_apart(pair: tuple[CacheSize, CacheSize]) -> tuple[int, int]:
        one, two = map(kinds, pair)
        return len({(one[k], two[k]) for k in one}), sum(one[k] != two[k] for k in one)

    middle = {max(least, trained * part // 8) for part in (2, 3, 5)} | {least}
    seconds = [CacheSize(c, s) for c, s in product(sorted(middle, reverse=True), (3, 5, 7))]
    pair = max((((CacheSize(trained, 2), second)) for second in seconds), key=told_apart)
    yield from pair
    left = [
        CacheSize(trained, 1),
        CacheSize(least, 1),
        CacheSize(max(least, trained // 2), 4),
        CacheSize(max(least, trained - 1), 9),
    ]
    yield from left[:CHECKED]


def pack_plans(
    variants: Sequence[PlanTables],
    model: CompiledModel,
    least: int,
    gguf: GGUF,
    size: CacheSize,
    file_crc: int,
    panels: bool = False,
) -> bytes:
    """The section. variants: of kernel sets, the one to try first at the front. size: the default. file_crc:
    of the file's own header. panels: packed weights lie in the tensor satchel.panels.
    """
    tables, names = variants[0], bytearray()
    weights = np.zeros(len(tables.weights), PLAN_WEIGHT)
    for row, name in zip(weights, tables.weights, strict=True):
        info, raw = gguf.tensors[name], name.encode()
        row["name"], row["name_size"] = len(names), len(raw)
        row["format"], row["ndim"] = info.type_id, len(info.shape)
        row["packed"] = (1 + panels) * bool(model.places[name].packed)
        row["shape"] = _four(info.shape, 1)
        names += raw
    states = np.zeros(len(tables.states), PLAN_STATE)
    for row, dims in zip(states, tables.states, strict=True):
        row["unit"], row["kinds"] = dims.unit, dims.kinds
    groups = np.zeros(len(tables.windows), PLAN_GROUP)
    groups["window"] = tables.windows
    entries = [(number, entry) for number, v in enumerate(variants) for entry in v.entries]
    head = np.zeros((), PLAN_HEAD)
    head["magic"], head["hal"], head["file_crc"] = MAGIC, HAL_HASH, file_crc
    head["n_names"], head["n_weights"], head["n_states"] = len(names), len(weights), len(states)
    head["n_groups"], head["n_plans"], head["n_variants"] = len(groups), len(entries), len(variants)
    head["block"], head["batch"] = model.cache.block, max(e.plan.bucket.tokens for _, e in entries)
    head["vocabulary"], head["least_context"] = model.vocabulary, least
    head["most_context"], head["context"], head["slots"] = model.arch.context, size.context, size.slots
    head["pooling"], head["whole"], head["width"] = model.pooling, model.whole, model.width
    packed = [part for number, entry in entries for part in _pack_entry(number, entry)]
    return section(head, [bytes(names), weights, states, groups, *packed])


def _pack_entry(variant: int, entry: Entry) -> Iterator[Array | bytes]:
    plan, segment = entry.plan, entry.segment
    row, sizes = np.zeros((), PLAN_ENTRY), _sizes_of(segment)
    row["variant"], row["tokens"], row["rows"] = variant, plan.bucket.tokens, plan.bucket.rows
    row["what"] = entry.kind.output
    row["arena"], row["out"], row["output"] = sizes["arena"], sizes["out"], plan.output.offset
    fields = np.zeros(len(entry.fields), PLAN_FIELD)
    for field, (what, group, dims) in zip(fields, entry.fields, strict=True):
        field["unit"], field["kinds"], field["what"], field["group"] = dims.unit, dims.kinds, what, group
    (consts,) = plan.consts.values()
    parts: tuple[Array | bytes, ...] = (
        fields,
        segment.step_table,
        entry.views,
        segment.op_table,
        segment.args,
        consts,
    )
    for name, part in zip(("fields", "steps", "views", "ops", "args", "consts"), parts, strict=True):
        row[f"n_{name}"] = len(part)
    yield row
    yield from parts


def _only_segment(plan: Plan) -> Segment:
    """The plan's one segment. ModelError for a plan of several, or of other buffers."""
    (segment, *more) = plan.segments
    sizes = _sizes_of(segment)
    if more or segment.transfers or sizes.get("link") or any(name not in BUFFERS for name in sizes):
        raise ModelError("the plan has several segments, or buffers that the C library has not")
    return segment


def _sizes_of(segment: Segment) -> dict[str, int]:
    """Bytes of the buffers that do not follow the cache."""
    return {b.name: b.size for b in segment.buffers if b.name not in ("state", "step")}


def _is_weight(segment: Segment, view: Array) -> bool:
    return segment.buffers[int(view["buffer"])].name.startswith("weights")


def _within(starts: Sequence[int], view: Array) -> tuple[int, int]:
    """The number of the range that holds a view, and its offset in that. starts: of ranges without gaps."""
    offset = int(view["offset"])
    number = max((start, i) for i, start in enumerate(starts) if start <= offset)[1]
    return number, offset - starts[number]


def _field(name: str, windows: Sequence[int]) -> tuple[int, int]:
    """The number of an input among FIELDS, and of its layer group."""
    what, _, window = name.partition(".")
    if what not in FIELDS:
        raise ModelError(f"input {name}: the C library fills {', '.join(FIELDS)} alone")
    width = RECURRENT if window == "recurrent" else int(window or 0)
    return FIELDS.index(what), windows.index(width) if what == "table" else 0


def _sizes(type: Type) -> list[int]:
    return [d for d in type.shape if not isinstance(d, Dim)]


def _four(given: Sequence[int], rest: int = 0) -> tuple[int, ...]:
    """Four numbers: these, then `rest`."""
    return (*given, *(rest,) * (4 - len(given)))
