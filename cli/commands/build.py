"""`satchel build MODEL -o OUT`: a model file with its compiled plan, for the C library (docs/apps.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.model_argument import ModelArgument

if TYPE_CHECKING:
    from satchel.runtime.aot.build import BuildReport


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
    panels: Annotated[
        bool,
        typer.Option(
            "--panels",
            help="Store weights as the CPU's kernels read them; other programs can't read the file.",
        ),
    ] = False,
    grammar: Annotated[
        list[str] | None,
        typer.Option("--grammar", metavar="NAME=FILE", help="Add a JSON schema or GBNF. May be repeated."),
    ] = None,
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
        satchel build model.gguf -o app.gguf --panels
        satchel build model.gguf -o app.gguf --grammar order=order.json
    """
    from satchel.cli.console import progress
    from satchel.formats.gguf import open_gguf
    from satchel.runtime.aot import build as aot

    grammars = dict(map(_read, grammar or ()))
    with open_gguf(source) as gguf, progress("writing", gguf.parts[0].size) as advance:
        if undo:
            written = aot.undo(gguf, output, advance)
        else:
            made = aot.build(gguf, output, context, slots, panels, grammars, advance, require_template)
    if undo:
        typer.echo(f"{output}: {written:,} bytes, without the plan")
    else:
        _tell(made, list(grammars))


def _tell(made: BuildReport, grammars: list[str]) -> None:
    added = made.plan + made.tokenizer + made.template
    typer.echo(
        f"{made.path}: {made.size:,} bytes, of which {added:,} are the plan, tokenizer and chat template"
    )
    typer.echo(
        f"context {made.context:,} of {made.least_context:,} to {made.most_context:,}, {made.slots} slots"
    )
    if made.template_refused:
        typer.echo(f"{made.template_refused}; the file holds no chat template", err=True)
    if made.grammars:
        typer.echo(f"{made.grammars} grammars: {', '.join(grammars)}")
    if made.panels:
        typer.echo(f"panels: {made.panels:,} bytes of weights are mapped as they are")
    for sets in made.kernel_sets:
        typer.echo(f"plan for the kernels {', '.join(sets)}")


def _read(given: str) -> tuple[str, str]:
    """A grammar's name and text, of NAME=FILE."""
    from satchel.errors import RequestError

    name, equals, path = given.partition("=")
    if not name or not equals or not path:
        raise RequestError(f"--grammar: expected NAME=FILE, got {given!r:.80}")
    try:
        return name, Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise RequestError(f"--grammar: {path} can't be read: {reason}") from None
