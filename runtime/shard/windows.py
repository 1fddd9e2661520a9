"""Windows of a product become products of rows, so that files with fused matrices (QKV, gate and up) are
divided as those with separate ones. `merge` joins such products into one step again.
"""

from __future__ import annotations

from collections.abc import Callable

from satchel.runtime import ops
from satchel.runtime.graph import Node, Roots, rewrite, toposort
from satchel.runtime.shard.pieces import Range, cut_weight


def separate(roots: Roots, among: Callable[[Node], bool] = lambda node: True) -> Roots:
    """cols(linear(x, W), a, n) -> linear(x, W[a:a+n]), also behind a bias; take of an expert product
    likewise. A product stays whole where something else reads it too. among: the windows that may become
    products.
    """
    kept = _read_whole(roots)

    def rule(node: Node, src: tuple[Node, ...]) -> Node | None:
        if node.op not in ("cols", "take") or node.src[0] in kept or not among(node):
            return None
        node.graph.label = node.name
        range = Range(node.arg("start"), node.arg("start") + node.arg("size"))
        if node.op == "cols" and src[0].op == "add" and _bias(src[0]) and src[0].src[0].op == "linear":
            y = _window(src[0].src[0], range)
            return None if y is None else ops.add(y, _weight(src[0].src[1], 0, range))
        wanted = "linear" if node.op == "cols" else "expert_linear"
        return _window(src[0], range) if src[0].op == wanted else None

    return rewrite(roots, rule)


def _read_whole(roots: Roots) -> set[Node]:
    """Products, biased or not, that are read by more than windows."""
    found = set(roots)
    order = toposort(roots)
    for node in order:
        if node.op not in ("cols", "take"):
            found.update(s for s in node.src if not _biases(node, s))
    for node in reversed(order):
        if node in found and node.op == "add" and _bias(node):
            found.add(node.src[0])
    return found


def _biases(node: Node, source: Node) -> bool:
    return node.op == "add" and node.src[0] is source and source.op == "linear" and _bias(node)


def _bias(node: Node) -> bool:
    return node.src[1].op == "weight" and len(node.src[1].shape) == 1


def _window(product: Node, range: Range) -> Node | None:
    """The product with a range of the weight's rows."""
    x, weight, *ids = product.src
    if weight.op != "weight" or len(product.src) > (3 if product.op == "expert_linear" else 2):
        return None
    return ops.OPS[product.op](x, _weight(weight, len(weight.shape) - 2, range), *ids)


def _weight(weight: Node, axis: int, range: Range) -> Node:
    name, type = cut_weight(weight, axis, range)
    return weight.graph.node("weight", (), type, name)
