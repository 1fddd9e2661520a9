"""`satchel imatrix`: collects the input statistics of a model's weights on a text, for `satchel quantize
--imatrix`. The file is written atomically; all output goes to stderr.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from satchel.cli.commands.perplexity import WINDOW, begin, read_text, show_notes
from satchel.cli.console import note
from satchel.cli.groups import option, with_options, wrong
from satchel.cli.options import ModelOptions, open_as
from satchel.cli.progress import counted

TEXT = "The text to run, of the kind that the model is used for; - is stdin."
MEMORY = "Most MB for what --hessian keeps, half of the free memory by default; the widest inputs go without."
SHARE_OF_MEMORY = 2  # the statistics take at most 1/SHARE_OF_MEMORY of the free memory


@with_options
def imatrix(
    *,
    model: ModelOptions,
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="TEXT", help=TEXT)] = None,
    output: Annotated[Path, option("-o", "--output-file", metavar="FILE", help="The file to write.")] = Path(
        "imatrix.gguf"
    ),
    chunks: Annotated[int, option("--chunks", metavar="N", help="Run N windows; -1: all.")] = -1,
    output_format: Annotated[
        Literal["gguf", "dat"], option("--output-format", help="gguf, or llama.cpp's older dat.")
    ] = "gguf",
    hessian: Annotated[
        bool,
        typer.Option("--hessian/--no-hessian", help="Keep what GPTQ needs: larger, better files."),
    ] = True,
    hessian_memory: Annotated[
        int | None, option("--hessian-memory", min=0, metavar="MB", help=MEMORY)
    ] = None,
) -> None:
    """Gather importance data for quantizing.

    The text is cut into windows of -c tokens, 512 by default.

    Examples:
        satchel imatrix -m model.gguf -f text.txt -o imatrix.gguf
    """
    from satchel.formats.imatrix import Origin, write_dat, write_importance
    from satchel.runtime.tasks.imatrix import Observed, choose_products, collect
    from satchel.runtime.tasks.perplexity import windows

    if file is None:
        raise wrong("-f", "there is no text to run: give a file")
    text, context = read_text(file), model.load.context or WINDOW
    with open_as(Observed, model, context=context) as observed:
        show_notes(observed)
        cut = windows(observed.tokenize(text), context, chunks)
        full = hessian and output_format == "gguf"
        free = observed.device.info().memory_free // SHARE_OF_MEMORY >> 20
        memory = free if hessian_memory is None else hessian_memory
        wanted, refused = choose_products(observed.taps, (memory << 20) if full else 0)
        if full and refused:
            note(
                f"satchel: note: --hessian-memory {memory} leaves {len(refused)} inputs out: {_few(refused)}"
            )
        with counted("running the text") as show:
            sums = collect(
                observed, cut, begin(observed), wanted, lambda done, total: show(done, total, "windows")
            )
    write = write_importance if output_format == "gguf" else write_dat
    write(output, sums, Origin((file.name,), len(cut), context))
    note(f"{output}: {output.stat().st_size:,} bytes, {len(cut)} windows of {context} tokens")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
