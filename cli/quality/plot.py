"""`satchel perplexity --plot`: divergence and top-token agreement by position, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from satchel.cli.groups import wrong
from satchel.errors import RequestError
from satchel.formats.gguf.atomic import replace_files

if TYPE_CHECKING:
    from satchel.cli.quality.report import ModelQuality

KINDS = ("svg", "png", "pdf")


def check_plot(path: Path) -> None:
    """Raises UsageError for an unsupported image suffix, RequestError where matplotlib is missing."""
    if path.suffix[1:].lower() not in KINDS:
        raise wrong("--plot", f"{path}: expected a name that ends in .{', .'.join(KINDS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RequestError("--plot needs matplotlib: pip install 'satchel[plot]'") from None


def draw(path: Path, found: Sequence[ModelQuality]) -> None:
    """Draws one line per model in two axes, one above the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for one in found:
        if one.kld is None:
            continue
        x = [(p.first + p.last) / 2 for p in one.kld.by_position]
        upper.plot(x, [p.kld for p in one.kld.by_position], marker=".", label=one.path.name)
        lower.plot(x, [100 * p.same_top for p in one.kld.by_position], marker=".", label=one.path.name)
    upper.set_ylabel("KLD, nats a token")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("same top token, %")
    lower.set_xlabel("position in the window")
    for field in (upper, lower):
        field.grid(alpha=0.3)
    upper.legend()
    replace_files([(path, partial(_save, figure, path.suffix[1:].lower()))])


def _save(figure: Any, kind: str, file: IO[bytes]) -> None:
    figure.savefig(file, format=kind)
