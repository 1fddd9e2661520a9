"""`satchel pull NAME`: gets models from Hugging Face, an Ollama registry or an address into the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.console import err, plain

if TYPE_CHECKING:
    from satchel.store import Progress, Watch


def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME ...]",
            help="USER/REPO[:QUANT] of the Hugging Face Hub, NAME[:TAG] of Ollama, or an address pasted "
            "from a browser; without any, all of models.lock.",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace a stored file where the server's differs.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Open no connection.")] = False,
) -> None:
    """Download models into the store; an interrupted download is resumed.

    Each file is hashed while it is downloaded, and checked by the GGUF reader before it gets its name;
    models.lock pins it. Prints the path of each model.

    Examples:
        satchel pull hf:USER/REPO:Q4_K_M
        satchel pull llama3.2
    """
    from satchel.store import Store

    store = Store(offline=offline or None)
    for name in names or store.pinned():
        with shown() as watch:
            path = store.pull(name, watch, update=update)
        print(plain(str(path)), flush=True)


@contextmanager
def shown() -> Iterator[Watch | None]:
    """A progress bar per file, with bytes, rate and time left, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=err()) as bars:

        def watch(now: Progress) -> None:
            if now.file not in tasks:
                tasks[now.file] = bars.add_task(plain(now.file.rsplit("/", 1)[-1]), total=now.total)
            bars.update(tasks[now.file], completed=now.done, total=now.total)

        yield watch
