"""Self-test of a device: a small computation, compared with the ops' definitions.

It has one attention layer and one product, random 8-bit weights, and five tokens. `satchel doctor` runs it on
every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from satchel.errors import DeviceError, ModelError
from satchel.quant import FORMATS
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.rotate import rotate
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import Device
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import LEAVES, ROWS, TOKENS, Array, Graph, Node, Roots, Type, rewrite, toposort
from satchel.runtime.layers.arch import Cache, Forward
from satchel.runtime.ops import evaluate
from satchel.runtime.weights.resident import Uploaded

WIDTH, HEADS, KV_HEADS, VOCAB, FORMAT = 64, 2, 1, 96, "q8_0"
IDS = (5, 17, 90, 2, 33)
CACHE = Cache(context=32, slots=1)
BOUND = (
    1e-4  # share of the squared logits that may differ: a sum's order gives 1e-12, a rounded activation 1e-6
)


def forward(cache: Cache = CACHE) -> Forward:
    """The graph of the self-test."""
    g, dim = Graph(), WIDTH // HEADS

    def weight(name: str, rows: int) -> Node:
        return g.node("weight", (), Type((rows, WIDTH), FORMAT), name)

    ids, pos, slot = (g.node("input", (), Type((TOKENS,), "i32"), n) for n in ("ids", "pos", "slot"))
    rows = g.node("input", (), Type((ROWS,), "i32"), "rows")
    table = g.node("input", (), Type((cache.slots, cache.table_width), "i32"), "table")
    shape = (cache.pool, KV_HEADS, cache.block, dim)
    k, v = (
        g.node("state", (), Type(shape, format), name)
        for name, format in (("keys", cache.keys), ("values", cache.values))
    )
    norm = g.const(np.linspace(0.5, 1.5, WIDTH, dtype=np.float32), "f32", "norm")
    freq = g.const((1e4 ** -(np.arange(dim // 2) * 2 / dim)).astype(np.float32), "f32", "freq")
    x = ops.get_rows(weight("embed", VOCAB), ids)
    h = ops.rms_norm(x, norm, eps=1e-5)
    q, key, value = (
        ops.reshape(ops.linear(h, weight(name, heads * dim)), shape=(heads, dim))
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    )
    q, key = (ops.rope(n, ops.rope_table(pos, freq), style=1) for n in (q, key))
    k, v = (ops.kv_write(state, n, slot, pos, table) for state, n in ((k, key), (v, value)))
    a = ops.attention(q, k, v, slot, pos, table, scale=dim**-0.5)
    x = ops.add(x, ops.linear(a, weight("out", WIDTH)))
    logits = ops.linear(ops.gather_rows(ops.swiglu(x, x), rows), weight("embed", VOCAB))
    return Forward(logits, logits, (k, v, logits))


def cache_types(device: Device) -> tuple[str, ...]:
    """KV cache formats, of keys and of values, that the device supports; nothing is computed."""
    target = DeviceTarget(device)
    return tuple(t for t in CACHE_TYPES if not any(map(target.refusal, _cached(t))))


def _cached(kind: str) -> list[Node]:
    """The self-test's steps on a cache of this type."""
    made = forward(replace(CACHE, keys=kind, values=kind))
    steps = toposort(rotate((made.tokens,), Context((), lambda node: "")))
    return [node for node in steps if node.op in ("kv_write", "attention", "hadamard")]


def weights() -> dict[str, Array]:
    """Values of the graph's weights, the same each time."""
    rng, encode = np.random.default_rng(1), FORMATS[FORMAT].encode
    if encode is None:
        raise TypeError(f"{FORMAT} has no encoder")
    dim = WIDTH // HEADS
    sizes = {"embed": VOCAB, "q": WIDTH, "k": KV_HEADS * dim, "v": KV_HEADS * dim, "out": WIDTH}
    return {n: encode(rng.normal(0, 0.3, (r, WIDTH)).astype(np.float32), None) for n, r in sizes.items()}


def expected(roots: Roots, values: dict[str, Array]) -> Array:
    """Logits (5, VOCAB) by the definitions of the graph that the device was given."""
    n, dim = len(IDS), WIDTH // HEADS
    state = np.zeros((CACHE.pool, KV_HEADS, CACHE.block, dim), FORMATS[CACHE.keys].dtype)
    steps = np.arange(n, dtype=np.int32)
    inputs = {"ids": np.array(IDS, np.int32), "pos": steps, "slot": 0 * steps, "rows": steps}
    table = np.zeros((CACHE.slots, CACHE.table_width), np.int32)
    roots = rewrite(roots[:1], lambda node, src: src[0] if node.op == "copy" else None)
    return evaluate(roots, {**values, **inputs, "keys": state, "values": state, "table": table})[0]


def lacking(device: Device) -> tuple[str, ...]:
    """Ops of the self-test that the device does not support."""
    target = DeviceTarget(device)
    steps = [node for node in toposort(forward().roots("tokens")) if node.op not in LEAVES]
    return tuple(sorted({n.op for n in steps if not ops.OPS[n.op].view and target.refusal(n)}))


def selftest(device: Device, behind: Sequence[Device] = ()) -> float:
    """Runs the self-test; gives the squared error of the logits over their square. behind: devices for the
    ops that it lacks.

    Closes all devices. Raises DeviceError if the error exceeds BOUND.
    """
    graph, values = forward(), weights()
    engine = Engine(graph, CACHE, [device, *behind], Uploaded(values))
    try:
        first, *rest = IDS
        logits = np.concatenate([engine.logits([BatchEntry(0, ids)]) for ids in ([first], rest)])
        wanted = expected(engine.optimized("logits").roots, values)
    except ModelError:
        raise DeviceError(f"{device.name} computes wrong: its logits are NaN or infinite") from None
    finally:
        engine.close()
    share = float(np.square(logits - wanted).sum() / np.square(wanted).sum())
    if not share <= BOUND:
        raise DeviceError(
            f"{device.name} computes wrong: the logits' relative squared error is {share:.1e}, above {BOUND}"
        )
    return share
