"""`satchel plan MODEL`: the memory that a model would take on each device, without loading it.

Only the file's header is read, except with --check, which runs the model, and --check-tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from satchel.cli.console import note, out, plain, warn
from satchel.cli.groups import Taking, option, with_options, wrong
from satchel.cli.model_argument import model_file
from satchel.cli.options import ModelOptions, check_weights, loading, open_model
from satchel.cli.progress import working
from satchel.runtime.option import PARALLEL

if TYPE_CHECKING:
    from rich.table import Table

    from satchel.runtime.compiler.check import StepReport
    from satchel.runtime.placement.dryrun import DryRun, Share

MIB = 1 << 20
MARGIN = 32  # tokens of context beyond the text of --check


@with_options
def plan(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]", parser=model_file, help="File or name; default: the bundled model."
        ),
    ] = None,
    *,
    model: Annotated[ModelOptions, Taking(groups=(PARALLEL,))],
    steps: Annotated[bool, option("--steps", help="List the steps of a plan.")] = False,
    bucket: Annotated[
        int, option("--bucket", min=1, metavar="N", help="Tokens of the plan that --steps lists.")
    ] = 1,
    passes: Annotated[bool, option("--passes", help="Count the graph's nodes after each pass.")] = False,
    check: Annotated[
        str | None,
        option("--check", metavar="TEXT", help="Run TEXT and compare each step with its definition."),
    ] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model would take on each device, before it is loaded.

    Examples:
        satchel plan model.gguf --steps
    """
    if file is not None and (model.model or model.hub or model.url):
        raise wrong("MODEL", "the model is given by -m, -hf or -mu already")
    options = model if file is None else model.at(file)
    if check is not None:
        report_check(run_check(options, check), steps, as_json)
        return
    with dry(options) as run:
        for line in run.settled.notes:
            note(f"satchel: note: {line}")
        with working("compiling the plans"):
            facts = collect(run, bucket if steps else 0, passes)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
    else:
        show(facts)


@contextmanager
def dry(options: ModelOptions) -> Iterator[DryRun]:
    """The model's graph and plans without its weights. File and device are closed afterwards."""
    from satchel.formats.gguf import open_gguf
    from satchel.runtime.api.overrides import override
    from satchel.runtime.placement.dryrun import dry_run
    from satchel.runtime.placement.split_mode import open_split

    loaded = loading(options)
    with open_gguf(options.path) as gguf:
        for line in gguf.warnings:
            warn(line)
        check_weights(options, gguf)
        override(gguf, loaded.override_kv, loaded.chat_template)
        with open_split(gguf, loaded) as opened:
            for line in opened.notes:
                note(f"satchel: note: {line}")
            yield dry_run(gguf, opened.devices, loaded)


def collect(run: DryRun, bucket: int, passes: bool) -> dict[str, Any]:
    """The facts that --json prints. bucket: 0 omits the steps."""
    shares = list(run.shares())
    found: dict[str, Any] = {
        "model": str(run.gguf.path),
        "architecture": run.arch.hp.arch,
        "context": run.arch.cache.context,
        "slots": run.arch.cache.slots,
        "kv_tokens": run.arch.cache.capacity,
        "cache_type": run.arch.cache.label,
        "batch": run.batch,
        "devices": [share_facts(share) for share in shares],
        "fits": all(share.fits for share in shares),
        "moved": list(run.optimized.assignment.moved),
        **placement_facts(run),
        "groups": group_facts(run),
    }
    if bucket:
        made = run.plan(bucket)
        found["bucket"] = {"tokens": made.bucket.tokens, "rows": made.bucket.rows}
        found["steps"] = list(made.listing())
        found["step_weight_bytes"] = made.weight_bytes
    if passes:
        found["passes"] = [{"name": name, "nodes": count} for name, count in run.passes]
    return found


def share_facts(share: Share) -> dict[str, Any]:
    return {
        "device": share.device,
        "name": share.info.name,
        "variant": share.info.variant,
        "threads": share.info.threads,
        "weights_bytes": share.weights,
        "packed_bytes": share.packed,
        "kv_bytes": share.kv,
        "compute_bytes": share.compute,
        "total_bytes": share.total,
        "free_bytes": share.free,
        "fits": share.fits,
    }


def placement_facts(run: DryRun) -> dict[str, Any]:
    """The placement, its predicted speed, and a recipe that fits where this file does not."""
    from satchel.runtime.placement.smaller import recipe_that_fits

    placement, layers, shares = run.settled.placement, run.arch.layers, list(run.shares())
    predicted = run.predicted() if run.settled.streamed is False else None
    fits = all(share.fits for share in shares)
    largest = max(shares, key=lambda share: share.free)
    smaller = None if fits else recipe_that_fits(run.gguf, largest.free - largest.kv - largest.compute)
    return {
        "placement": {
            "embed": placement.label("embed"),
            "layers": [placement.label(f"blk.{i}") for i in range(layers)],
            "output": placement.label("output"),
            "tensors": dict(placement.weights),
            "states": dict(placement.states),
        },
        "stages": list(run.stages),
        "streamed": run.settled.streamed,
        "predicted": predicted and {"pp512": predicted.pp, "tg128": predicted.tg},
        "would_fit": smaller and smaller.name,
    }


def group_facts(run: DryRun) -> list[dict[str, Any]]:
    """How each group of devices divides the layers that it has."""
    from satchel.runtime.device.group import GroupDevice
    from satchel.runtime.placement.collectives import collective_speed
    from satchel.runtime.shard.report import report

    devices = {d.name: d for d in run.devices if isinstance(d, GroupDevice)}
    facts, predicted = list[dict[str, Any]](), run.predicted() if devices else None
    for found in report(run.optimized, run.division) if run.division else ():
        group, share = devices[found.name], None
        link, library = group.group_info().link, group.group_info().library
        if predicted is not None:
            speed = collective_speed(group)
            library = speed.library
            share = min(1.0, speed.seconds(found.reduces, found.reduce_bytes) / predicted.decode)
        about = {"link": link, "library": library, "reduce_share": share}
        facts.append(found._asdict() | about)
    return facts


def show_group(group: dict[str, Any]) -> None:
    """The members of a group, what they meet for in a step, and which matrices each of them has whole."""
    by = f"; {group['library']} adds up long prompts" if group["library"] else ""
    share = group["reduce_share"]
    part = "" if share is None else f", {100 * share:.0f} % of the time of a step of one token"
    lines = [
        f"{group['name']}: {group['members']} members divide each layer; they meet over {group['link']}{by}",
        f"a step: {group['reduces']} all-reduces, {group['reduce_bytes']:,} bytes a token in all{part}; "
        f"gathers of {group['gather_bytes']:,} bytes a sampled token",
        f"{group['divided']:.1f} % of the matrices' bytes are divided",
    ]
    if group["blocks"]:
        lines.append(
            f"{group['blocks']} caches are divided by blocks (context parallelism): "
            f"{group['block_gathers']} more gathers a step, of {group['block_gather_bytes']:,} bytes a token"
        )
    lines += [f"whole on each member: {name}: {why}" for name, why in group["whole"].items()]
    for line in lines:
        out().print(plain(line), markup=False)


def show_placement(facts: dict[str, Any]) -> None:
    """The layers of each device, and the predicted speed."""
    console, placed = out(), facts["placement"]
    names = dict.fromkeys((*placed["layers"], placed["output"], placed["embed"]))
    if len(names) > 1 or (len(facts["devices"]) > 1 and not facts["groups"]):
        for name in names:
            mine = [i for i, device in enumerate(placed["layers"]) if device == name]
            parts = [f"layers {spans(mine)}"] if mine else []
            parts += ["the head"] * (placed["output"] == name) + ["the embeddings"] * (
                placed["embed"] == name
            )
            others = sum(device == name for device in placed["tensors"].values())
            parts += [f"{others} tensors of other layers"] if others else []
            console.print(plain(f"{name}: {', '.join(parts)}"), markup=False)
    if stages := facts["stages"]:
        most = f"up to {len(stages)} steps are under way, each on another of {', '.join(stages)}"
        console.print(
            plain(f"lanes: {most}, where as many sequences or chunks of prompts wait"), markup=False
        )
    show_predicted(facts)


def show_predicted(facts: dict[str, Any]) -> None:
    console, predicted = out(), facts["predicted"]
    if predicted:
        speeds = predicted["pp512"], predicted["tg128"]
        prompt, answer = (f"{n:,.0f}" if n >= 1000 else f"{n:.4g}" for n in speeds)
        rates = f"{prompt} t/s of a prompt (pp512), {answer} t/s of an answer (tg128)"
        console.print(plain(f"predicted: {rates}"), markup=False)


def spans(numbers: list[int]) -> str:
    """Formats ascending numbers as ranges: 0-3, 7."""
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def show(facts: dict[str, Any]) -> None:
    """Prints tables to stdout, and a warning where the model does not fit."""
    console = out()
    cache = f"{facts['cache_type']} cache of {facts['kv_tokens']} tokens"
    sizes = f"context {facts['context']}, {facts['slots']} slots, {cache}, {facts['batch']} a step"
    console.print(plain(f"{facts['model']}: {facts['architecture']}, {sizes}"), markup=False)
    table = new_table("device", "weights", "KV cache", "compute", "total", "free", "fits")
    for d in facts["devices"]:
        kinds = ("weights", "kv", "compute", "total", "free")
        amounts = [f"{d[f'{kind}_bytes'] / MIB:,.1f} MiB" for kind in kinds]
        name = f"{d['device']} ({d['name']}, {d['variant']}, {d['threads']} threads)"
        table.add_row(plain(name), *amounts, "yes" if d["fits"] else "no")
    console.print(table)
    for group in facts["groups"]:
        show_group(group)
    show_placement(facts)
    for d in facts["devices"]:
        if d["packed_bytes"]:
            own = (
                f"{d['packed_bytes'] / MIB:,.1f} MiB of the weights in its own order, which no process shares"
            )
            console.print(
                plain(f"{d['device']} keeps {own}; --no-repack leaves them in the file"), markup=False
            )
    if "passes" in facts:
        counts = new_table("pass", "nodes")
        for row in facts["passes"]:
            counts.add_row(row["name"], str(row["nodes"]))
        console.print(counts)
    for line in facts.get("steps", []):
        print(plain(line))
    for line in facts["moved"]:
        warn(line)
    if not facts["fits"]:
        advice = facts["would_fit"]
        less = f"{advice} would fit: `satchel quantize`" if advice else "no type of the model is small enough"
        warn(f"it does not fit the free memory; a smaller context (-c) needs less; {less}")


def new_table(first: str, *numbers: str) -> Table:
    from rich.table import Table

    table = Table(first, box=None, pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def run_check(options: ModelOptions, text: str) -> list[StepReport]:
    """Compares each step of the model on this text with numpy. DeviceError at the first one out of bounds."""
    from satchel.formats.gguf import open_gguf
    from satchel.formats.tokenizer import build_tokenizer
    from satchel.runtime.compiler.check import check_steps

    # The numpy definitions copy the states, whose size depends on the context: keep it as small as the text
    # allows.
    with open_gguf(options.path) as gguf:
        count = len(build_tokenizer(gguf.metadata, source=str(gguf.path)).encode(text))
    with open_model(options, context=count + MARGIN, slots=1) as model, working("running each step twice"):
        return check_steps(model, model.tokenize(text))


def report_check(reports: list[StepReport], each: bool, as_json: bool) -> None:
    """One line an op, or with `each` a line a step, and how near the nearest came."""
    from dataclasses import asdict

    if as_json:
        print(json.dumps([asdict(r) for r in reports]))
        return
    worst: dict[str, StepReport] = {}
    for r in reports:
        worst[r.op] = max(worst.get(r.op, r), r, key=lambda r: r.nmse)
    for r in reports if each else worst.values():
        placement = f"{r.number:5d} {plain(r.label):<8} {r.op:<16} {r.tokens:4d} tokens"
        print(f"{placement}  nmse {r.nmse:.1e}, at most {r.bound:.0e}")
    print(
        f"{len(reports)} steps are within their bounds" + ("" if each else "; shown is the worst of each op")
    )
