"""Runs each step of a plan alone and compares it with its numpy definition; stops at the first that is out of
bound, by name.

A step gets the results of the definitions before it, never the device's, so the first name is the culprit.
Operands are laid out as in the real plan: views of wider rows keep their stride and offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from satchel.errors import DeviceError, RequestError
from satchel.quant import FORMATS
from satchel.runtime.compiler.fuse_steps import fuse_steps
from satchel.runtime.compiler.lower import USAGE, probe
from satchel.runtime.compiler.memory import window
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.device.device import SAMPLING, WEIGHT, Buffer, Device, pointer
from satchel.runtime.graph import LEAVES, Array, Node, Type, leaves, toposort
from satchel.runtime.kv import Pages
from satchel.runtime.layers.arch import SEGMENT_IDS, Cache, windows_of
from satchel.runtime.ops import OPS, run
from satchel.runtime.plan import COUNTS_BYTES, Bucket, BufferSpec, Segment
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.sampling.record import record
from satchel.runtime.weights.packing import PackedWeight
from satchel.runtime.weights.residency import PackedOn

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model

HALVES = ("f16", "bf16")
SUM, ROUNDED_SUM, CODES = 1e-8, 1e-5, 1e-5  # normalized squared errors
Raw = Callable[[str], Array]  # a weight's values in its own format, by name
Values = dict[Node, Array]


@dataclass(frozen=True, slots=True)
class StepReport:
    """Comparison of one step with its definition."""

    number: int
    label: str
    op: str
    device: str
    tokens: int
    nmse: float  # squared error over the definition's square
    bound: float  # largest accepted nmse


def bound_of(node: Node) -> float:
    """Error bound of a node: sums differ by their order, and a code of a quantized result may round the other
    way at a tie.
    """
    made_by = OPS[node.op]
    if made_by.exact:
        return 0.0
    if made_by.update or "format" in dict(node.args):
        return CODES
    # attention may multiply in the f16 of the cache; a number between two of its may be rounded either way
    halves = any(cache.type.format in HALVES for cache in node.src[made_by.cache])
    return ROUNDED_SUM if halves else SUM


def check_steps(model: Model, ids: Sequence[int]) -> list[StepReport]:
    """Checks a loaded model: a step over all tokens but the last, then one that decodes the last. The model's
    own cache is not changed. Raises DeviceError with the name of the first step that is out of bound.
    """
    devices = {device.name: device for device in model.devices}
    engine = model.engine
    if engine.groups:
        raise RequestError(
            f"the check runs single steps, which {', '.join(engine.groups)}, a group, cannot: take one device"
        )

    def raw(name: str) -> Array:
        own = engine.residency.value(name)
        return model.gguf.array(name) if own is None else own

    return check_graph(engine.optimized("tokens"), devices, raw, model.cache, ids, engine.packed)


def check_graph(
    optimized: Optimized,
    devices: Mapping[str, Device],
    raw: Raw,
    cache: Cache,
    ids: Sequence[int],
    packed: PackedOn = MappingProxyType({}),
) -> list[StepReport]:
    """As check_steps, for any optimized graph that gives tokens. packed: weights that each device packs."""
    if len(ids) < 2:
        raise RequestError(f"the check needs two tokens or more, the text has {len(ids)}: give a longer one")
    pages = Pages(cache, windows_of(optimized.roots))
    pages.reserve(0, len(ids))
    states = {
        n.name: np.zeros(stored(n.type, Bucket(1, 1)), FORMATS[n.type.format].dtype)
        for n in leaves(optimized.roots, "state")
    }
    reports: list[StepReport] = []
    for start, stop, sampling in ((0, len(ids) - 1, Sampling(seed=1)), (len(ids) - 1, len(ids), GREEDY)):
        given = {**states, **inputs(ids, start, stop, sampling, pages)}
        fused = fuse_steps(optimized, Bucket(stop - start, 1))
        reports += _check(fused, devices, raw, given, stop - start, states, packed)
    return reports


def inputs(ids: Sequence[int], start: int, stop: int, sampling: Sampling, pages: Pages) -> dict[str, Array]:
    """The step block's fields for slot 0 computing ids[start:stop] and sampling one token."""
    n = stop - start
    pages.advance(0, start, stop)
    return {
        "ids": np.array(ids[start:stop], np.int32),
        "pos": np.arange(start, stop, dtype=np.int32),
        "slot": np.zeros(n, np.int32),
        SEGMENT_IDS: np.zeros(n, np.int32),
        "rows": np.array([n - 1], np.int32),
        "params": np.array([record(sampling)], SAMPLING),
        **pages.tables,
    }


def _check(
    optimized: Optimized,
    devices: Mapping[str, Device],
    raw: Raw,
    given: Mapping[str, Array],
    tokens: int,
    states: dict[str, Array],
    packed: PackedOn,
) -> Iterator[StepReport]:
    """Reports of one step of the model; leaves `states` as the step does."""
    known: Values = {}
    number = 0
    for node in toposort(optimized.roots):
        if node.op in LEAVES:
            known[node] = leaf(node, raw, given)
            continue
        if node.op == "copy":
            known[node] = known[node.src[0]]
            continue
        new = run(node, known)
        if not OPS[node.op].view:
            name = optimized.assignment.device[node]
            yield compare(node, number, devices[name], known, new, tokens, packed.get(name, {}))
            number += 1
        known.update(new)
        for written in OPS[node.op].written(node):
            if written.op == "state":
                states[written.name] = new.get(written, new[node])


def leaf(node: Node, raw: Raw, given: Mapping[str, Array]) -> Array:
    if node.op == "const":
        value: Array = node.arg("value").array
        return value
    return raw(node.name) if node.op == "weight" else given[node.name]


def compare(
    node: Node,
    number: int,
    device: Device,
    known: Values,
    new: Values,
    tokens: int,
    packed: Mapping[str, PackedWeight],
) -> StepReport:
    """Compares all that one step writes, `new`, with what the device makes of the sources' values, `known`.
    Raises DeviceError if its error exceeds the bound.
    """
    got = run_alone(node, device, known, tokens, packed)
    bound = bound_of(node)
    error = max(nmse(decoded(got[n], n.type), decoded(value, n.type)) for n, value in new.items())
    if not error <= bound:
        where = f"step {number} ({node.name}: {node.op} on {device.name}, {tokens} tokens)"
        formats = ", ".join(str(s.type) for s in node.src)
        raise DeviceError(
            f"{where}: nmse {error:.2e} from its definition, at most {bound:.0e}; inputs {formats}"
        )
    return StepReport(number, node.name, node.op, device.name, tokens, error, bound)


def decoded(array: Array, type: Type) -> Array:
    """Values as float64."""
    return FORMATS[type.format].decode(array).astype(np.float64)


def nmse(got: Array, want: Array) -> float:
    """Squared error over the square of `want`; infinite if only one of them is NaN or infinite."""
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    finite = np.isfinite(want)
    error = float(np.square(got[finite] - want[finite]).sum())
    return error / (float(np.square(want[finite]).sum()) or 1.0)


def stored(type: Type, bucket: Bucket) -> tuple[int, ...]:
    """Shape of a value's array in its own format, whose last dimension counts blocks."""
    shape = [bucket.size(d) for d in type.shape]
    return (*shape[:-1], shape[-1] // FORMATS[type.format].block)


def run_alone(
    node: Node, device: Device, known: Values, tokens: int, packed: Mapping[str, PackedWeight]
) -> Values:
    """What one step writes on the device, with each operand in a buffer of its own: its result, and the
    sources that it writes beside it.
    """
    bucket = Bucket(tokens, 1)
    mine = {s.name: packed[s.name] for s in node.src if s.op == "weight" and s.name in packed}
    segment = alone(node, device, bucket, mine)
    step = pointer(block := bytearray(COUNTS_BYTES))
    np.frombuffer(block, np.int32)[:2] = tokens, 1
    operands = [node.src[0] if OPS[node.op].alias else node, *node.src]
    buffers: list[Buffer] = []
    try:
        for described, operand in zip(segment.buffers, operands, strict=False):
            value = known[window(operand)[0]] if operand is not node else None
            found = mine.get(operand.name) if operand.op == "weight" else None
            buffers.append(place(described, device, value, found))
        buffers.append(device.alloc(COUNTS_BYTES, USAGE["step"]))
        program = device.compile(segment, buffers)
        try:
            program.run(step, COUNTS_BYTES)
            program.wait()
            written: Values = {}
            for i, one in enumerate((node, *node.src)):
                if one is node or (OPS[node.op].update and one in OPS[node.op].written(node)):
                    written[one] = np.empty(stored(one.type, bucket), FORMATS[one.type.format].dtype)
                    buffers[int(segment.view_table[i]["buffer"])].read_into(0, written[one])
        finally:
            program.close()
    finally:
        for buffer in buffers:
            buffer.close()
    return written


def place(described: BufferSpec, device: Device, value: Array | None, packed: PackedWeight | None) -> Buffer:
    """A buffer with the value's bytes; a weight is packed, or used in place, if the device does so."""
    if value is None:
        return device.alloc(described.size, described.usage)
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    whole = flat.nbytes >= described.size  # a buffer has at least 64 bytes
    if described.usage == WEIGHT and not packed and device.can_wrap and whole and flat.ctypes.data % 32 == 0:
        return device.wrap(flat)
    buffer = device.alloc(described.size, described.usage)
    if packed:
        buffer.pack(0, packed.format, (packed.stack, packed.rows, packed.columns), flat)
    else:
        buffer.write(0, flat)
    return buffer


def alone(node: Node, device: Device, bucket: Bucket, packed: Mapping[str, PackedWeight]) -> Segment:
    """The plan of one step at this bucket: operands in the order of its views, then the step block."""
    asked = probe(node, device.name, {name: found.size for name, found in packed.items()}, bucket)
    described = []
    for i, operand in enumerate((node, *node.src)):
        usage = {"weight": WEIGHT, "const": USAGE["const"]}.get(window(operand)[0].op, USAGE["state"])
        usage = USAGE["out"] if i == 0 and not OPS[node.op].alias else usage
        described.append(BufferSpec(f"operand.{i}", usage, max(64, asked.buffers[i].size)))
    described.append(BufferSpec("step", USAGE["step"], COUNTS_BYTES))
    return replace(asked, buffers=tuple(described))
