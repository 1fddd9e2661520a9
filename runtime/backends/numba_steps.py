"""What each step of a plan does on the numba backend: the op's definition on views of memory, but for the few
that it does too slowly (products, attention) or by copying what must change in place (the caches).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from satchel.quant import BY_ID, Format
from satchel.quant.cache import encode_cache
from satchel.runtime import ops
from satchel.runtime.backends.numba_kernels import PANEL, attend, multiply, panels
from satchel.runtime.device.device import SAMPLING
from satchel.runtime.graph import Array

CHUNK = 16  # panels that are decoded at a time where a weight is not kept


@dataclass(slots=True)
class Workers:
    """Threads that share a step, and how many bytes of decoded weights may still be kept."""

    pool: ThreadPoolExecutor
    threads: int
    spare: int

    def split(self, work: Callable[[int, int], None], n: int) -> None:
        """Runs work(first, last) over n independent parts, some on each thread."""
        count = min(n, self.threads)
        if count <= 1:
            work(0, n)
            return
        edges = [n * i // count for i in range(count + 1)]
        for done in [self.pool.submit(work, a, b) for a, b in itertools.pairwise(edges)]:
            done.result()


@dataclass(slots=True)
class NumbaMemory:
    """A buffer: its bytes, and its weights that were decoded into panels, by place."""

    data: Array
    decoded: dict[tuple[object, ...], Array] = field(default_factory=dict)

    def forget(self, workers: Workers) -> None:
        """The bytes change or go: what was decoded from them is dropped."""
        workers.spare += sum(w.nbytes for w in self.decoded.values())
        self.decoded.clear()


@dataclass(frozen=True, slots=True)
class NumbaView:
    """A tensor in a buffer; where count >= 0, a step's counts[count] replaces the first of `shape`."""

    memory: NumbaMemory
    format: Format
    offset: int
    stride: int
    count: int
    shape: tuple[int, ...]

    def array(self, counts: Array) -> Array:
        """The blocks as they lie in memory, of as many rows as the step has."""
        fmt, (first, *inner) = self.format, self.shape
        if self.count >= 0:
            if not 0 <= counts[self.count] <= first:
                raise ValueError(
                    f"count {self.count} is {counts[self.count]}, the plan holds at most {first}"
                )
            first = int(counts[self.count])
        if inner:
            inner[-1] //= fmt.block
        strides = [fmt.block_bytes]
        for size in reversed(inner[1:]):
            strides.insert(0, strides[0] * size)
        strides = [self.stride, *strides] if inner else [self.stride]
        return np.ndarray((first, *inner), fmt.dtype, self.memory.data, self.offset, strides)

    def decoded(self, counts: Array) -> Array:
        """Float32 values, dense."""
        return np.ascontiguousarray(self.format.decode(self.array(counts)), np.float32)


@dataclass(frozen=True, slots=True)
class Operands:
    """What one step works on."""

    out: NumbaView
    inputs: tuple[NumbaView, ...]
    args: Mapping[str, Any]
    workers: Workers


Work = Callable[[Operands, Array], None]


def defined(name: str) -> Work:
    """The op's own definition, its result copied to where the plan wants it."""
    define = ops.OPS[name].define
    wants_format = "format" in ops.OPS[name].arguments

    def run(o: Operands, counts: Array) -> None:
        args = {**o.args, "format": o.out.format.name} if wants_format else o.args
        result = define(*(v.array(counts) for v in o.inputs), **args)
        o.out.array(counts)[...] = result

    return run


def linear(o: Operands, counts: Array) -> None:
    x, *weights = o.inputs
    a, at, out = x.decoded(counts), 0, o.out.array(counts)
    for w in weights:
        n = w.shape[0]
        out[:, at : at + n] = _product(a, w, o.workers)
        at += n


def linear_add(o: Operands, counts: Array) -> None:
    x, w, r = o.inputs
    o.out.array(counts)[...] = _product(x.decoded(counts), w, o.workers) + r.array(counts)


def get_rows(o: Operands, counts: Array) -> None:
    table, ids = o.inputs
    o.out.array(counts)[...] = table.format.decode(table.array(counts)[ids.array(counts)])


def kv_write(o: Operands, counts: Array) -> None:
    cache, x, slot, pos, table = (v.array(counts) for v in o.inputs)
    block = cache.shape[2]
    cache[table[slot, pos // block], :, pos % block] = encode_cache(x, o.inputs[0].format)


def tokens_put(o: Operands, counts: Array) -> None:
    ring, ids, slot, pos = (v.array(counts) for v in o.inputs)
    known = ids >= 0
    ring[slot[known], (pos[known] + o.args["shift"]) % ring.shape[1]] = ids[known]


def attention(o: Operands, counts: Array) -> None:
    if len(o.inputs) > 6 or o.args["value"] or o.args["chunk"] or not o.args["causal"]:
        defined("attention")(o, counts)
        return
    queries, slot, pos, table = (o.inputs[i].array(counts) for i in (0, 3, 4, 5))
    out, heads = o.out.array(counts), queries.shape[1]
    for s in np.unique(slot):
        rows = np.flatnonzero(slot == s)
        q, at = np.ascontiguousarray(queries[rows]), pos[rows].astype(np.int64)
        first = int(at.min()) + 1 - o.args["window"] if o.args["window"] else 0
        keys, values = (_past(o.inputs[i], table[s], first, int(at.max()) + 1, counts) for i in (1, 2))
        result = np.empty((len(rows), heads, values.shape[2]), np.float32)

        def part(first: int, last: int, known: tuple[Array, ...] = (q, keys, values, at, result)) -> None:
            scale, cap = np.float32(o.args["scale"]), np.float32(o.args["cap"])
            attend(*known[:4], scale, o.args["window"], cap, known[4], first, last)

        o.workers.split(part, len(rows))
        out[rows] = result.reshape(len(rows), -1)


def _records(params: Array) -> Array:
    """Rows of the step block's params as hal_sampling."""
    return np.ascontiguousarray(params).view(SAMPLING)[:, 0]


def sample(o: Operands, counts: Array) -> None:
    *inputs, params = (v.array(counts) for v in o.inputs)
    o.out.array(counts)[...] = ops.sample.define(*inputs, _records(params))


def sample_masked(o: Operands, counts: Array) -> None:
    *inputs, params, bitmask, edits = (v.array(counts) for v in o.inputs)
    drawn = ops.sample_masked.define(*inputs, _records(params), bitmask, edits)
    o.out.array(counts)[...] = drawn


def logprobs(o: Operands, counts: Array) -> None:
    logits, ids, *params = (v.array(counts) for v in o.inputs)
    asked = [_records(p) for p in params]
    o.out.array(counts)[...] = ops.logprobs.define(logits, ids, *asked, **o.args)


OWN: dict[str, Work] = {
    f.__name__: f
    for f in (linear, linear_add, get_rows, kv_write, tokens_put, attention, sample, sample_masked, logprobs)
}


def work_of(name: str) -> Work | None:
    """How this backend does an op, or None where it has it not: fused ops are left to their parts."""
    if name not in ops.OPS or ops.OPS[name].view:
        return None
    return OWN.get(name) or (None if ops.OPS[name].parts else defined(name))


def view_of(raw: Any, memory: Sequence[NumbaMemory]) -> NumbaView:
    """A hal_view over these buffers, checked against their sizes."""
    if raw.format not in BY_ID:
        raise TypeError(f"format {raw.format} is not known")
    shape = tuple(raw.shape[0 : raw.ndim])
    view = NumbaView(memory[raw.buffer], BY_ID[raw.format], raw.offset, raw.stride, raw.count, shape)
    row = view.format.row_bytes(int(np.prod(shape[1:]))) if len(shape) > 1 else view.format.block_bytes
    if shape[0] and raw.offset + (shape[0] - 1) * raw.stride + row > len(view.memory.data):
        raise ValueError(f"a view of {shape} {view.format.name} does not fit its buffer")
    return view


def _product(x: Array, w: NumbaView, workers: Workers) -> Array:
    """x (T, K) @ w.T: (T, N)."""
    n, kept = w.shape[0], _kept(w, workers)
    out = np.empty((len(x), -(-n // PANEL) * PANEL), np.float32)
    if kept is not None:
        workers.split(lambda first, last: multiply(x, kept, out, first, last), len(kept))
        return out[:, :n]

    def decode_too(first: int, last: int) -> None:
        for at in range(first, last, CHUNK):
            end = min(last, at + CHUNK)
            few = panels(_rows(w, at * PANEL, min(n, end * PANEL)))
            result = np.empty((len(x), len(few) * PANEL), np.float32)
            multiply(x, few, result, 0, len(few))
            out[:, at * PANEL : end * PANEL] = result

    workers.split(decode_too, -(-n // PANEL))
    return out[:, :n]


def _kept(w: NumbaView, workers: Workers) -> Array | None:
    """The whole weight in panels, where there is memory to keep it; decoded at first use."""
    key = (w.offset, w.shape, w.format.name)
    if key not in w.memory.decoded:
        if w.shape[0] * w.shape[1] * 4 > workers.spare:
            return None
        w.memory.decoded[key] = panels(_rows(w, 0, w.shape[0]))
        workers.spare -= w.memory.decoded[key].nbytes
    return w.memory.decoded[key]


def _rows(w: NumbaView, first: int, last: int) -> Array:
    """Rows first..last of a weight as float32 (last - first, K)."""
    return w.format.decode(w.array(np.zeros(8, np.int32))[first:last])


def _past(cache: NumbaView, blocks: Array, first: int, n: int, counts: Array) -> Array:
    """The first n positions of a slot out of a paged cache, as float32 (KV, n, D). What stands before `first`
    is not looked at, and is 0 but for the rest of a block.
    """
    size, begin = cache.shape[2], max(0, first) // cache.shape[2]
    found = np.zeros((-(-n // size), *cache.shape[1:]), np.float32)
    found[begin:] = cache.format.decode(cache.array(counts)[blocks[begin : -(-n // size)]])
    return np.ascontiguousarray(found.swapaxes(0, 1).reshape(found.shape[1], -1, found.shape[3])[:, :n])
