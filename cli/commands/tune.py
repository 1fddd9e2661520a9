"""`satchel tune`: measures which of a device's kernels is fastest for each step of a model, and saves the
results.

The table goes to stdout. The results are used from then on whenever a model is loaded on that device.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from satchel.cli.console import note, out
from satchel.cli.groups import option, with_options, wrong
from satchel.cli.options import ModelOptions, loading, open_model
from satchel.cli.progress import counted

if TYPE_CHECKING:
    from rich.table import Table

    from satchel.runtime.api.model import Model
    from satchel.runtime.api.options import Options
    from satchel.runtime.device.device import Device
    from satchel.runtime.tuning import Tuned
    from satchel.runtime.tuning.kept import DeviceTuning
    from satchel.runtime.tuning.measure import Measured

TOKENS = "1,2,4,8,16,32,64,128,512"
DEPTHS = "0,2048"
MOST = 1 << 16
SLOTS = 128  # the largest number of decoding sequences; more tokens are measured as a prompt


@with_options
def tune(
    *,
    model: ModelOptions,
    tokens: Annotated[
        str, option("--tokens", metavar="N,N,...", help="Sizes of the measured steps in tokens.")
    ] = TOKENS,
    depths: Annotated[
        str, option("-d", "--depth", metavar="N,N,...", help="Tokens in the cache before the steps.")
    ] = DEPTHS,
    repeats: Annotated[int, option("--repeats", min=1, help="Runs per measurement; the median counts.")] = 7,
    show: Annotated[bool, option("--show", help="Print the stored results without measuring.")] = False,
    forget: Annotated[bool, option("--forget", help="Delete the stored results.")] = False,
    as_json: Annotated[bool, option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure which kernels are fastest here for a model, and use them from now on.

    Examples:
        satchel tune -m model.gguf
    """
    if show or forget:
        if show and forget:
            raise wrong("--forget", "--show is given too: one of them")
        forgotten() if forget else shown(as_json)
        return
    sizes, behind = read_sizes("--tokens", tokens, 1), read_sizes("--depth", depths, 0)
    slots = max((n for n in sizes if n <= SLOTS), default=1)
    context = model.load.context or max(64, max(behind) + max(sizes))
    found: dict[str, list[Measured]] = {name: [] for name in without_choices(loading(model))}
    if not found:
        with open_model(model, context=context, slots=slots, profile=True) as loaded:
            found = {d.name: measured(loaded, d, sizes, repeats, behind) for d in loaded.devices}
    if as_json:
        print(json.dumps({name: [asdict(m) for m in rows] for name, rows in found.items()}))
    for name, rows in found.items():
        if not any(m.steps for m in rows):
            note(f"satchel: {name}: it has one kernel for each step: there is nothing to tune")
        elif not as_json:
            out().print(table({k: t for m in rows for k, t in m.steps.items()}))
            for m in rows:
                print(f"{m.tokens:>5} tokens a step: {m.own_us:,.0f} us of kernels, tuned {m.us:,.0f} us")


def without_choices(options: Options) -> list[str]:
    """The devices of a load, if none of them has several kernels for a step. No model is opened."""
    from satchel.runtime.placement.devices import open_for

    with open_for(options) as opened:
        return [] if any(d.has_choices for d in opened.devices) else [d.name for d in opened.devices]


def read_sizes(name: str, text: str, least: int) -> list[int]:
    """Parses a comma-separated list of numbers, sorted."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise wrong(name, f"expected numbers with commas between them, got {text!r}") from None
    if not least <= found[0] <= found[-1] <= MOST:
        raise wrong(name, f"expected {least} to {MOST} tokens, got {text!r}")
    return found


def measured(
    model: Model, device: Device, sizes: list[int], repeats: int, depths: list[int]
) -> list[Measured]:
    """Measures a device that has several kernels for some steps, and saves the results."""
    from satchel.runtime.tuning import remember
    from satchel.runtime.tuning.measure import measure

    if not device.has_choices:
        return []
    sizes = [n for n in sizes if n <= model.engine.batch]
    with counted(f"satchel: {device.name}") as progress:
        rows = list(measure(model.engine, device, sizes, repeats, depths, progress))
    for m in rows:
        if m.doubted:
            note(f"satchel: {device.name}: {m.tokens} tokens: {m.doubted} sets of kernels gave other logits")
    steps = {k: t for m in rows for k, t in m.steps.items()}
    if steps:
        made = remember(device, steps, datetime.date.today().isoformat())
        changed = sum(t.changes for t in steps.values())
        note(f"satchel: {device.name}: {len(steps)} kinds of steps, {changed} changed: tuning {made.name}")
    return rows


def forgotten() -> None:
    from satchel.runtime.tuning import forget

    note("satchel: all tuning is forgotten" if forget() else "satchel: there was no tuning")


def shown(as_json: bool) -> None:
    from satchel.runtime.tuning import read

    known = read()
    if as_json:
        print(json.dumps({key: facts(d) for key, d in known.items()}))
        return
    if not known:
        note("satchel: nothing is tuned: `satchel tune -m MODEL` does it")
    for d in known.values():
        print(f"{d.device}, {d.day}, tuning {d.name}")
        out().print(table(d.steps))


def facts(d: DeviceTuning) -> dict[str, Any]:
    steps = {k: asdict(t) for k, t in d.steps.items()}
    return {"device": d.device, "day": d.day, "name": d.name, "steps": steps}


def table(steps: Mapping[str, Tuned]) -> Table:
    """Prints a row per class of steps, and marks those that changed."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("step", "kernel", "us", "the device's own", "us"):
        made.add_column(head, justify="right" if head == "us" else "left", overflow="fold")
    for shape, t in sorted(steps.items()):
        made.add_row(shape, t.kernel, f"{t.us:.1f}", t.own if t.changes else "the same", f"{t.own_us:.1f}")
    return made
