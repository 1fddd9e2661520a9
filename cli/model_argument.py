"""The model of a command line: a path, or a name of the store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def model_file(text: str) -> Path:
    """`model_path`, with a progress bar while it hashes a file that has changed since it was pulled."""
    from satchel.cli.chat.bar import late_bar
    from satchel.store.resolve import model_path

    with late_bar(f"checking {text}", sys.stderr, in_bytes=True) as progress:
        return model_path(text, progress)


ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        parser=model_file,
        help="GGUF file (any part of a split model), or a name of `satchel list`.",
    ),
]
