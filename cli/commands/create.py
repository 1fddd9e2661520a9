"""`satchel create NAME -f MODELFILE`: a model of the store, made of another one as a Modelfile says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.console import plain


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new model's name.")],
    file: Annotated[Path, typer.Option("-f", "--file", metavar="FILE", help="The Modelfile.")] = Path(
        "Modelfile"
    ),
) -> None:
    """Make a model of another one, with a system prompt and sampling of its own.

    Of the Modelfile, FROM, SYSTEM, LICENSE and the PARAMETERs of sampling are written into a copy of the
    file. Prints its path.

    Examples:
        satchel create mine -f Modelfile
    """
    from satchel.cli.commands.pull import shown
    from satchel.cli.options import decoded
    from satchel.store import Store
    from satchel.store.create import create as made
    from satchel.store.modelfile import read_modelfile

    recipe = read_modelfile(decoded(file.read_bytes(), str(file)))
    source = file.parent / recipe.source
    if source.is_file():
        recipe.source = str(source)
    with shown() as watch:
        entry, notes = made(Store(), name, recipe, watch)
    for line in notes:
        print(f"satchel: note: {plain(line)}", file=sys.stderr)
    print(plain(str(entry.path)))
