"""`satchel build MODEL -o OUT`: a model file with its compiled plan, for the C library (docs/apps.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.model_argument import ModelArgument


def build(
    source: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="GGUF file to write.")],
    context: Annotated[
        int,
        typer.Option(
            "-c",
            "--context",
            min=0,
            metavar="N",
            help="Default context of programs; 0: the model's, to 8192.",
        ),
    ] = 0,
    slots: Annotated[
        int, typer.Option("--slots", min=1, metavar="N", help="Default number of answers at a time.")
    ] = 1,
    require_template: Annotated[
        bool,
        typer.Option(
            "--require-template", help="Fail where the C library does not run the file's chat template."
        ),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Write the file without its plan, as it was before.")
    ] = False,
) -> None:
    """Put a model's compiled plan into its file, for programs that run it without Python.

    Examples:
        satchel build model.gguf -o app.gguf
    """
    from satchel.cli.console import progress
    from satchel.formats.gguf import open_gguf
    from satchel.runtime.aot import build as aot

    with open_gguf(source) as gguf:
        nbytes = gguf.parts[0].size
        if undo:
            with progress("writing", nbytes) as advance:
                written = aot.undo(gguf, output, advance)
            typer.echo(f"{output}: {written:,} bytes, without the plan")
            return
        with progress("writing", nbytes) as advance:
            made = aot.build(gguf, output, context, slots, advance, require_template)
    added = made.plan + made.tokenizer + made.template
    typer.echo(f"{output}: {made.size:,} bytes, of which {added:,} are the plan, tokenizer and chat template")
    typer.echo(
        f"context {made.context:,} of {made.least_context:,} to {made.most_context:,}, {made.slots} slots"
    )
    if made.template_refused:
        typer.echo(f"{made.template_refused}; the file holds no chat template", err=True)
    for sets in made.kernel_sets:
        typer.echo(f"plan for the kernels {', '.join(sets)}")
