"""LaTeX as trees of MathML: what is known, what is refused, and what a hostile formula can do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from satchel.server.page.formulas import LENGTH, LONGEST, MOST, tree_of

PARTS = [
    "\\frac",
    "{",
    "}",
    "\\sqrt",
    "^",
    "_",
    "\\left(",
    "\\right)",
    "x",
    "1",
    "&",
    "\\\\",
    "'",
    "[",
    "]",
    "%",
]
PARTS += ["\\begin{matrix}", "\\end{matrix}", "\\over", "\\not"]
PARTS += [
    "\\text{<b>}",
    "\\href{javascript:a}{b}",
    "\\style{a:b}{c}",
    "\\hspace{99em}",
    "\\raise{-9em}{x}",
    "$",
    "\\def",
]


def nodes(tree: Any) -> Iterator[list[Any]]:
    if isinstance(tree, list):
        yield tree
        for child in tree[2]:
            yield from nodes(child)


def text(tree: Any) -> str:
    return tree if isinstance(tree, str) else "".join(map(text, tree[2]))


@pytest.mark.parametrize(
    ("latex", "names", "said"),
    [
        ("\\frac{a}{b}", {"mfrac"}, "ab"),
        ("x_1^2", {"msubsup"}, "x12"),
        ("\\begin{align}a&=b\\\\c&=d\\end{align}", {"mtable", "mtr", "mtd"}, "a=b(1)c=d(2)"),
        ("\\mathbb{R} \\le \\infty", {"mo", "mi"}, "ℝ≤∞"),
        ("\\text{<img src=x>}", {"mtext"}, "<img src=x>"),
    ],
)
def test_a_formula_is_a_tree(latex: str, names: set[str], said: str) -> None:
    tree = tree_of(latex)
    assert tree is not None and tree[0] == "math"
    assert names <= {node[0] for node in nodes(tree)}
    assert text(tree).replace("\xa0", " ") == said


@pytest.mark.parametrize(
    "latex", ["\\frac{a}", "\\newcommand{\\a}{b}", "\\def\\a{b}", "{" * 900 + "x" + "}" * 900]
)
def test_what_is_no_formula_has_no_tree(latex: str) -> None:
    assert tree_of(latex) is None


@pytest.mark.parametrize("value", ["99em", "-2em", "5em", "1e9px", "10px", "calc(1px)", "50%", "url(a)"])
def test_a_length_that_reaches_far_is_dropped(value: str) -> None:
    assert not LENGTH.fullmatch(value)
    tree = tree_of(f"\\hspace{{{value}}}x")
    assert tree is None or all(value not in node[1].values() for node in nodes(tree))


def test_any_formula_gives_small_harmless_trees() -> None:
    draw = random.Random(3)
    for _ in range(300):
        tree = tree_of("".join(draw.choices(PARTS, k=draw.randint(1, 80)))[:LONGEST])
        for name, attributes, children in nodes(tree):
            assert name.isalpha() and isinstance(children, list)
            assert not any(set(value) & set(':;<>()\\/"') for value in attributes.values())


@pytest.mark.model
def test_the_server_takes_a_few_formulas_of_some_length(server: str) -> None:
    def asked(*formulas: str) -> httpx.Response:
        body = {"formulas": [{"text": latex} for latex in formulas]}
        return httpx.post(f"{server}/page/formulas", json=body)

    trees = asked("x", "\\frac{a}").json()["trees"]
    assert trees[0][0] == "math" and trees[1] is None
    assert asked("x" * (LONGEST + 1)).status_code == 400
    assert asked(*["x"] * (MOST + 1)).status_code == 400
