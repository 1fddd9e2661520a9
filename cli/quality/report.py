"""Writes the results of `satchel perplexity` as text, as JSON, or several models in one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from satchel.cli.console import plain
from satchel.cli.tables import amount

if TYPE_CHECKING:
    from satchel.runtime.tasks.choices import Accuracy
    from satchel.runtime.tasks.perplexity import Divergence, Perplexity

SHOWN = 8  # parts of a window that are printed
PERCENTS = (
    ("99.9", "kld_p99_9"),
    ("99", "kld_p99"),
    ("95", "kld_p95"),
    ("90", "kld_p90"),
    ("median", "kld_median"),
    ("10", "kld_p10"),
    ("5", "kld_p5"),
    ("1", "kld_p1"),
)


@dataclass(frozen=True, slots=True)
class ModelQuality:
    """One model's result."""

    path: Path
    bytes: int  # of its files
    bits: float  # per weight, over all tensors
    context: int
    seconds: float
    ppl: Perplexity | None = None
    kld: Divergence | None = None
    choices: Accuracy | None = None


def as_text(found: ModelQuality) -> str:
    lines = []
    if found.ppl is not None:
        ppl = found.ppl
        lines.append(
            f"PPL = {ppl.ppl:.4f} +/- {ppl.ppl_error:.4f} ({ppl.tokens} tokens, windows of {found.context})"
        )
    if found.kld is not None and found.ppl is not None:
        lines += _divergence(found.kld, found.ppl)
    if found.choices is not None:
        lines += _choices(found.choices)
    return "\n".join(lines)


def _divergence(kld: Divergence, ppl: Perplexity) -> list[str]:
    said = [
        f"PPL of the base = {kld.ppl_base:.4f} (ratio {ppl.ppl / kld.ppl_base:.4f})",
        f"KLD mean   = {kld.kld_mean:.6f} +/- {kld.kld_error:.6f}",
        f"KLD max    = {kld.kld_max:.6f}",
    ]
    for name, key in PERCENTS:
        label = name if name == "median" else f"{name} %"
        said.append(f"KLD {label:<6} = {getattr(kld, key):.6f}")
    said.append(f"KLD min    = {kld.kld_min:.6f}")
    top, error = 100 * kld.same_top, 100 * kld.same_top_error
    said.append(f"same top token = {top:.2f} +/- {error:.2f} %")
    return [*said, *_by_position(kld)]


def _by_position(kld: Divergence) -> list[str]:
    """Divergence by position in the window, with adjacent parts merged."""
    step = -(-len(kld.by_position) // SHOWN)
    said = ["", "tokens of a window   KLD mean   same top"]
    for at in range(0, len(kld.by_position), step):
        part = kld.by_position[at : at + step]
        sizes = [p.last - p.first + 1 for p in part]
        mean, top = (
            sum(getattr(p, key) * n for p, n in zip(part, sizes, strict=True)) / sum(sizes)
            for key in ("kld", "same_top")
        )
        said.append(f"{part[0].first:>7} to {part[-1].last:<8} {mean:>10.6f} {100 * top:>8.2f} %")
    return said


def _choices(found: Accuracy) -> list[str]:
    return [
        f"accuracy            = {100 * found.raw:.2f} +/- {100 * found.raw_error:.2f} % "
        f"({found.tasks} tasks, guessing gives {100 * found.chance:.2f} %)",
        f"length-normalised   = {100 * found.normalised:.2f} +/- {100 * found.normalised_error:.2f} %",
    ]


def to_json(found: ModelQuality) -> dict[str, Any]:
    """One JSON object. Shares are fractions of 1; kld_ keys are present only with a base."""
    from satchel.formats.logits import scored

    out: dict[str, Any] = {}
    if found.ppl is not None:
        out |= asdict(found.ppl)
        out |= asdict(found.kld) if found.kld else {}
        out |= {"context": found.context, "chunks": found.ppl.tokens // scored(found.context)}
    if found.choices is not None:
        out["multiple_choice"] = asdict(found.choices)
    about = {"model": str(found.path), "bytes": found.bytes, "bits_per_weight": round(found.bits, 4)}
    return {**out, **about, "seconds": round(found.seconds, 3)}


def json_text(found: Sequence[ModelQuality], several: bool) -> str:
    rows = [to_json(one) for one in found]
    return json.dumps(rows if several else rows[0])


def table(found: Sequence[ModelQuality]) -> str:
    """One line for each file, in Markdown."""
    heads = ["model", "size", "bits/weight"]
    if any(one.ppl for one in found):
        heads.append("PPL")
    if any(one.kld for one in found):
        heads += ["KLD mean", "KLD median", "KLD 99 %", "same top"]
    if any(one.choices for one in found):
        heads += ["accuracy", "normalised"]
    rows = [_cells(one) for one in found]
    widths = [max(len(h), *(len(r.get(h, "")) for r in rows)) for h in heads]
    body = [_line([r.get(h, "") for h in heads], widths) for r in rows]
    rule = "| " + " | ".join("-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)) + " |"
    return "\n".join([_line(heads, widths), rule, *body])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"


def _cells(one: ModelQuality) -> Mapping[str, str]:
    out = {"model": plain(one.path.name), "size": amount(one.bytes), "bits/weight": f"{one.bits:.2f}"}
    if one.ppl is not None:
        out["PPL"] = f"{one.ppl.ppl:.3f} ± {one.ppl.ppl_error:.3f}"
    if one.kld is not None:
        out["KLD mean"] = f"{one.kld.kld_mean:.5f} ± {one.kld.kld_error:.5f}"
        out["KLD median"] = f"{one.kld.kld_median:.5f}"
        out["KLD 99 %"] = f"{one.kld.kld_p99:.4f}"
        out["same top"] = f"{100 * one.kld.same_top:.2f} %"
    if one.choices is not None:
        out["accuracy"] = f"{100 * one.choices.raw:.2f} ± {100 * one.choices.raw_error:.2f} %"
        out["normalised"] = f"{100 * one.choices.normalised:.2f} ± {100 * one.choices.normalised_error:.2f} %"
    return out
