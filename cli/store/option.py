"""Resolves the MODEL argument of commands, a path or a name of the store, to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from satchel.quant.errors import ModelError


def model_file(text: str) -> Path:
    """The file of a path or name. RequestError where no model has the name, or its file was changed.

    A missing path is returned as it is, and the reader reports it. A file that was modified since it was
    pulled is hashed with a progress bar.
    """
    from satchel.cli.chat.bar import late_bar
    from satchel.cli.store.store import Store

    with late_bar(f"checking {text}", sys.stderr, in_bytes=True) as progress:
        try:
            return Store().find(text, progress)
        except ModelError:
            return Path(text)


ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        parser=model_file,
        help="GGUF file (of a split set, any part), or a name of `satchel list`.",
    ),
]
