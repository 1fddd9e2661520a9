"""`satchel stop NAME`: tells a running server to unload models."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from satchel.cli.commands.ps import HOST
from satchel.cli.console import plain


def stop(
    names: Annotated[list[str], typer.Argument(metavar="NAME ...", help="Names of `satchel ps`.")],
    host: Annotated[str, typer.Option("--host", metavar="HOST:PORT", help=HOST)] = "",
) -> None:
    """Unload models of a running server; the next request for one loads it again.

    Examples:
        satchel stop llama3.2
    """
    from satchel.store.running import ServerClient

    server = ServerClient.of(os.environ, host)
    for name in names:
        server.stop(name)
        print(plain(f"stopped {name}"), flush=True)
