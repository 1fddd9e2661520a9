"""The report's charts: numbers on the axes, every mark inside the plot, foreign text escaped."""

from __future__ import annotations

import itertools
import re

import pytest

from satchel.cli.quantizing.charts import HEIGHT, WIDTH, Mark, curve, decades, lines, stacks, ticks
from satchel.cli.quantizing.page import PageFacts, write_page
from satchel.runtime.budget.choose import FormatOption, FrontierStep
from satchel.runtime.budget.search import FormatSearchResult, TensorChoice, TensorGroup


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.00037), (-3, 12345), (5, 5), (99.99, 100)])
def test_ticks_are_round_and_within(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 8 and all(low - 1e-9 <= v <= high * (1 + 1e-9) for v in found)
    assert found == sorted(set(found))


def test_decades() -> None:
    assert decades(0.0015, 0.3) == pytest.approx([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2])


def numbers(svg: str, key: str) -> list[float]:
    return [float(v) for v in re.findall(rf' {key}="(-?[\d.]+)"', svg)]


def test_marks_lie_within_and_their_names_apart() -> None:
    marks = [Mark(10 + i / 100, 0.1 + i / 1e4, f"<{i}>", "recipe") for i in range(6)]
    svg = curve("title", [(9, 1.0), (12, 1e-3)], marks, ("MB", "nats"))
    assert all(0 <= v <= WIDTH for v in numbers(svg, "cx")) and len(numbers(svg, "cx")) == 6
    assert all(0 <= v <= HEIGHT for v in numbers(svg, "cy"))
    assert "<0>" not in svg and "&lt;0&gt;" in svg
    heights = [float(v) for v in re.findall(r'y="([\d.]+)" text-anchor="start">&lt;', svg)]
    assert len(heights) == 6 and all(b - a >= 9.9 for a, b in itertools.pairwise(heights))


def test_stacks_add_up() -> None:
    svg = stacks("t", [("0", {"a": 1.0, "b": 3.0}), ("1", {"a": 2.0})], ["a", "b"], ("layer", "nats"))
    one, three, two = numbers(svg, "height")
    assert three == pytest.approx(3 * one, rel=0.01) and two == pytest.approx(2 * one, rel=0.01)
    assert lines("t", {"a": []}, ("x", "y")) == ""
    assert "<polyline" in lines("t", {"a": [(0, 0.5), (1, 0.25)], "b": []}, ("x", "y"))


def test_a_page_of_names_that_want_to_be_markup() -> None:
    options = (FormatOption("q4_0", 100, 1e-2, 0.0), FormatOption("f32", 800, 0.0, 0.0))
    row = TensorChoice(
        "<script>.weight", (10, 20), TensorGroup("g", ("<script>.weight",)), options, options[0]
    )
    steps = (FrontierStep(row.name, options[1], 900, 0.0),)
    budget = FormatSearchResult((row,), 1000, 100, steps, 0.0, 1, 1.0)
    page = write_page(PageFacts("a<b>.gguf", "<i>.txt", budget, None, {}, 2.0))
    assert "<script>" not in page and "<i>.txt" not in page and "&lt;script&gt;" in page
    assert "http" not in page and "4.000" in page
