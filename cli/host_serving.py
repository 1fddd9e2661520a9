"""What `satchel device` and `satchel engine` share: their options, what is checked before they listen, and
serving until a signal.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from satchel.cli.console import note
from satchel.cli.groups import wrong

LOOPBACK = "127.0.0.1"
T = TypeVar("T")
Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST[:PORT]",
        help="Address of this host on which to listen; 127.0.0.1 is for programs of this host alone.",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", help="The key that clients have too; required."),
]
ModelFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--models",
        metavar="DIR",
        help="Folder of model files, repeatable; default: where the client's file lies, and the store.",
    ),
]


def required(key_file: Path | None) -> Path:
    """The key's file. UsageError where none is given."""
    if key_file is None:
        raise wrong("--key-file", "it is required: `satchel device --make-key FILE` writes a key")
    return key_file


def check_folders(models: Sequence[Path]) -> None:
    """UsageError for one that is no folder."""
    for folder in models:
        if not folder.is_dir():
            raise wrong("--models", f"{folder} is no folder")


def stored(name: str) -> list[Path]:
    """Files of that name in the store."""
    from satchel.store import Store

    return [entry.path for entry in Store().list() if entry.path.name == name]


def serve_until_signal(make: Callable[[], AbstractContextManager[T]], told: Callable[[T], str]) -> None:
    """Serves with the server that make() starts, says what told() gives of it, and shows its log, until
    SIGINT or SIGTERM, also one that comes while it starts.
    """
    from satchel.runtime.log import LOG

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    with make() as server:
        note(told(server))
        over.wait()
    note("ended")
