"""`satchel bundle APP -o OUT`: a program with a built model in it, in one file (docs/apps.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.model_argument import ModelArgument


def bundle(
    source: ModelArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="Program to write; a folder for macOS.")
    ],
    target: Annotated[
        str,
        typer.Option("--target", metavar="NAME", help="As x86_64-windows; default: this machine."),
    ] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="The program serves a page and OpenAI's API on port 8080.")
    ] = False,
    stub: Annotated[
        Path | None,
        typer.Option("--stub", metavar="FILE", help="Program without a model; default: of satchel-stubs."),
    ] = None,
) -> None:
    """Make one file that chats: a program with a model of `satchel build` in it.

    Examples:
        satchel bundle app.gguf -o chat
        satchel bundle app.gguf -o chat --target x86_64-windows --serve
    """
    from satchel.cli.bundles.stubs import find_stub, here
    from satchel.cli.bundles.write import write_bundle
    from satchel.cli.console import progress
    from satchel.errors import RequestError
    from satchel.formats.gguf import open_gguf
    from satchel.runtime.aot.records import PLAN_KEY

    with open_gguf(source) as gguf:
        if PLAN_KEY not in gguf.metadata:
            raise RequestError(f"{source}: holds no plan: run `satchel build {source} -o NEW.gguf` first")
        nbytes = gguf.parts[0].size
    found = find_stub(target or here(), stub)
    if target and found.target != target:
        raise RequestError(f"--stub: expected a program for {target}, got one for {found.target}")
    with progress("writing", nbytes) as advance:
        written = write_bundle(found, source, output, serve, advance)
    what = "serves http://127.0.0.1:8080" if serve else "chats"
    typer.echo(f"{written}: for {found.target}, {what}; the program has {len(found.data):,} bytes of it")
