"""Cut points, names of pieces, and divisions of small graphs: cuts within a block, sums that wait, fused
matrices, ops without a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.quant import FORMATS
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.shard import sharding_of
from satchel.runtime.graph import TOKENS, Array, Graph, Node, Roots, Type, toposort
from satchel.runtime.ops import evaluate
from satchel.runtime.shard.cuts import by_kv_heads, dealt, of_keys
from satchel.runtime.shard.evaluate import evaluate_ranks
from satchel.runtime.shard.pieces import Piece, Range
from satchel.runtime.shard.rank import rank_graph
from satchel.runtime.shard.sharding import Sharding
from satchel.runtime.shard.windows import separate

shares = st.lists(st.floats(0.1, 9), min_size=1, max_size=8)


@given(st.integers(1, 5000), shares)
def test_units_are_dealt_once_each(units: int, given: list[float]) -> None:
    cut = dealt(units, given)
    if units < len(given):
        assert cut is None
        return
    assert cut is not None
    assert all(r.size > 0 for r in cut.ranges)
    assert [r.start for r in cut.ranges] == [0, *(r.stop for r in cut.ranges[:-1])]
    assert cut.ranges[-1].stop == units


@given(st.integers(1, 8), st.integers(1, 8), shares)
def test_a_rank_has_whole_groups_of_heads_or_heads_of_one(kv: int, group: int, given: list[float]) -> None:
    cut = by_kv_heads(kv * group, kv, given)
    if cut is None:
        return
    keys = of_keys(cut, kv)
    for queries, mine in zip(cut.ranges, keys.ranges, strict=True):
        heads = [h // group for h in range(*queries)]
        assert sorted(set(heads)) == list(range(*mine))
        # The kernels take KV heads by an equal number of heads each.
        assert mine.size == 1 or all(heads.count(h) == group for h in heads)
    assert cut.ranges[0].start == 0
    assert cut.ranges[-1].stop == kv * group


ranges = st.tuples(st.integers(0, 99), st.integers(1, 99)).map(lambda t: Range(t[0], t[0] + t[1]))


@given(st.text(min_size=1), st.lists(st.none() | ranges, max_size=3))
def test_a_piece_is_read_back_from_its_name(tensor: str, given: list[Range | None]) -> None:
    piece = Piece(tensor, tuple(given))
    if Piece.of(tensor) != Piece(tensor):
        return  # a tensor whose own name ends like a piece's
    found = Piece.of(piece.name)
    assert found.tensor == tensor
    padded = (*found.ranges, *(None,) * (len(given) - len(found.ranges)))
    assert padded == tuple(given)


def test_a_piece_of_a_piece() -> None:
    piece = Piece.of("qkv[100:200]").cut(0, Range(10, 20)).cut(1, Range(0, 64))
    assert piece.name == "qkv[110:120, 0:64]"


class Case:
    """A graph over x (T, width) and weights by name, evaluated whole and by ranks."""

    def __init__(self, width: int, **weights: tuple[tuple[int, ...], str]) -> None:
        graph, rng = Graph(), np.random.default_rng(0)
        self.x = graph.node("input", (), Type((TOKENS, width)), "x")
        self.values: dict[str, Array] = {"x": rng.standard_normal((3, width)).astype(np.float32)}
        self.weight = {n: graph.node("weight", (), Type(*given), n) for n, given in weights.items()}
        for name, (shape, format) in weights.items():
            encode = FORMATS[format].encode
            assert encode is not None
            self.values[name] = encode(rng.standard_normal(shape).astype(np.float32), None)

    def piece(self, node: Node) -> Array:
        piece = Piece.of(node.name)
        slices = list(piece.slices())
        if len(slices) == 2 and piece.ranges[1] is not None:
            block = FORMATS[node.type.format].block
            slices[1] = slice(piece.ranges[1].start // block, piece.ranges[1].stop // block)
        return self.values[piece.tensor][tuple(slices)]

    def ranks(self, root: Node, given: Sequence[float]) -> tuple[Sharding, list[Roots]]:
        sharding = sharding_of([(root,)], given)
        apart = separate((root,))
        return sharding, [rank_graph(apart, sharding, rank) for rank in range(len(given))]

    def check(self, root: Node, given: Sequence[float]) -> tuple[Sharding, list[Roots]]:
        sharding, ranks = self.ranks(root, given)
        leaves = [{n.name: self.piece(n) for n in toposort(r) if n.op in ("weight", "input")} for r in ranks]
        wanted = evaluate((root,), self.values)[0]
        for (found,) in evaluate_ranks(ranks, leaves):
            assert np.allclose(found, wanted, rtol=1e-3, atol=1e-3)
        return sharding, ranks


def count(roots: Roots) -> Mapping[str, int]:
    names = [n.op for n in toposort(roots)]
    return {name: names.count(name) for name in names}


def test_a_cut_within_a_block_gives_both_ranks_the_block() -> None:
    """Four heads of 192 are three blocks of q4_k: two ranks have 384 columns, and both the second block."""
    case = Case(256, up=((768, 256), "f32"), down=((256, 768), "q4_k"))
    heads = ops.reshape(ops.linear(case.x, case.weight["up"]), shape=(4, 192))
    y = ops.linear(ops.reshape(ops.gelu(heads, style=0), shape=(768,)), case.weight["down"])
    _, ranks = case.check(y, (1, 1))
    pads = [next(n for n in toposort(r) if n.op == "pad") for r in ranks]
    assert [(n.arg("before"), n.arg("after")) for n in pads] == [(0, 128), (128, 0)]
    names = [{n.name for n in toposort(r) if n.op == "weight"} for r in ranks]
    assert names == [{"up[0:384]", "down[:, 0:512]"}, {"up[384:768]", "down[:, 256:768]"}]


def test_an_even_cut_between_blocks_is_taken() -> None:
    case = Case(256, up=((2048, 256), "f32"), down=((256, 2048), "q4_k"))
    y = ops.linear(ops.gelu(ops.linear(case.x, case.weight["up"]), style=0), case.weight["down"])
    _, ranks = case.check(y, (1, 1, 1))
    assert all("pad" not in count(roots) for roots in ranks)


def test_parts_of_a_layer_share_one_reduce_and_a_bias_is_added_once() -> None:
    case = Case(
        64,
        a=((64, 64), "f32"),
        b=((64, 64), "f32"),
        c=((64, 64), "f32"),
        d=((64, 64), "f32"),
        e=((64,), "f32"),
    )
    w = case.weight
    first = ops.linear(ops.gelu(ops.linear(case.x, w["a"]), style=0), w["b"])
    second = ops.add(ops.linear(ops.gelu(ops.linear(case.x, w["c"]), style=0), w["d"]), w["e"])
    _, ranks = case.check(ops.add(ops.add(case.x, first), second), (1, 1))
    assert count(ranks[0])["reduce_add"] == 1


def test_a_fused_matrix_is_divided_as_its_parts_are() -> None:
    case = Case(64, both=((256, 64), "f32"), bias=((256,), "f32"), down=((64, 128), "f32"))
    y = ops.add(ops.linear(case.x, case.weight["both"]), case.weight["bias"])
    gate, up = (ops.cols(y, start=start, size=128) for start in (0, 128))
    _, ranks = case.check(ops.linear(ops.swiglu(gate, up), case.weight["down"]), (1, 1))
    names = {n.name for n in toposort(ranks[1]) if n.op == "weight"}
    assert names == {"both[64:128]", "both[192:256]", "bias[64:128]", "bias[192:256]", "down[:, 64:128]"}


def test_a_norm_over_all_columns_makes_the_product_before_it_whole() -> None:
    case = Case(64, a=((128, 64), "f32"), n=((128,), "f32"), b=((64, 128), "f32"))
    y = ops.rms_norm(ops.linear(case.x, case.weight["a"]), case.weight["n"], eps=1e-5)
    sharding, ranks = case.check(ops.linear(y, case.weight["b"]), (1, 1))
    assert sharding.whole == {"a": "rms_norm needs it whole"}
    assert count(ranks[0])["gather_columns"] == 1  # the root is gathered


def test_two_heads_are_whole_on_three_ranks() -> None:
    case = Case(256, up=((512, 256), "f32"), n=((256,), "f32"), down=((256, 512), "f32"))
    heads = ops.reshape(ops.linear(case.x, case.weight["up"]), shape=(2, 256))
    heads = ops.rms_norm(heads, case.weight["n"], eps=1e-5)
    y = ops.linear(ops.reshape(heads, shape=(512,)), case.weight["down"])
    sharding, _ = case.check(y, (1, 1, 1))
    assert sharding.whole == {"up": "2 units for 3 ranks"}
    assert sharding.cuts.keys() == {"down"}


def test_an_op_without_a_rule_takes_whole_sources() -> None:
    object.__setattr__(ops.gelu, "split", None)
    try:
        case = Case(64, up=((128, 64), "f32"), down=((64, 128), "f32"))
        y = ops.linear(ops.gelu(ops.linear(case.x, case.weight["up"]), style=0), case.weight["down"])
        sharding, _ = case.check(y, (1, 1))
        assert sharding.whole == {"up": "gelu needs it whole"}
    finally:
        object.__setattr__(ops.gelu, "split", ops.swiglu.split)


def test_ranks_that_meet_elsewhere_are_seen() -> None:
    case = Case(64, up=((128, 64), "f32"), down=((64, 128), "f32"))
    y = ops.linear(ops.gelu(ops.linear(case.x, case.weight["up"]), style=0), case.weight["down"])
    _, ranks = case.ranks(y, (1, 1))
    leaves = [{n.name: case.piece(n) for n in toposort(r) if n.op in ("weight", "input")} for r in ranks]
    short = (ranks[1][0].src[0],)  # the second rank ends before the reduce
    with pytest.raises(AssertionError, match="a rank waits at reduce_add, another has ended"):
        evaluate_ranks([ranks[0], short], leaves)


@pytest.mark.parametrize("n", [0, 17])
def test_the_number_of_ranks_is_checked(n: int) -> None:
    case = Case(64, a=((64, 64), "f32"))
    with pytest.raises(RequestError, match=rf"a group has 1 to 16 devices, got {n}"):
        sharding_of([(ops.linear(case.x, case.weight["a"]),)], (1.0,) * n)


def test_the_pass_leaves_a_graph_alone_where_there_is_no_group() -> None:
    from satchel.runtime.compiler.shard import shard

    case = Case(64, a=((64, 64), "f32"))
    roots = (ops.linear(case.x, case.weight["a"]),)
    assert shard(roots, Context((), lambda node: "")) is roots
