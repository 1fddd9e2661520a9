"""`satchel convert`: converts a checkpoint or adapter folder to GGUF. Notes and progress go to stderr; the
file is written atomically.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.console import note, progress
from satchel.cli.groups import option, wrong

if TYPE_CHECKING:
    from satchel.formats.convert.checkpoint import Checkpoint
    from satchel.formats.convert.lora import LoraCheckpoint

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
OUTTYPE = "Format of the matrices: auto keeps the checkpoint's; f32, f16, bf16, q8_0."
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def convert(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the checkpoint or adapter.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="GGUF file to write; by default DIR's name.")
    ] = None,
    outfile: Annotated[Path | None, option("--outfile", metavar="OUT", help="The same as OUT.")] = None,
    outtype: Annotated[str, option("--outtype", metavar="TYPE", help=OUTTYPE)] = "auto",
    dequantize: Annotated[
        bool, option("--dequantize", help="Decode quantized tensors to bf16 instead of keeping their codes.")
    ] = False,
    no_extensions: Annotated[
        bool, option("--no-extensions", help="Only types of GGUF: FP8 and grouped INT8 are decoded.")
    ] = False,
    no_grids: Annotated[
        bool, option("--no-grids", help="Do not look for floats that lie on a 4-bit grid.")
    ] = False,
    base: Annotated[
        Path | None,
        option("--base", metavar="MODEL", help="An adapter's model: GGUF file, or folder with config.json."),
    ] = None,
    split_max_size: Annotated[
        str | None, option("--split-max-size", metavar="N(M|G)", help="Write parts of up to this size.")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Print what would be written, write nothing.")] = False,
) -> None:
    """Convert a Hugging Face checkpoint or a LoRA adapter to GGUF.

    Examples:
        satchel convert ./Qwen3-0.6B qwen3.gguf
    """
    if outtype.lower() not in OUTTYPES:
        raise wrong("--outtype", f"expected one of {', '.join(OUTTYPES)}, got {outtype!r}")
    if target is not None and outfile is not None:
        raise wrong("--outfile", f"the file to write is {target} already: give one of them")
    size = None if split_max_size is None else read_size(split_max_size)
    path = target or outfile or Path(f"{source.resolve().name}.gguf")
    with opened(source, outtype.lower(), dequantize, not no_extensions, not no_grids, base) as made:
        for line in made.notes:
            note(line)
        total = sum(tensor.nbytes for tensor in made.tensors.values())
        note(f"{len(made.tensors)} tensors, {total:,} bytes: {formats(made)}")
        if dry_run:
            return
        for written in write(made, path, total, size):
            note(f"{written}: {written.stat().st_size:,} bytes")


@contextmanager
def opened(
    source: Path, outtype: str, dequantize: bool, extensions: bool, grids: bool, base: Path | None
) -> Iterator[Checkpoint | LoraCheckpoint]:
    """Opens the folder as a checkpoint or as an adapter."""
    from satchel.formats.convert.shaping import Shaping
    from satchel.runtime.weights.sources import open_adapter, open_checkpoint

    made: Checkpoint | LoraCheckpoint
    if (source / "adapter_config.json").is_file():
        made = open_adapter(source, base, "f32" if outtype == "q8_0" else outtype)
    else:
        if base is not None:
            raise wrong("--base", f"{source} is no adapter: it has no adapter_config.json")
        made = open_checkpoint(source, Shaping(outtype, dequantize, extensions, grids))
    with made:
        yield made


def write(made: Checkpoint | LoraCheckpoint, path: Path, total: int, size: int | None) -> list[Path]:
    """Writes the files, with a progress bar on a terminal, and returns their paths."""
    from satchel.formats.convert.write import write_source

    with progress(f"writing {path.name}", total) as advance:
        return write_source(made, path, max_size=size, progress=advance)


def formats(made: Checkpoint | LoraCheckpoint) -> str:
    """`bf16 x 40, f32 x 17`."""
    counts = Counter(tensor.format for tensor in made.tensors.values())
    return ", ".join(f"{name} x {count}" for name, count in counts.most_common())


def read_size(text: str) -> int:
    """Parses a size such as `300M` or `2G` (decimal, as in GGUF tools) to bytes."""
    match = re.fullmatch(r"([1-9][0-9]{0,11})([KMG]?)", text.upper())
    if match is None:
        raise wrong("--split-max-size", f"expected a number with K, M or G, got {text!r}")
    return int(match[1]) * UNITS[match[2]]
