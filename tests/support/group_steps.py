"""Runs one collective on a group of devices: a plan of one step for each member."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from one_step import Case, define, plan_of

from satchel import cext
from satchel.quant import FORMATS
from satchel.runtime.device.device import Buffer
from satchel.runtime.device.group import GroupDevice, GroupExec
from satchel.runtime.graph import Array, own_rows
from satchel.runtime.ops import OPS

COUNTS = 8
TOKENS, OWN = 0, 2  # indices of counts


class GroupStep:
    """A collective that is compiled for a group, and its buffers: case i is member i's."""

    def __init__(
        self,
        group: GroupDevice,
        op: str,
        cases: Sequence[Case],
        counted: bool = False,
        counts: Sequence[int] = (),
    ) -> None:
        """counted: the rows of each step are its first count, up to those of the cases. counts: the index of
        the count that gives the rows of the result and of each input; -1: none.
        """
        plans = [plan_of(op, one, 0) for one in cases]
        self.cases, self.buffers = cases, list[list[Buffer]]()
        for member, (segment, data) in zip(group.members, plans, strict=True):
            own = [member.alloc(b.size, b.usage) for b in segment.buffers]
            for buffer, raw in zip(own, data, strict=True):
                buffer.write(0, raw)
            self.buffers.append(own)
            for i, (array, _) in enumerate(cases[0].inputs, 1):
                if counted and array.ndim == 2:
                    segment.view_table[i]["count"] = 0
            segment.view_table[0]["count"] = 0 if counted else -1
            if counts:
                segment.view_table["count"] = counts
        self.exec: GroupExec = group.compile_group([segment for segment, _ in plans], self.buffers)

    def write(self, inputs: Sequence[Array]) -> None:
        """New values of each member's first input."""
        for own, array in zip(self.buffers, inputs, strict=True):
            own[1].write(0, np.ascontiguousarray(array).view(np.uint8).reshape(-1))

    def run(self, rows: int = 0) -> None:
        block = cext.ffi.new("uint8_t[]", 4 * COUNTS)
        cext.ffi.cast("int32_t *", block)[0] = rows
        self.exec.run(block, 4 * COUNTS)

    def results(self) -> list[Array]:
        """What each member has, once the last run is done."""
        self.exec.wait()
        found = []
        for own, one in zip(self.buffers, self.cases, strict=True):
            raw = np.zeros(own[-1].size, np.uint8)
            own[-1].read_into(0, raw)
            found.append(raw.view(FORMATS[one.format].dtype).reshape(one.shape))
        return found

    def close(self) -> None:
        self.exec.close()
        for own in self.buffers:
            for buffer in own:
                buffer.close()


def run_on_all(group: GroupDevice, op: str, cases: Sequence[Case]) -> list[Array]:
    """The result on each member."""
    step = GroupStep(group, op, cases)
    step.run()
    found = step.results()
    step.close()
    return found


def defined(op: str, cases: Sequence[Case]) -> Array:
    """What the op's definition gives for these values of the members."""
    meets = OPS[op].meets
    return (
        define(op, cases[0]) if meets is None else meets([tuple(a for a, _ in one.inputs) for one in cases])
    )


def reduce_cases(rng: np.random.Generator, n: int, rows: int, columns: int, residual: str = "") -> list[Case]:
    """residual: "" none, "rows" (T, N), "row" (N)."""
    shape = {"": None, "rows": (rows, columns), "row": (columns,)}[residual]
    whole = () if shape is None else ((rng.standard_normal(shape).astype(np.float32), "f32"),)
    parts = [rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(n)]
    return [Case("", ((part, "f32"), *whole), (rows, columns)) for part in parts]


def gather_cases(rng: np.random.Generator, rows: int, widths: Sequence[int]) -> list[Case]:
    total, found = sum(widths), []
    for i, width in enumerate(widths):
        part = rng.standard_normal((rows, width)).astype(np.float32)
        args = {"start": sum(widths[:i]), "total": total}
        found.append(Case("", ((part, "f32"),), (rows, total), args=args))
    return found


# --- rows that are divided among members


def most_own(rows: int, n: int) -> int:
    """Rows of the member that has the most."""
    return -(-rows // n)


def scatter_cases(
    rng: np.random.Generator, n: int, rows: int, columns: int, residual: str = ""
) -> tuple[list[Case], tuple[int, ...]]:
    """Cases of reduce_scatter for so many rows at most, and the counts of their views. residual: "" none,
    "all" rows, which are the same for all members, or "own" rows.
    """
    shared = rng.standard_normal((rows, columns)).astype(np.float32)
    found = []
    for _ in range(n):
        inputs = [(rng.standard_normal((rows, columns)).astype(np.float32), "f32")]
        if residual:
            own = rng.standard_normal((most_own(rows, n), columns)).astype(np.float32)
            inputs.append((shared if residual == "all" else own, "f32"))
        found.append(Case("", tuple(inputs), (most_own(rows, n), columns), args={"ranks": n}))
    return found, (OWN, TOKENS, *({"all": (TOKENS,), "own": (OWN,), "": ()}[residual]))


def own_cases(
    rng: np.random.Generator, n: int, rows: int, columns: int, rounds: int, normed: bool = False
) -> tuple[list[Case], tuple[int, ...]]:
    """Cases of all_gather, or of norm_all_gather, for so many rows at most, and the counts of their views."""
    w = (rng.standard_normal(columns).astype(np.float32), "f32")
    args = {"ranks": n, "rounds": rounds, **({"eps": 1e-5} if normed else {})}
    found = []
    for _ in range(n):
        own = (rng.standard_normal((most_own(rows, n), columns)).astype(np.float32), "f32")
        found.append(Case("", (own, w) if normed else (own,), (rows, columns), args=args))
    return found, (TOKENS, OWN, *((-1,) if normed else ()))


def defined_rows(op: str, cases: Sequence[Case], counts: Sequence[int], rows: int) -> list[Array]:
    """What each member has after a step of so many rows, by the op's definition."""
    n, made_by, sources = len(cases), OPS[op], []
    for rank, one in enumerate(cases):
        mine = own_rows(rows, rank, n)
        size = {TOKENS: rows, OWN: mine.stop - mine.start}
        values = [(a, count) for (a, _), count in zip(one.inputs, counts[1:], strict=True)]
        sources.append(tuple(a[: size[count]] if count in size else a for a, count in values))
    if made_by.scatters is not None:
        return made_by.scatters(sources)
    assert made_by.meets is not None
    return [made_by.meets(sources, **cases[0].args)] * n
