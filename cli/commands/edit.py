"""`satchel edit MODEL [OUT]`: changes metadata atomically.

The checks of `satchel verify` run on the new metadata, and refuse a change with which the file would not
load.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.model_argument import model_file
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.formats.gguf import GGUF, Metadata
    from satchel.formats.verify import Finding

SHOWN = 60  # characters of a value that are printed


def edit(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="GGUF file (the part of a split set to edit), or with OUT a name of `satchel list`.",
        ),
    ],
    target: Annotated[
        Path | None, typer.Argument(metavar="[OUT]", help="Write this file instead of changing MODEL.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY[:TYPE]=VALUE",
            help="Give a key a value; may be repeated. Its type is kept. @PATH is the text of a file.",
        ),
    ] = None,
    removes: Annotated[
        list[str] | None, typer.Option("--remove", metavar="KEY", help="Remove a key; may be repeated.")
    ] = None,
    renames: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Give a key another name.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write the file even if it would not load.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes without writing.")] = False,
) -> None:
    """Change a model file's metadata. Tensors and all other keys stay byte for byte.

    Examples:
        satchel edit model.gguf edited.gguf --set general.name=Mine
    """
    from satchel.cli.console import note, progress
    from satchel.formats.gguf import open_gguf
    from satchel.formats.gguf.edit import change, parse_assignment, write_edited

    model = _source(name, target is None and not dry_run)
    with open_gguf(model) as gguf:
        changed = change(
            gguf.metadata,
            sets=[parse_assignment(text, gguf.metadata) for text in sets or ()],
            removes=removes or (),
            renames=[_renamed(text) for text in renames or ()],
        )
        lines = _changes(gguf.metadata, changed)
        if not lines:
            note(f"{model}: has these values already; nothing was written")
            return
        if not force:
            _check_loads(gguf, changed)
        for line in lines:
            note(line)
        if dry_run:
            return
        with progress("writing", sum(i.nbytes for i in gguf.tensors.values() if i.part == 0)) as advance:
            write_edited(gguf, changed, target, advance)


def _source(name: str, in_place: bool) -> Path:
    """The file to read. RequestError for a model of the store that would be changed in place."""
    path = model_file(name)
    if in_place and not Path(name).is_file() and path.is_file():
        raise RequestError(f"{name}: a model of the store stays as it was pulled: name a file OUT to write")
    return path


def _check_loads(gguf: GGUF, changed: Metadata) -> None:
    """RequestError for new metadata with which the file would not load."""
    if worse := worsened(gguf, changed):
        more = f" ({len(worse)} such findings)" if len(worse) > 1 else ""
        raise RequestError(
            f"the file would not load{more}: {worse[0].message}; --force writes it all the same"
        )


def worsened(gguf: GGUF, changed: Metadata) -> list[Finding]:
    """Errors of the new metadata that the old one does not have."""
    from satchel.formats.verify import Log
    from satchel.runtime.tasks.verify import check_model
    from satchel.runtime.weights.weights import FileWeights

    if gguf.metadata.get("general.type", "model") != "model":
        return []
    found: list[list[Finding]] = []
    for metadata in (gguf.metadata, changed):
        log = Log(gguf.path)
        log.knows(gguf, metadata)
        check_model(metadata, FileWeights(gguf), log)
        found.append([finding for finding in log.findings if finding.severity == "error"])
    before = {(finding.check, finding.subject) for finding in found[0]}
    return [finding for finding in found[1] if (finding.check, finding.subject) not in before]


def _renamed(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise RequestError(f"--rename {text[:60]!a}: expected OLD=NEW, as in general.nam=general.name")
    return old, new


def _changes(old: Metadata, new: Metadata) -> list[str]:
    """A line for each changed key."""
    from satchel.formats.gguf.splits import same_value

    lines = [f"{key}: {_shown(old, key)} -> removed" for key in old if key not in new]
    for key in new:
        if key not in old:
            lines.append(f"{key}: new: {_shown(new, key)}")
        elif not same_value(old.typed(key), new.typed(key)):
            lines.append(f"{key}: {_shown(old, key)} -> {_shown(new, key)}")
    return lines


def _shown(metadata: Metadata, key: str) -> str:
    from satchel.formats.gguf.describe import describe_value

    entry = describe_value(metadata.typed(key))
    text = repr(entry["value"])
    length = f" of {entry['length']}" if "length" in entry else ""
    return f"{text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'} ({entry['type']}{length})"
