"""Importance data (imatrix) of a text: for the input of every weight matrix, the sum of squares per column
and, where memory allows, of products of all pairs of columns.

The inputs become roots of the graph, so a step leaves them in its output buffer; nothing is computed twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.errors.threads import SafeThreadPool
from satchel.formats.imatrix import Sums
from satchel.quant import FORMATS
from satchel.quant.calibration.gptq import one_blas_thread
from satchel.quant.recipes import is_quantizable
from satchel.runtime.api.model import Model
from satchel.runtime.compiler.memory import storage
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import MAX_TOKENS, Engine
from satchel.runtime.engine.program import Program
from satchel.runtime.graph import LEAVES, Array, Dim, Node, toposort
from satchel.runtime.layers.arch import Forward
from satchel.runtime.ops.op import op_of
from satchel.runtime.placement.sizing import cache_of, size
from satchel.runtime.tasks.perplexity import opened
from satchel.runtime.weights.packing import own_bytes

Windows = npt.NDArray[np.int32]
STEP_BYTES = 256 << 20  # most bytes of inputs per step, which limits the batch
Progress = Callable[[int, int], None]  # windows done, windows in all


@dataclass(frozen=True, slots=True)
class Tap:
    """One input that products share."""

    weights: tuple[str, ...]  # their names
    node: Node  # the input (T, K) or (T, k, K)
    ids: Node | None  # expert ids (T, k) of each token, if the weights are stacks
    count: int  # number of experts; 0: the weights are not stacks

    @property
    def width(self) -> int:
        return self.node.width


def find_taps(forward: Forward) -> list[Tap]:
    """The distinct inputs of a model's products, in order."""
    names: dict[tuple[Node, Node | None], list[Node]] = {}
    for node in toposort((forward.logits,)):
        made_by = op_of(node)
        if made_by is None or not made_by.product or node.src[1].op != "weight":
            continue
        if made_by.experts or len(node.src[1].shape) == 2:
            names.setdefault((node.src[0], node.src[-1] if made_by.experts else None), []).append(node.src[1])
    found = []
    for (x, ids), weights in names.items():
        first = weights[0].shape[0]
        count = 0 if ids is None or isinstance(first, Dim) else first
        found.append(Tap(tuple(w.name for w in weights), x, ids, count))
    return found


def tapped(forward: Forward, taps: list[Tap]) -> Forward:
    """The same model without its head; its steps output the taps' values."""
    nodes = _nodes(taps)
    return Forward(forward.tokens, nodes[-1], (*nodes[:-1], *forward.after))


class Observed(Model):
    """A model that outputs the inputs of its products instead of logits."""

    taps: list[Tap]

    def _make_engine(self) -> None:
        o = self.options
        free = self.device.info().memory_free - own_bytes(self.gguf, self.device, o.repack)
        self.arch, said = size(self.gguf, cache_of(o), free)
        self.notes += said
        self.cache = self.arch.cache
        forward = self.arch.build()
        self.taps = find_taps(forward)
        batch = max(16, min(o.batch or MAX_TOKENS, STEP_BYTES // max(1, sum(map(_row_bytes, self.taps)))))
        self.engine = Engine(
            tapped(forward, self.taps),
            self.cache,
            [self.device],
            self._resident(),
            batch=batch,
            source=str(self.path),
        )


def _row_bytes(tap: Tap) -> int:
    each = tap.node.type.shape[1] if len(tap.node.shape) == 3 else 1
    return 4 * tap.width * (each if isinstance(each, int) else 1)


def inputs(model: Observed, ids: list[int]) -> Iterator[tuple[Tap, Array, Array | None]]:
    """Computes tokens after those of slot 0; gives each tap with its input (T, K) or (T, k, K) and the expert
    ids (T, k).
    """
    engine = model.engine
    engine.logits([BatchEntry(0, ids)])
    program = engine.program(len(ids), len(ids), "logits")
    values = dict(zip(_nodes(model.taps), _outputs(engine, program, len(ids)), strict=True))
    for tap in model.taps:
        yield tap, values[tap.node], None if tap.ids is None else values[tap.ids]


def _nodes(taps: list[Tap]) -> list[Node]:
    """Distinct values to read; the one in the place of the logits comes last."""
    return list(dict.fromkeys(n for t in taps for n in (t.ids, t.node) if n is not None))


def _outputs(engine: Engine, program: Program, tokens: int) -> Iterator[Array]:
    """Values of the roots of tapped(), in the order of _nodes."""
    optimized = engine.optimized("logits", program.plan.bucket.tokens)
    roots = (r for r in optimized.roots if storage(r).op not in LEAVES)
    logits, *others = zip(roots, program.plan.outputs, strict=True)
    for root, output in (*others, logits):
        if root.op == "cols":
            raise ModelError(
                f"{root.name}: the input of a product is a view of columns, which cannot be read"
            )
        shape = (tokens, *(d for d in root.shape[1:] if isinstance(d, int)))
        out = np.empty(shape, FORMATS[root.type.format].dtype)
        yield program.read(out, output.offset)


class Collector:
    """Sums over the taps' values. wanted: indices of the taps with pair products."""

    def __init__(self, taps: list[Tap], wanted: frozenset[int]) -> None:
        self.sums = []
        for i, tap in enumerate(taps):
            parts = max(1, tap.count)
            products = np.zeros((tap.width, tap.width), np.float32) if i in wanted else None
            squares = np.zeros((parts, tap.width), np.float64)
            self.sums.append(Sums(tap.weights, squares, np.zeros(parts), products))

    def add(self, number: int, x: Array, ids: Array | None) -> None:
        """Input x (T, K), or (T, k, K), of tap `number`; ids: its experts (T, k)."""
        sums = self.sums[number]
        if not np.isfinite(x).all():
            raise ModelError(
                f"{sums.weights[0]}: its input is NaN or infinite on this text; the model is damaged"
            )
        if sums.products is not None:
            sums.products += x.T @ x
        if ids is None:
            sums.squares[0] += np.square(x, dtype=np.float64).sum(axis=0)
            sums.rows[0] += len(x)
            return
        rows = x if x.ndim == 3 else np.broadcast_to(x[:, None], (*ids.shape, x.shape[-1]))
        for expert in np.unique(ids):
            mine = rows[ids == expert]
            sums.squares[expert] += np.square(mine, dtype=np.float64).sum(axis=0)
            sums.rows[expert] += len(mine)


def choose_products(taps: list[Tap], limit: int) -> tuple[frozenset[int], list[str]]:
    """Taps whose pair products fit into `limit` bytes, the small ones first, and for each that does not fit
    the name of one weight. An input per expert never gets pair products: too few tokens reach each expert.
    """
    useful = [i for i, t in enumerate(taps) if len(t.node.shape) == 2 and any(map(_is_matrix, t.weights))]
    left, chosen, refused = limit, set(), []
    for number in sorted(useful, key=lambda i: taps[i].width):
        need = 4 * taps[number].width ** 2
        if need <= left:
            left -= need
            chosen.add(number)
        else:
            refused.append(taps[number].weights[0])
    return frozenset(chosen), refused


def _is_matrix(name: str) -> bool:
    return is_quantizable(name, (2, 2))


def collect(
    model: Observed,
    cut: Windows,
    bos: int | None,
    wanted: frozenset[int],
    progress: Progress | None = None,
) -> list[Sums]:
    """Runs the windows (n, context), each from an empty cache. bos: first token of each. wanted: from
    choose_products.
    """
    collector, numbers = Collector(model.taps, wanted), range(len(model.taps))
    threads = model.options.threads or os.cpu_count() or 1
    with one_blas_thread(), SafeThreadPool(threads, "satchel-sum") as pool:
        for done, window in enumerate(opened(model.engine, cut, bos)):
            model.engine.rewind(0, 0)
            for at in range(0, len(window), model.engine.batch):
                _, x, experts = zip(
                    *inputs(model, window[at : at + model.engine.batch].tolist()), strict=True
                )
                deque(pool.map(collector.add, numbers, x, experts), maxlen=0)  # re-raises errors
            if progress:
                progress(done + 1, len(cut))
    return collector.sums
