"""`satchel hash [MODEL]`: digests of a model file, of each tensor, and of the model independent of storage
order.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.model_argument import ModelOrBundled

if TYPE_CHECKING:
    from satchel.formats.gguf import GGUF
    from satchel.formats.gguf.digest import Digests

MAGIC = b"GGUF"


def hash(
    model: ModelOrBundled = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with a manifest (what this prints), or with a model."),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("-a", "--algorithm", help="sha256, sha1, sha512, blake2b or md5.")
    ] = "sha256",
    tensors: Annotated[bool, typer.Option("--tensors/--no-tensors", help="List every tensor.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Print digests of a model: of each tensor, of its files, and one independent of storage order.

    The model's own digest does not change when its tensors are stored in another order, in parts, or with
    another alignment. With --check the exit code is 1 where something differs.

    Examples:
        satchel hash model.gguf
    """
    from satchel.cli.chat.bar import late_bar
    from satchel.formats.gguf import open_gguf
    from satchel.formats.gguf.digest import digest
    from satchel.store.resolve import default_model

    path = model or default_model()
    with open_gguf(path) as gguf:
        with late_bar("hashing", sys.stderr, in_bytes=True) as progress:
            found = digest(gguf, algorithm, progress=progress)
        wrong = None if check is None else _differences(gguf, found, check)
    if as_json:
        typer.echo(json.dumps(asdict(found) | ({} if wrong is None else {"differences": wrong}), indent=2))
    elif wrong is None:
        typer.echo("\n".join(found.lines(tensors)))
    else:
        typer.echo("\n".join(wrong) or f"{path}: {len(found.tensors)} tensors as in {check}")
    return 1 if wrong else 0


def _differences(gguf: GGUF, found: Digests, other: Path) -> list[str]:
    from satchel.formats.gguf import open_gguf
    from satchel.formats.gguf.digest import compare, digest, read_manifest

    if not _is_model(other):
        return compare(gguf, found, read_manifest(other, found.algorithm))
    with open_gguf(other) as wanted:
        theirs = digest(wanted, found.algorithm)
        pairs = [
            (name, _stored(wanted, theirs, name), _stored(gguf, found, name))
            for name in {**theirs.tensors, **found.tensors}
        ]
    return [f"tensor {name}: expected {a}, got {b}" for name, a, b in pairs if a != b]


def _stored(gguf: GGUF, digests: Digests, name: str) -> str:
    info = gguf.tensors.get(name)
    if info is None:
        return "none of that name"
    return f"{info.format} {'x'.join(map(str, info.shape))} {digests.tensors[name]}"


def _is_model(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False
