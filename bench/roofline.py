"""Draws the roofline plot of a model's ops on this machine: docs/roofline.svg.

    python bench/roofline.py [-m MODEL] [-p 512] [-n 64] [-t THREADS] [--json FILE] [--out docs/roofline.svg]

Runs `satchel bench --profile -o json`, or reads its output (--json). Needs matplotlib, of the `plot` extra. A
point is a matrix product or attention: x is its arithmetic intensity in multiply-adds per byte, y its
multiply-adds per second. No point can lie above the bandwidth's slope (of memory; dashed: of repeatedly
reading as many bytes as a step needs, partly from caches), or above the peak of its instruction.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LEAST_SHARE = 0.01  # share of the time below which an op is not drawn
COLORS = ("#1f5fa8", "#c2571a", "#3b7d3b", "#7a4a9e")  # by test
PEAKS = {"int8": "8-bit integers", "bf16": "bfloat16", "f32": "float32"}
CACHED = 1.15  # the dashed slope is drawn where it is so many times as fast as memory
ROOF = "#444444"
GAP = 1.22  # the smallest ratio of two labels' heights


def profile(model: str, prompt: int, generate: int, threads: int) -> list[Row]:
    """Rows of `satchel bench --profile`. model: "" for the bundled one."""
    command = [sys.executable, "-m", "satchel", "bench", "--profile", "-o", "json", "-p", str(prompt)]
    command += ["-n", str(generate), "-t", str(threads), *(["-m", model] if model else [])]
    rows: list[Row] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return rows


def points(rows: Iterable[Row]) -> list[Row]:
    """The rows that are drawn: those that multiply and take a share of the time."""
    drawn = [r for r in rows if r["part"] == "weights" and r["gmac_per_second"]]
    return [r for r in drawn if r["share"] >= LEAST_SHARE]


def label(row: Row) -> str:
    names = row["weights"].replace("blk.*.", "") or row["op"]
    return f"{names}  {100 * row['share']:.0f} %"


def spread(wanted: Sequence[float]) -> list[float]:
    """Heights of labels near `wanted` (ascending), no two closer than GAP."""
    found: list[float] = []
    for y in wanted:
        found.append(max(y, found[-1] * GAP) if found else y)
    shift = math.exp(sum(math.log(w / f) for w, f in zip(wanted, found, strict=True)) / max(1, len(found)))
    return [y * shift for y in found]


def draw(rows: Sequence[Row], out: Path) -> int:
    """Writes the picture; returns the number of points."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "satchel", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    drawn = points(rows)
    figure, axes = pyplot.subplots(figsize=(9.5, 6))
    axes.set(
        xscale="log", yscale="log", xlabel="multiply-adds a byte read", ylabel="10⁹ multiply-adds a second"
    )
    xs = [r["macs_per_byte"] for r in drawn] or [1.0]
    left, right = min(xs) / 3, max(xs) * 8
    roofs(axes, rows, left, right)
    for number, test in enumerate(dict.fromkeys(r["test"] for r in drawn)):
        mine = sorted((r for r in drawn if r["test"] == test), key=lambda r: r["gmac_per_second"])
        stages(axes, mine, test, COLORS[number % len(COLORS)])
    axes.set_xlim(left, right)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    first = rows[0]
    threads = f"{first['threads']} thread" + "s" * (first["threads"] != 1)
    axes.set_title(f"{first['model']}, {threads}, {first['variant']} kernels", loc="left")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    pyplot.close(figure)
    return len(drawn)


def roofs(axes: Any, rows: Sequence[Row], left: float, right: float) -> None:
    """The slopes of bandwidth up to the highest peak, and a line for each kind of number."""
    row = rows[0]
    peaks = {name: peak for name in PEAKS if (peak := row[f"{name}_gmac_per_second"])}
    memory = row["memory_gb_per_second"]
    top = max(peaks.values(), default=memory * right)
    slope(axes, memory, left, top, f"memory {memory:.1f} GB/s", "-")
    for test, read in {r["test"]: r["limit_gb_per_second"] for r in rows}.items():
        if read > CACHED * memory and "tg" in test:
            slope(axes, read, left, top, f"{test}: what it reads {read:.1f} GB/s", "--")
    for name, peak in peaks.items():
        axes.plot([peak / memory, right], [peak, peak], color=ROOF, lw=1.2)
        at = peak / memory * 1.1
        axes.annotate(f"{PEAKS[name]} {peak:,.0f}", (at, peak), (0, 3), textcoords="offset points")


def slope(axes: Any, read: float, left: float, top: float, text: str, style: str) -> None:
    axes.plot([left, top / read], [left * read, top], color=ROOF, lw=1.2, ls=style)
    angle, at = math.degrees(math.atan(read)), left * 1.15
    turned = {"rotation": angle, "rotation_mode": "anchor", "transform_rotates_text": True}
    axes.text(at, at * read * 1.07, text, va="bottom", **turned)


def stages(axes: Any, rows: Sequence[Row], test: str, color: str) -> None:
    """The points of one test, larger the more time they take, with their names to the right."""
    xs, ys = [r["macs_per_byte"] for r in rows], [r["gmac_per_second"] for r in rows]
    sizes = [20 + 500 * r["share"] for r in rows]
    axes.scatter(xs, ys, s=sizes, color=color, alpha=0.75, edgecolors="white", label=test, zorder=3)
    for row, x, y, height in zip(rows, xs, ys, spread(ys), strict=True):
        axes.annotate(
            label(row),
            (x, y),
            (max(xs) * 1.6, height),
            va="center",
            color=color,
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.5, "alpha": 0.5},
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("-p", "--n-prompt", type=int, default=512)
    parser.add_argument("-n", "--n-gen", type=int, default=64)
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("--json", type=Path, help="what `satchel bench --profile -o json` printed")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "roofline.svg")
    o = parser.parse_args(arguments)
    rows = json.loads(o.json.read_text()) if o.json else profile(o.model, o.n_prompt, o.n_gen, o.threads)
    print(f"{draw(rows, o.out)} points in {o.out}")


if __name__ == "__main__":
    main()
