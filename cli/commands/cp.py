"""`satchel cp SOURCE NAME`: gives a model a second name."""

from __future__ import annotations

from typing import Annotated

import typer

from satchel.cli.console import plain
from satchel.cli.progress import working


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A name, or a GGUF file anywhere.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
) -> None:
    """Give a model a second name; its file is pinned in models.lock and not copied.

    Examples:
        satchel cp hf:USER/REPO:Q4_K_M mine
    """
    from satchel.store import Store

    with working(f"hashing {source}"):
        made = Store().copy(source, name)
    print(plain(f"{made.name} is {source}"))
