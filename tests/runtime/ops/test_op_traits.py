"""The declared traits of each op hold of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import OP_NAMES
from one_step import Case, cases_of

from satchel.quant import FORMATS
from satchel.runtime.graph import Array
from satchel.runtime.ops import OPS
from satchel.runtime.ops.op import NONE

ROWS = 4  # of each call that are made alone


def define(op: str, one: Case, inputs: tuple[Array, ...]) -> Array:
    args = {**one.args, "format": one.format} if "format" in OPS[op].arguments else one.args
    return OPS[op].define(*inputs, **args)


@pytest.mark.parametrize("op", [name for name in OP_NAMES if OPS[name].row_wise])
def test_a_row_is_made_of_the_same_row_of_the_sources(op: str) -> None:
    tried = 0
    for one in cases_of(op):
        arrays = [array for array, _ in one.inputs]
        whole = range(len(arrays))[OPS[op].weights]
        tokens = one.shape[0]
        least = arrays[0].ndim if op in ("add", "mul") else 2  # of fewer dimensions all tokens have one
        by_token = [len(a) == tokens and i not in whole and a.ndim >= least for i, a in enumerate(arrays)]
        by_token[0] = True
        want = define(op, one, tuple(arrays))
        decode = FORMATS[one.format].decode
        for t in range(0, tokens, max(1, tokens // ROWS)):
            given = tuple(a[t : t + 1] if mine else a for a, mine in zip(arrays, by_token, strict=True))
            got, meant = decode(define(op, one, given)), decode(want[t : t + 1])
            largest = float(np.abs(meant[np.isfinite(meant)]).max(initial=0))
            np.testing.assert_allclose(got, meant, rtol=1e-4, atol=1e-4 * largest)
            tried += 1
    assert tried


def test_traits_agree_with_each_other() -> None:
    for name, op in OPS.items():
        if op.follows:
            assert op.weights == NONE and op.cache == NONE and not op.alias, name
        if op.product:
            assert op.weights.start == 1, f"{name}: the first source meets the weights"
        if op.experts and op.indexes is not None:
            assert (op.sources[-1], op.indexes, op.per_token) == ("ids", (1, 0), (-1, 1)), name
        elif op.experts:
            assert "logits" in op.sources and "k" in op.arguments, f"{name} ranks them itself"
        if op.cache != NONE:
            assert {"slot", "pos", "table"} <= set(op.sources), name
        if op.alias and op.cache != NONE:
            assert op.sources[-1] == "table", f"{name}: an op that looks for blocks finds their table last"


@pytest.mark.parametrize("op", [name for name in OP_NAMES if OPS[name].exact])
def test_what_is_exact_is_compared_bit_by_bit(op: str) -> None:
    assert {one.bound for one in cases_of(op)} == {0}
