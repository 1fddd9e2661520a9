"""POST /page/formulas: LaTeX as trees of MathML, [name, attributes, children], for the page's answers.

A formula is written by a model and untrusted. What goes out is data, of which the page makes elements of
known names (js/markdown/formula.js): no markup is written here or parsed there. Macros are refused, because
they can grow without bound, and so are lengths that would lay a formula over the text around it.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Annotated, Any
from xml.etree.ElementTree import Element

from fastapi import APIRouter, Request
from pydantic import Field

from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.roles import USER, needs
from satchel.server.route import in_pool, unknown_fields

router = APIRouter(route_class=BodyRoute, include_in_schema=False)
# Characters of a formula, formulas of a request: at worst a second of the interpreter.
LONGEST, MOST = 2000, 10
DEEPEST, MOST_NODES = 50, 5000  # levels and nodes of a tree
MACROS = re.compile(
    r"\\(?:re)?new(?:command|environment)|\\[gex]?def|\\DeclareMathOperator|\\let(?![a-zA-Z])"
)
LENGTHS = {"columnspacing", "depth", "height", "linethickness", "lspace", "mathsize", "maxsize", "minsize"}
LENGTHS |= {"rowspacing", "rspace", "voffset", "width"}
# Below five of the font's sizes, and less than one backwards.
LENGTH = re.compile(
    r"(?:\+?[0-4](?:\.\d{1,4})?|[+-]?0?\.\d{1,4}|-0\.\d{1,4})(?:em|ex)|0(?:px|pt)?|[1-9]px|100%"
)
VALUE = re.compile(r"[\w+ .-]{1,60}")

# Elements that have a fixed number of children; the converter leaves out what a formula lacks.
CHILDREN = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2)
CHILDREN |= {"msubsup": 3, "munderover": 3}

Tree = list[Any]  # [name, attributes, children]; a child is a Tree or a text


class Formula(Body):
    text: str = Field(max_length=LONGEST)
    display: bool = False


class FormulasBody(Body):
    formulas: Annotated[list[Formula], Field(max_length=MOST)]


@router.post("/page/formulas")
@needs(USER)
async def formulas(request: Request, body: FormulasBody) -> JsonObject:
    """The tree of each formula; null for one that is no LaTeX, or whose command is not known."""
    unknown_fields(request, body)

    def work() -> list[Tree | None]:
        return [tree_of(one.text, one.display) for one in body.formulas]

    return {"trees": await in_pool(request, "page", work)}


def tree_of(latex: str, display: bool = False) -> Tree | None:
    if MACROS.search(latex):
        return None
    try:
        from latex2mathml.converter import convert_to_element

        made = convert_to_element(latex, display="block" if display else "inline")
        return _tree(made, 0, [0])
    # The converter raises errors of all kinds on what is no LaTeX, and recurses as deep as the formula.
    except Exception:
        return None


def _tree(element: Element, depth: int, count: list[int]) -> Tree:
    """count: nodes so far, in a list of one number."""
    count[0] += 1
    if depth > DEEPEST or count[0] > MOST_NODES:
        raise ValueError("the formula is too deep or too large")
    if len(element) != CHILDREN.get(element.tag, len(element)):
        raise ValueError(f"{element.tag} lacks a part")
    # The converter leaves character references in its texts.
    text = [unescape(element.text)] if element.text else []
    attributes = {key: value for key, value in element.attrib.items() if _harmless(key, value)}
    return [element.tag, attributes, [*text, *(_tree(child, depth + 1, count) for child in element)]]


def _harmless(key: str, value: str) -> bool:
    return bool((LENGTH if key in LENGTHS else VALUE).fullmatch(value))
