"""`satchel rm NAME`: removes models from the store."""

from __future__ import annotations

from typing import Annotated

import typer

from satchel.cli.console import plain
from satchel.cli.usage import UsageError


def rm(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME ...", help="Names of `satchel list`.")
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Remove the files of interrupted pulls.")
    ] = False,
) -> None:
    """Remove models from the store, and their files unless another name uses them.

    Files in another program's folder are not touched.

    Examples:
        satchel rm hf:USER/REPO:Q4_K_M
        satchel rm --unfinished
    """
    from satchel.cli.commands.list import size
    from satchel.store import Store

    if not names and not unfinished:
        raise UsageError("NAME: expected names of models, or --unfinished")
    store = Store()
    if unfinished:
        print(f"removed {size(store.clean())} of unfinished downloads", flush=True)
    for name in names or ():
        print(plain(f"removed {store.remove(name).name}"), flush=True)
