"""`satchel split MODEL OUT`: a model in parts, named and keyed as llama.cpp's gguf-split does it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.model_argument import ModelArgument
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.formats.gguf.writer import FileLayout

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
USUAL = 128  # tensors per part: gguf-split's default


def split(
    source: ModelArgument,
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Beginning of the parts' names: OUT-00001-of-00003.gguf.")
    ],
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", "--split-max-size", metavar="N[K|M|G]", help="Bytes of tensors per part."),
    ] = None,
    max_tensors: Annotated[
        int | None, typer.Option("--max-tensors", "--split-max-tensors", min=1, help="Tensors per part.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the parts without writing.")] = False,
) -> None:
    """Split a model into parts; by default 128 tensors per part.

    Examples:
        satchel split big.gguf parts --split-max-size 4G
    """
    from satchel.cli.console import progress
    from satchel.formats.gguf import open_gguf, sources
    from satchel.formats.gguf.writer import lay_out, write_layouts

    if max_size is not None and max_tensors is not None:
        raise RequestError("--max-size and --max-tensors: expected one of them, got both; leave one out")
    size = None if max_size is None else parse_size(max_size)
    with open_gguf(source) as gguf:
        counts = None if size is not None else _counts(len(gguf.tensors), max_tensors or USUAL)
        layouts = lay_out(
            target, gguf.metadata, sources(gguf), alignment=gguf.alignment, max_size=size, counts=counts
        )
        if len(layouts) < 2:
            raise RequestError(f"{source}: fits into one part of this size; give a smaller one")
        _check_targets(layouts, [part.path for part in gguf.parts])
        if not dry_run:
            with progress("splitting", sum(layout.size for layout in layouts)) as advance:
                write_layouts(layouts, advance)
    for layout in layouts:
        typer.echo(f"{layout.path}: {len(layout.tensors)} tensors, {layout.size:,} bytes")


def parse_size(text: str) -> int:
    """Parses a size in bytes: a number, optionally with K, M or G (powers of 1000)."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMG]?)B?", text.strip().upper())
    found = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if found < 1:
        raise RequestError(f"--max-size {text!a}: expected a number followed by K, M or G, as in 2G")
    return found


def _counts(tensors: int, most: int) -> list[int]:
    return [min(most, tensors - first) for first in range(0, tensors, most)] or [0]


def _check_targets(layouts: list[FileLayout], sources: list[Path]) -> None:
    """Raises RequestError where the output would replace the parts that are being read."""
    real = {path.resolve() for path in sources}
    same = next((layout.path for layout in layouts if layout.path.resolve() in real), None)
    if same is not None:
        raise RequestError(f"{same}: is a part of the model that is read; choose another name")
