"""The one place where the user's -m becomes a file: of a path, or of a name of the store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from satchel.quant.errors import ModelError


def model_file(text: str) -> Path:
    """The file of a path or name. RequestError where no model has the name, or its file was changed.

    A path of nothing stays a path: the reader says what is wrong with it. Hashing a file that was touched
    since it was pulled shows a bar.
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
