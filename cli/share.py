"""The head of `satchel bench --share`: what must stand above figures that others compare with theirs. With
the table it makes a block of Markdown for an issue or a forum. Nothing is sent anywhere.

It has no path: of a file only the name is shown, because folders name people.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from satchel.cli.gpus import image_text
from satchel.cli.issue_report import redacted
from satchel.cli.machine import memory, processor, system, version
from satchel.cli.tables import amount
from satchel.cli.version import commit

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model
    from satchel.runtime.device.device import Device


def head(model: Model, about: dict[str, Any], arguments: Sequence[str]) -> str:
    """Markdown of the machine, the devices and the model, which ends before the table of figures.

    about: describe() of cli/commands/bench.py. arguments: of the command line.
    """
    rows = "".join(f"| {name} | {_cell(value)} |\n" for name, value in _facts(model, about, arguments))
    return f"### Satchel: {_cell(about['model'])}\n\n| | |\n|---|---|\n{rows}"


def _facts(model: Model, about: dict[str, Any], arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    made = commit()
    yield "Satchel", version("satchel") + (f", commit {made[:12]}" if made else "")
    yield "system", f"{system()}, Python {platform.python_version()}"
    total, _ = memory()
    yield "processor", processor() + (f", {amount(total)} of memory" if total else "")
    for device in model.devices:
        yield f"device {device.name}", device_text(device)
    yield "model", f"{model.path.name}, {about['model']}, {amount(about['size_bytes'])}"
    yield "command", f"`{command(arguments)}`"


def device_text(device: Device) -> str:
    """The device's name, kernels and memory."""
    info = device.info()
    image = image_text(info.variant, info.image)
    total = f", {amount(info.memory_total)}" if info.memory_total else ""
    return f"{info.name}, {info.variant}{image}{total}, {info.threads} threads"


def command(arguments: Sequence[str]) -> str:
    """The command line, with names in place of paths and without what looks like a secret."""
    words = ["satchel", *(_named(word) for word in arguments)]
    return redacted(shlex.join(words)).replace("`", "'")


def _named(word: str) -> str:
    """The last part of a path, also behind `--flag=`."""
    flag, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    name = PureWindowsPath(value).name if "\\" in value else PurePath(value).name
    return flag + equals + (name or value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
