"""Mutation test of the portable kernels' barriers: searches for a call that fails without a given barrier.

    python tests/support/barriers.py SITE

runs calls on the emulated GPU with and without that barrier, until one gives different bytes or a different
error. Exit code 0: there is such a call, which is printed; 1: there is none. It runs in a process of its own,
because threads that skip a barrier may write anywhere.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from kernel_cases import cases_of
from one_step import Case, generator, run
from sampling_cases import ROWS, params, places

from satchel.errors import DeviceError
from satchel.runtime.device.libraries import find_backend

sys.path.append(str(Path(__file__).parents[1] / "cext"))
import test_packed_kernels as packed
from test_matrix_units import product

KERNELS = Path(__file__).parents[2] / "cext" / "kernels"
SAMPLING = ("sample", "sample_masked", "logprobs")
# The ops whose kernels contain a file's barriers, each with the kernel to run.
REACHED: dict[str, tuple[str, ...]] = {
    "attention.k.h": ("attention", "absorbed_attention"),
    "attention_step.k.h": ("rope_qkv_attention",),
    "context.k.h": ("attention_parts",),
    "hadamard.k.h": ("hadamard",),
    "index.k.h": ("index_positions", "index_positions index_positions"),
    "latent.k.h": ("absorbed_attention", "sparse_attention", "expanded_attention"),
    "matrix.k.h": tuple(f"linear_swiglu matrix_linear_{unit}" for unit in ("mfma", "wmma11", "wmma12")),
    "packed_linear.k.h": ("post_norm_linear_swiglu", "linear_add"),
    "port.h": ("layer_norm", *SAMPLING),
    "sample.k.h": SAMPLING,
    "sample_set.k.h": SAMPLING,
    "sample_stages.k.h": SAMPLING,
}
ROUNDS = 3  # passes over all calls, each with another order of threads


def sites() -> Iterator[str]:
    """Every barrier as the emulated GPU names it: file, line, and index among those of one macro. A barrier
    with a comment "kept: why" is redundant on purpose and is left out.
    """
    texts = {path.name: path.read_text(encoding="utf-8").splitlines() for path in sorted(KERNELS.glob("*.h"))}
    macros: dict[str, list[bool]] = {}  # whether each barrier of a macro is needed
    for lines in texts.values():
        name = ""
        for line in lines:
            name = found[1] if (found := re.match(r"#define (\w+)\(", line)) else name
            if re.match(r"\s+BARRIER\(m\);.*\\$", line):
                macros.setdefault(name, []).append("kept:" not in line)
    for file, lines in texts.items():
        for i, line in enumerate(lines, 1):
            if re.match(r"\s+BARRIER\(m\);$", line):
                yield f"{file}:{i}:1"
            elif (found := re.match(r"\s+(\w+)\(m, ", line)) and found[1] in macros:
                yield from (f"{file}:{i}:{n}" for n, needed in enumerate(macros[found[1]], 1) if needed)


def lost_block() -> Case:
    """Attention over a block table that points past the pool."""
    one = cases_of("attention")[0]
    *inputs, (table, format) = one.inputs[:6]
    table = table.copy()
    table[:, 1] = 2**20
    return replace(one, name="a lost block", inputs=(*inputs, (table, format), *one.inputs[6:]))


def equals() -> Case:
    """Rows with equal logits across several waves, among which xtc must find the last candidate."""
    x = np.full((ROWS, 4099), -60, np.float32)
    x[:, 40::500] = 0
    rng = generator("equals")
    chain = params(rng, ("xtc",), xtc_probability=1.0, xtc_threshold=0.02)
    return Case("equals", ((x, "f32"), *places(rng, 4099), (chain, "i8")), (ROWS,), "i32")


def many_rows(one: Case, whole: tuple[int, ...] = ()) -> Case:
    """A call with so many different rows that one group computes several. whole: inputs that have no row per
    token.
    """
    i = np.arange(130)
    rows = (i + i // 64) % ROWS
    inputs = tuple((x if j in whole else x[rows], format) for j, (x, format) in enumerate(one.inputs))
    return replace(one, name=f"{one.name} x 130", inputs=inputs, shape=(len(rows), *one.shape[1:]))


def calls_of(op: str, kernel: str) -> list[Case]:
    """The op's calls, those that are most likely to need a barrier first."""
    if op == "post_norm_linear_swiglu":
        return [packed.step(op, ("q4_0", "q8_0"), 3, 5 * packed.CHUNK, 40)]
    if op == "linear_add":
        return [packed.product(op, ("q4_0",), 3, 17 * packed.CHUNK, 40)]
    if op == "linear_swiglu":
        return [product(op, "q8_0", 70, 160, (70,))]
    calls = cases_of(op)
    if op == "attention":  # non-causal attention has barriers of its own
        return [lost_block(), *sorted(calls, key=lambda one: one.args.get("causal", 1))]
    if op == "logprobs":
        return [many_rows(next(one for one in calls if one.name == "all-64-64")), *calls]
    if op == "sample_masked":
        return [many_rows(calls[0], whole=(1,)), *calls]
    return [equals(), *calls] if op == "sample" else calls


def result(op: str, kernel: str, one: Case, without: str) -> bytes:
    os.environ["SATCHEL_EMULATED_WITHOUT"] = without
    with find_backend("emulated").open() as device:
        try:
            own = packed.own(one) if op in ("post_norm_linear_swiglu", "linear_add") else ()
            return run(device, op, one, packed=own, kernel=kernel).tobytes()
        except DeviceError as error:
            return str(error).encode()


def difference(site: str) -> str:
    """The first call whose result changes without this barrier; "": none."""
    for _ in range(ROUNDS):
        for op, _, kernel in (name.partition(" ") for name in REACHED[site.split(":")[0]]):
            for one in calls_of(op, kernel):
                if result(op, kernel, one, site) != result(op, kernel, one, ""):
                    return f"{op} {kernel} {one.name}"
    return ""


if __name__ == "__main__":
    said = difference(sys.argv[1])
    print(said)
    sys.exit(not said)
