"""`satchel merge MODEL OUT`: joins the parts of a split model in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.model_argument import ModelArgument
from satchel.errors import RequestError


def merge(
    source: ModelArgument,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")],
) -> None:
    """Join the parts of a split model. A single file is copied without unreferenced bytes.

    Examples:
        satchel merge big-00001-of-00003.gguf big.gguf
    """
    from satchel.cli.console import progress
    from satchel.formats.gguf import open_gguf, sources, write_gguf

    with open_gguf(source) as gguf:
        if any(target.exists() and target.samefile(part.path) for part in gguf.parts):
            raise RequestError(f"{target}: expected another file than the one that is read")
        with progress("merging", sum(info.nbytes for info in gguf.tensors.values())) as advance:
            write_gguf(target, gguf.metadata, sources(gguf), alignment=gguf.alignment, progress=advance)
        text = f"{target}: {len(gguf.tensors)} tensors, {target.stat().st_size:,} bytes"
    typer.echo(f"{text}, from {len(gguf.parts)} part{'s' * (len(gguf.parts) > 1)}")
