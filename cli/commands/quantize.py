"""`satchel quantize`: writes a model file in smaller formats. Progress and tables go to stderr; the file is
written atomically.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.groups import option, with_options, wrong
from satchel.cli.model_argument import source_file
from satchel.cli.quantizing.options import BudgetOptions, ImportanceOptions, MixOptions

if TYPE_CHECKING:
    from satchel.formats.imatrix import Importance
    from satchel.formats.quantize import Calibration

SOURCE = "GGUF file (F32, F16 or BF16) or name of `satchel list`, or a checkpoint's folder."
TYPE = "Q8_0, Q6_K, Q5_K_M, Q4_K_M, ..., or a file of rules; left out with --target-size."


@with_options
def quantize(
    *,
    source: Annotated[Path, typer.Argument(metavar="IN", parser=source_file, help=SOURCE)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")],
    type_name: Annotated[str | None, typer.Argument(metavar="TYPE", help=TYPE)] = None,
    mix: MixOptions,
    importance: ImportanceOptions,
    budget: BudgetOptions,
    keep_split: Annotated[bool, option("--keep-split", help="Write as many parts as IN has.")] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Print the table and sizes, write no model.")] = False,
    threads: Annotated[int | None, option("-t", "--threads", min=1, help="Default: all cores.")] = None,
) -> None:
    """Write a model in smaller formats.

    Examples:
        satchel quantize model-f16.gguf small.gguf Q4_K_M
        satchel quantize model-f16.gguf small.gguf --target-size 4GB
    """
    from satchel.cli.quantizing.quantize_job import QuantizeJob
    from satchel.formats.quantize import QuantizeOptions
    from satchel.runtime.weights.sources import open_source

    if (type_name is None) != budget.wanted:
        raise wrong(
            "TYPE", "give either a type or --target-size (--target-bpw), which chooses formats itself"
        )
    if importance.awq and budget.wanted:
        raise wrong(
            "--awq", "a budget measures columns as they are: --save-rules first, then --awq with those"
        )
    with ExitStack() as stack:
        rules = None if type_name is None else mix.rules(type_name)
        data = _open_importance(importance, stack)
        opened = stack.enter_context(open_source(source))
        metadata = {} if data is None else _describe(data)
        calibration = _calibration(data, importance)
        job = QuantizeJob(opened, target, calibration, metadata, keep_split, dry_run, threads, importance.awq)
        if rules is not None:
            leave = mix.leave_output
            job.run(QuantizeOptions(rules.recipe, rules.overrides, rules.pure, mix.requantize, leave))
            return
        from satchel.cli.quantizing.budget import spend

        spend(job, mix, budget)


def _open_importance(options: ImportanceOptions, stack: ExitStack) -> Importance | None:
    if options.file is None:
        return None
    from satchel.formats.imatrix import open_importance

    return stack.enter_context(open_importance(options.file))


def _calibration(data: Importance | None, options: ImportanceOptions) -> Calibration | None:
    from satchel.formats.quantizing.encode import WithoutGptq

    return data if data is None or options.gptq else WithoutGptq(data)


def _describe(data: Importance) -> dict[str, str | int]:
    """llama.cpp's metadata keys of the importance matrix that was used."""
    found: dict[str, str | int] = {"quantize.imatrix.file": data.path.name}
    if data.origin.datasets:
        found["quantize.imatrix.dataset"] = data.origin.datasets[0]
    found["quantize.imatrix.entries_count"] = len(data.weights)
    found["quantize.imatrix.chunks_count"] = data.origin.chunks
    return found
