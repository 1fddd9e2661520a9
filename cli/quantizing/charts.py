"""Small charts as inline SVG, drawn in the page's own colours (CSS variables), so light and dark both read.

Sizes are in units of a phone's width; a wider page scales them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 34
COLORS = 8  # --c0 ... --c7
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled point."""

    x: float
    y: float
    label: str
    kind: str  # a CSS class of the page


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from low to high."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """1, 2, 5 of each power of ten from low to high."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
    return [v for v in found if low <= v <= high * (1 + 1e-9)]


def number(value: float) -> str:
    return f"{value:.3g}" if value else "0"


def _frame(
    x: Scale, y: Scale, across: Sequence[float], up: Sequence[float], names: tuple[str, str]
) -> list[str]:
    """The grid lines with their numbers, and the axis labels."""
    out = []
    for v in up:
        at = y(v)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 4}" y="{at + 3:.1f}" text-anchor="end">{number(v)}</text>')
    foot = HEIGHT - BOTTOM
    for v in across:
        out.append(
            f'<text class="tick" x="{x(v):.1f}" y="{foot + 13}" text-anchor="middle">{number(v)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(
        f'<text class="axis" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(names[0])}</text>'
    )
    turned = f'transform="rotate(-90 10 {(TOP + foot) / 2})"'
    out.append(
        f'<text class="axis" x="10" y="{(TOP + foot) / 2}" text-anchor="middle" {turned}>'
        f"{escape(names[1])}</text>"
    )
    return out


def _svg(title: str, body: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return head + "".join(body) + "</svg>"


def _across(low: float, high: float) -> Scale:
    span = (high - low) or 1.0
    return lambda v: LEFT + (v - low) / span * (WIDTH - LEFT - RIGHT)


def _up(low: float, high: float) -> Scale:
    span = (high - low) or 1.0
    return lambda v: HEIGHT - BOTTOM - (v - low) / span * (HEIGHT - TOP - BOTTOM)


def curve(
    title: str, line: Sequence[tuple[float, float]], marks: Sequence[Mark], names: tuple[str, str]
) -> str:
    """A line with marked points. The y axis is logarithmic."""
    xs = [p[0] for p in line] + [m.x for m in marks]
    ys = [v for v in [*(p[1] for p in line), *(m.y for m in marks)] if v > 0]
    low, high = min(ys), max(ys)
    x, up = _across(min(xs), max(xs)), _up(math.log10(low), math.log10(high))

    def y(v: float) -> float:
        return up(math.log10(max(v, low)))

    body = _frame(x, y, ticks(min(xs), max(xs)), decades(low, high), names)
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line if b > 0)
    body.append(f'<polyline class="line" points="{points}"/>')
    body += _marks(marks, x, y)
    return _svg(title, body)


def _marks(marks: Sequence[Mark], x: Scale, y: Scale) -> list[str]:
    """Points with labels to their right, moved down where labels would overlap."""
    out, last = [], -math.inf
    for mark in sorted(marks, key=lambda m: y(m.y)):
        across, down = x(mark.x), y(mark.y)
        last = max(down + 3, last + 10)
        anchor, shift = ("end", -7) if across > WIDTH * 0.75 else ("start", 7)
        out.append(f'<circle class="{mark.kind}" cx="{across:.1f}" cy="{down:.1f}" r="3.5"/>')
        out.append(
            f'<text class="tick" x="{across + shift:.1f}" y="{last:.1f}" text-anchor="{anchor}">'
            f"{escape(mark.label)}</text>"
        )
    return out


def stacks(
    title: str,
    columns: Sequence[tuple[str, Mapping[str, float]]],
    kinds: Sequence[str],
    names: tuple[str, str],
) -> str:
    """Stacked bars: one bar per column, one part per kind."""
    high = max((sum(parts.values()) for _, parts in columns), default=0) or 1.0
    y = _up(0, high)
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(columns))
    body = _frame(_across(0, 1), y, [], ticks(0, high), names)
    every = max(1, math.ceil(len(columns) * 16 / (WIDTH - LEFT - RIGHT)))
    for i, (label, parts) in enumerate(columns):
        at, base = LEFT + i * slot, 0.0
        for kind, value in parts.items():
            top = y(base + value)
            color = f"var(--c{kinds.index(kind) % COLORS})"
            body.append(
                f'<rect x="{at + slot * 0.1:.1f}" y="{top:.1f}" width="{slot * 0.8:.1f}" '
                f'height="{y(base) - top:.1f}" fill="{color}"><title>{escape(label)} {escape(kind)}: '
                f"{value:.2g}</title></rect>"
            )
            base += value
        if i % every == 0:
            foot = HEIGHT - BOTTOM + 13
            body.append(
                f'<text class="tick" x="{at + slot / 2:.1f}" y="{foot}" text-anchor="middle">'
                f"{escape(label)}</text>"
            )
    return _svg(title, body)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], names: tuple[str, str]) -> str:
    """One line per kind. Both axes are linear."""
    xs = [p[0] for s in series.values() for p in s]
    ys = [p[1] for s in series.values() for p in s]
    if not xs:
        return ""
    x, y = _across(min(xs), max(xs)), _up(0, max(ys) or 1.0)
    whole = sorted({round(v) for v in ticks(min(xs), max(xs))})
    body = _frame(x, y, whole, ticks(0, max(ys) or 1.0), names)
    for i, points in enumerate(series.values()):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        body.append(f'<polyline class="line" style="stroke:var(--c{i % COLORS})" points="{path}"/>')
    return _svg(title, body)


def legend(kinds: Sequence[str]) -> str:
    items = (
        f'<span><i style="background:var(--c{i % COLORS})"></i>{escape(k)}</span>'
        for i, k in enumerate(kinds)
    )
    return f'<p class="legend">{"".join(items)}</p>'
