"""The report of a budget, one HTML file with nothing from outside: numbers, charts, a table of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from math import sqrt
from pathlib import PurePath
from typing import TYPE_CHECKING

from satchel.cli.quantizing.charts import Mark, curve, legend, lines, stacks
from satchel.runtime.budget.search import kind_of, layer_of

if TYPE_CHECKING:
    from satchel.runtime.budget.search import FormatSearchResult, TensorChoice
    from satchel.runtime.tasks.perplexity import Divergence

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2430;--soft:#667085;--rule:#e3e6eb;--mark:#c2410c;
--c0:#2563eb;--c1:#0d9488;--c2:#ca8a04;--c3:#dc2626;--c4:#7c3aed;--c5:#16a34a;--c6:#db2777;--c7:#64748b;
--few:255,237,213;--many:191,219,254}
@media(prefers-color-scheme:dark){:root{--paper:#11151c;--ink:#e6e9ef;--soft:#98a2b3;--rule:#2a313d;
--mark:#fb923c;--c0:#60a5fa;--c1:#2dd4bf;--c2:#facc15;--c3:#f87171;--c4:#a78bfa;--c5:#4ade80;--c6:#f472b6;
--c7:#94a3b8;--few:92,52,18;--many:24,58,110}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.4rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .25rem}
p{margin:.25rem 0 .75rem}.soft{color:var(--soft)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:1rem 0}
dl div{border:1px solid var(--rule);border-radius:.5rem;padding:.5rem .75rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;max-width:38rem}
svg text{fill:var(--soft);font:9px system-ui,sans-serif}svg .axis{font-size:9.5px}
.grid{stroke:var(--rule)}.line{fill:none;stroke:var(--c0);stroke-width:1.6}
.recipe{fill:var(--c7)}.chosen{fill:var(--mark)}.measured{fill:none;stroke:var(--mark);stroke-width:1.6}
.legend{display:flex;flex-wrap:wrap;gap:.25rem .9rem;font-size:.85rem}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.3rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .5rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}
.map td{text-align:center;border:1px solid var(--paper);
background:color-mix(in srgb,rgb(var(--many)) var(--p),rgb(var(--few)))}
"""


@dataclass(frozen=True, slots=True)
class PageFacts:
    """The contents of the page."""

    model: str
    text: str
    budget: FormatSearchResult
    measured: Divergence | None
    recipes: Mapping[str, tuple[int, float]]  # (file bytes, predicted divergence) by name
    seconds: float  # of the whole run


def write_page(facts: PageFacts) -> str:
    """The whole page."""
    title = f"{PurePath(facts.model).name} in {size(facts.budget.file_bytes)}"
    body = "".join(_sections(facts))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def size(count: float) -> str:
    for unit, least in (("GB", 1e9), ("MB", 1e6)):
        if count >= least:
            return f"{count / least:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"


def _sections(facts: PageFacts) -> Iterator[str]:
    found = facts.budget
    yield _numbers(facts)
    yield "<h2>Divergence against size</h2>"
    yield (
        '<p class="soft">Mean divergence in nats a token. The line is the best that is predicted for each '
        "size; grey points are named mixes, predicted in the same way.</p>"
    )
    yield _against_size(facts)
    kinds = list(dict.fromkeys(kind_of(row.name) for row in found.rows))
    yield '<h2>Format of each tensor</h2><div class="wide">' + _map(found.rows, kinds) + "</div>"
    yield "<h2>What each layer costs</h2>"
    yield '<p class="soft">Predicted divergence by layer and kind of tensor.</p>'
    yield stacks(
        "Divergence by layer",
        list(_layers(found.rows)),
        kinds,
        ("layer (e: embeddings, head)", "nats a token"),
    )
    yield legend(kinds)
    yield "<h2>Error of each layer</h2>"
    yield '<p class="soft">Root mean square error of the weights over their root mean square.</p>'
    yield _errors(found.rows, kinds)
    yield '<h2>Tensors</h2><div class="wide">' + _table(found.rows) + "</div>"


def _numbers(facts: PageFacts) -> str:
    found, measured = facts.budget, facts.measured
    pairs = [
        ("file", size(found.file_bytes)),
        ("limit", size(found.limit)),
        ("bits per weight", f"{_bits(found.rows):.3f}"),
        ("divergence predicted", f"{found.predicted:.4f}"),
    ]
    if measured is not None:
        pairs.append(("divergence measured", f"{measured.kld_mean:.4f}"))
        pairs.append(("same top token", f"{100 * measured.same_top:.1f} %"))
    pairs.append(("measurements", str(found.evaluations)))
    pairs.append(("time", f"{facts.seconds:.0f} s"))
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs)
    said = "as predicted on" if measured is None else "predicted on some windows of"
    return (
        f'<p class="soft">Formats chosen by divergence for each byte, {said} {escape(facts.text)}'
        f"{'' if measured is None else ', measured on others'}.</p><dl>{cells}</dl>"
    )


def _bits(rows: tuple[TensorChoice, ...]) -> float:
    weights = sum(8 * row.chosen.nbytes / row.bits for row in rows)
    return 8 * sum(row.chosen.nbytes for row in rows) / weights


def _against_size(facts: PageFacts) -> str:
    found = facts.budget
    marks = [Mark(b / 1e6, k, name, "recipe") for name, (b, k) in facts.recipes.items() if k > 0]
    at = found.file_bytes / 1e6
    if found.predicted > 0:
        marks.append(Mark(at, found.predicted, "this file", "chosen"))
    if facts.measured is not None and facts.measured.kld_mean > 0:
        marks.append(Mark(at, facts.measured.kld_mean, "measured", "measured"))
    if not marks:
        return ""
    # Clip the line far beyond the shown files, where it would only flatten the rest.
    least, widest = min(m.y for m in marks) / 2, 1.1e6 * max(m.x for m in marks)
    line = [(s.nbytes / 1e6, s.kld) for s in found.steps if s.kld > least and s.nbytes < widest]
    return curve("Divergence against size", line, marks, ("MB", "nats a token"))


def _map(rows: tuple[TensorChoice, ...], kinds: list[str]) -> str:
    """A heat map of bits per weight: layers as rows, kinds of tensors as columns."""
    cells = {(layer_of(row.name), kind_of(row.name)): row for row in rows}
    shown = [k for k in kinds if any(layer >= 0 and kind == k for layer, kind in cells)]
    low, high = min(r.bits for r in rows), max(r.bits for r in rows)

    def cell(row: TensorChoice | None) -> str:
        if row is None:
            return "<td></td>"
        share = 100 * (row.bits - low) / ((high - low) or 1)
        return f'<td style="--p:{share:.0f}%" title="{row.bits:.2f} bits">{escape(row.chosen.format)}</td>'

    head = "".join(f"<th>{escape(k)}</th>" for k in shown)
    lines = [
        f"<tr><td>{layer}</td>{''.join(cell(cells.get((layer, k))) for k in shown)}</tr>"
        for layer in sorted({layer for layer, _ in cells if layer >= 0})
    ]
    alone = [row for (layer, _), row in cells.items() if layer < 0]
    said = ", ".join(f"{escape(r.name)}: <b>{escape(r.chosen.format)}</b>" for r in alone)
    return f'<p>{said}</p><table class="map"><tr><th>layer</th>{head}</tr>{"".join(lines)}</table>'


def _layers(rows: tuple[TensorChoice, ...]) -> Iterator[tuple[str, dict[str, float]]]:
    for layer in sorted({layer_of(row.name) for row in rows}):
        label = str(layer) if layer >= 0 else "e"
        yield label, {kind_of(r.name): r.chosen.kld for r in rows if layer_of(r.name) == layer}


def _errors(rows: tuple[TensorChoice, ...], kinds: list[str]) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    for kind in kinds:
        series[kind] = [
            (float(layer_of(r.name)), sqrt(r.chosen.error))
            for r in rows
            if kind_of(r.name) == kind and layer_of(r.name) >= 0
        ]
    return lines("Error by layer", series, ("layer", "relative error")) + legend(kinds)


def _table(rows: tuple[TensorChoice, ...]) -> str:
    head = ("tensor", "shape", "format", "bits", "MB", "error", "divergence", "measured with")
    out = ["<table><tr>" + "".join(f"<th>{h}</th>" for h in head) + "</tr>"]
    for row in rows:
        cells = (
            row.name,
            " x ".join(map(str, row.shape)),
            row.chosen.format,
            f"{row.bits:.2f}",
            f"{row.chosen.nbytes / 1e6:.2f}",
            f"{sqrt(row.chosen.error):.4f}",
            f"{row.chosen.kld:.6f}",
            row.group.name if len(row.group.tensors) > 1 else "",
        )
        out.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    return "".join(out) + "</table>"
