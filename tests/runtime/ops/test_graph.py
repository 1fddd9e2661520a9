"""Hash-consing, reachability and rewriting of the op graph."""

import numpy as np
import pytest

from satchel.runtime import ops
from satchel.runtime.graph import ROWS, TOKENS, Dim, Graph, Literal, Node, Type, readers, rewrite, toposort
from satchel.runtime.ops import OPS, evaluate


def leaf(g: Graph, name: str, *shape: int):
    return g.node("input", (), Type((TOKENS, *shape)), name)


def test_equal_work_is_one_node() -> None:
    g = Graph()
    x, y = leaf(g, "x", 4), leaf(g, "y", 4)
    assert ops.add(x, y) is ops.add(x, y)
    assert ops.add(x, y) is not ops.add(y, x)
    assert x is leaf(g, "x", 4)
    assert x is not y


def test_a_leaf_keeps_its_type() -> None:
    g = Graph()
    leaf(g, "x", 4)
    with pytest.raises(TypeError, match="exists with type"):
        leaf(g, "x", 5)


def test_unreached_nodes_are_not_in_the_order() -> None:
    g = Graph()
    x, y = leaf(g, "x", 4), leaf(g, "y", 4)
    dead = ops.mul(x, y)
    live = ops.add(x, x)
    assert dead not in toposort([live]) and y not in toposort([live])
    assert toposort([live]) == (x, live)


def test_an_order_is_that_of_a_depth_first_walk_whatever_was_asked_before() -> None:
    g = Graph()
    x, y, z = leaf(g, "x", 4), leaf(g, "y", 4), leaf(g, "z", 4)
    inner = ops.add(y, z)
    one, other = ops.mul(x, inner), ops.mul(inner, x)
    for _ in range(2):
        assert toposort([one]) == toposort([one, one]) == (x, y, z, inner, one)
        assert toposort([other]) == (y, z, inner, x, other)
        assert toposort([one, other]) == (x, y, z, inner, one, other)
    assert toposort([]) == ()


def test_readers_count_roots() -> None:
    g = Graph()
    x = leaf(g, "x", 4)
    y = ops.add(x, x)
    assert readers((y, y)) == {y: 1, x: 2}


def test_rewrite_replaces_and_rebuilds() -> None:
    g = Graph()
    x, y = leaf(g, "x", 4), leaf(g, "y", 4)
    roots = rewrite((ops.add(ops.mul(x, y), y),), lambda n, src: ops.add(*src) if n.op == "mul" else None)
    assert roots[0] is ops.add(ops.add(x, y), y)


def test_literals_compare_by_content() -> None:
    a, b = Literal(np.arange(4.0)), Literal(np.arange(4.0))
    assert a == b and hash(a) == hash(b)
    assert a != Literal(np.arange(4)) and a != Literal(np.zeros(4))
    with pytest.raises(ValueError):
        a.array[0] = 1


def test_op_arguments_are_checked() -> None:
    g = Graph()
    x, w = leaf(g, "x", 4), g.node("weight", (), Type((4,)), "w")
    with pytest.raises(TypeError, match="takes"):
        ops.rms_norm(x, w)
    with pytest.raises(TypeError, match="takes"):
        ops.rms_norm(x, w, eps=1e-5, other=1)


def test_product_shapes_must_meet() -> None:
    g = Graph()
    with pytest.raises(TypeError, match="rows of 5"):
        ops.linear(leaf(g, "x", 4), g.node("weight", (), Type((7, 5)), "w"))


def of_shape(g: Graph, *shape: int | Dim) -> Node:
    return g.node("input", (), Type(shape), str(shape))


@pytest.mark.parametrize("b", [(TOKENS, 4, 6), (TOKENS, 1, 1), (TOKENS, 4, 1), (1, 1, 6), (4, 6), (6,), (1,)])
def test_what_is_added_broadcasts(b: tuple[int | Dim, ...]) -> None:
    g = Graph()
    a, other = of_shape(g, TOKENS, 4, 6), of_shape(g, *b)
    assert ops.add(a, other).type == ops.mul(a, other).type == a.type


@pytest.mark.parametrize("b", [(TOKENS, 4), (ROWS, 1, 1), (4,), (2, 6), (5, 4, 6), (1, TOKENS, 4, 6)])
def test_what_does_not_broadcast_is_refused(b: tuple[int | Dim, ...]) -> None:
    g = Graph()
    for made in (ops.add, ops.mul):
        with pytest.raises(TypeError, match="does not broadcast"):
            made(of_shape(g, TOKENS, 4, 6), of_shape(g, *b))


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_says_what_it_does(name: str) -> None:
    assert OPS[name].define.__doc__


def test_fused_ops_equal_their_parts() -> None:
    rng, g = np.random.default_rng(1), Graph()
    x, w = leaf(g, "x", 64), g.node("weight", (), Type((64,)), "w")
    m = g.node("weight", (), Type((64, 64)), "m")
    fused = [
        ops.norm_quantize(x, w, eps=1e-5, format="q8_0"),
        ops.swiglu_quantize(x, x, format="q8_0"),
        ops.linear_add(x, m, x),
        ops.linear_swiglu(x, m, m),
        ops.linear_swiglu_quantize(x, m, m, format="q8_0"),
    ]
    values = {
        n: rng.standard_normal(s, np.float32) for n, s in (("x", (3, 64)), ("w", (64,)), ("m", (64, 64)))
    }
    for node in fused:
        parts = OPS[node.op].parts(*node.src, **dict(node.args))
        whole, split = evaluate((node, parts), values)
        assert parts.type == node.type
        assert whole.tobytes() == split.tobytes()


def test_ragged_dims_are_known_by_name() -> None:
    assert str(Type((TOKENS, 4), "q8_0")) == "q8_0[tokens, 4]" and ROWS.count == 1
