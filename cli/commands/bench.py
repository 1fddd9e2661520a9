"""`satchel bench`: tokens per second, measured as llama-bench does, and their share of the machine's limit.

The table goes to stdout, everything else to stderr. Columns and default tests are llama-bench's; with -npl
they are llama-batched-bench's. Each row is the median of repeats (-r) behind three steps that are not timed,
with the standard deviation of the speeds. --url measures a server over HTTP (cli/load/).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from satchel.cli.console import note
from satchel.cli.groups import Taking, option, with_options, wrong
from satchel.cli.load.command import UrlOptions, measure
from satchel.cli.model_argument import model_file
from satchel.cli.options import ModelOptions, open_model
from satchel.cli.progress import awaited, working
from satchel.cli.tables import BATCHED, MARKDOWN, NUMBERS, OUTPUTS, Column, TableWriter, writer
from satchel.formats.gguf.labels import file_type, parameters, size_label
from satchel.store.resolve import default_model

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.options import LoadKwargs
    from satchel.runtime.device.energy import Counters
    from satchel.runtime.device.peaks import DevicePeaks
    from satchel.runtime.tasks.bench import BenchResult, Test

Words = list[str]
MEANING = """\
GB/s: bytes of the weights and of the attended cache per step, divided by its time; of limit: their share of
the speed at which the device reads as many bytes
GMAC/s: 10^9 multiply-adds a second of weights or cache with activations; of peak: the time that they need at
the measured peak of their instructions, divided by the time that they took
idle us: microseconds of a decoding step in which the device idles; J: joules per token, as counted above"""
MEANING_PROFILE = """\
of roof: the time that a row's bytes or its multiply-adds need at the peak, whichever is longer, divided by
the time that it took
us: microseconds of the first thread; a step on which no other depends may end later on other threads"""
MANY = "Comma-separated."


@dataclass(frozen=True, slots=True)
class TestOptions:
    """The tests: prompts, generated tokens, both in a row, and tokens already in the cache."""

    prompt: Annotated[
        str, option("-p", "--n-prompt", help=f"Prompt tokens of a test; 0: no such test. {MANY}")
    ] = "512"
    generate: Annotated[
        str, option("-n", "--n-gen", help=f"Generated tokens of a test; 0: no such test. {MANY}")
    ] = "128"
    both: Annotated[
        Words | None,
        option("-pg", metavar="PP,TG", help="A prompt test and a generation test in a row; repeatable."),
    ] = None
    depth: Annotated[str, option("-d", "--n-depth", help=f"Tokens in the cache before a test. {MANY}")] = "0"

    def tests(self) -> list[Test]:
        prompts, generated = numbers("-p", self.prompt, 0), numbers("-n", self.generate, 0)
        found = list(chosen(prompts, generated, self.both or [], numbers("-d", self.depth, 0)))
        if not found:
            raise wrong("-p", "expected a test or more, got 0 for -p, -n and -pg")
        return found


@dataclass(frozen=True, slots=True)
class BatchedOptions:
    """The tests of llama-batched-bench: several sequences at a time."""

    npl: Annotated[
        str, option("-npl", help=f"Sequences at a time; prints llama-batched-bench's table. {MANY}")
    ] = ""
    npp: Annotated[str, option("-npp", help=f"With -npl: prompt tokens per sequence. {MANY}")] = ""
    ntg: Annotated[str, option("-ntg", help=f"With -npl: generated tokens per sequence. {MANY}")] = ""

    def __post_init__(self) -> None:
        if not self.npl and (self.npp or self.ntg):
            raise wrong("-npp" if self.npp else "-ntg", "expected -npl beside it")

    def counts(self) -> tuple[list[int], list[int], list[int]]:
        """Numbers of prompt tokens, of generated tokens, and of sequences."""
        prompts, generated = numbers("-npp", self.npp or "512", 1), numbers("-ntg", self.ntg or "128", 1)
        return prompts, generated, numbers("-npl", self.npl, 1)

    def tests(self) -> list[Test]:
        """The answers of these sequences, behind their prompts."""
        from satchel.runtime.tasks.bench import Test

        return [Test(0, tg, pp, pl) for pp, tg, pl in product(*self.counts())]


@with_options
def bench(
    *,
    model: Annotated[
        list[str] | None,
        option(
            "-m",
            "--model",
            metavar="MODEL",
            help="GGUF file or name; with --url the server's name; repeatable.",
        ),
    ] = None,
    test: TestOptions,
    threads: Annotated[str, option("-t", "--threads", help=f"CPU threads; 0: all. {MANY}")] = "0",
    repeats: Annotated[
        int, option("-r", "--repetitions", min=1, help="Timed runs; a row has their median.")
    ] = 5,
    load: Annotated[ModelOptions, Taking(without=("model", "hub", "hub_file", "url", "context", "threads"))],
    batch: BatchedOptions,
    server: UrlOptions,
    output: Annotated[str, option("-o", "--output", help="md, json, jsonl or csv.")] = "md",
    no_warmup: Annotated[bool, option("--no-warmup", help="Measure without what runs before.")] = False,
    profile: Annotated[
        bool, option("--profile", help="Print the time of each op; with -npl, of the answers.")
    ] = False,
    share: Annotated[
        bool, option("--share", help="Print a block to paste elsewhere: machine, model, figures.")
    ] = False,
) -> int:
    """Measure tokens per second, and the share of what the machine's memory and instructions allow.

    Examples:
        satchel bench -m model.gguf -p 512 -n 128
        satchel bench --url http://localhost:8080
    """
    if output not in OUTPUTS:
        raise wrong("-o", f"expected {', '.join(OUTPUTS)}, got {output}")
    if share and (server.url or profile or output != "md"):
        raise wrong("--share", "expected neither --url, --profile nor -o beside it")
    if server.url:
        return on_server(server, model or [], test, batch, output, not no_warmup)
    runs = [
        load.with_load(threads=count).at(path)
        for path in (map(model_file, model) if model else [default_model()])
        for count in numbers("-t", threads, 0)
    ]
    if profile:
        profiled(runs, batch.tests() if batch.npl else test.tests(), repeats, output)
    elif batch.npl:
        batched(runs, batch.counts(), repeats, output, not no_warmup, share)
    else:
        single(runs, test.tests(), repeats, output, not no_warmup, share)
    return 0


def on_server(
    server: UrlOptions,
    models: list[str],
    test: TestOptions,
    batch: BatchedOptions,
    output: str,
    warm_up: bool,
) -> int:
    """Measures a server. Each request draws its sizes from -p and -n; -m is the model's served name."""
    for name, given in (("-pg", test.both), ("-d", test.depth != "0"), ("-npl", batch.npl)):
        if given:
            raise wrong(name, "expected no such test with --url, got one; leave it out")
    if len(models) > 1:
        raise wrong("-m", f"expected one model with --url, got {len(models)}")
    prompts, answers = numbers("-p", test.prompt, 1), numbers("-n", test.generate, 1)
    return measure(server, "".join(models), prompts, answers, output, warm_up)


def numbers(name: str, text: str, low: int) -> list[int]:
    """The integers of a comma-separated list. UsageError for a number below `low`."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise wrong(name, f"expected comma-separated integers, got {text!r}") from None
    if min(found) < low:
        raise wrong(name, f"expected {low} or more, got {min(found)}")
    return found


def chosen(prompts: list[int], generated: list[int], both: Words, depths: list[int]) -> Iterator[Test]:
    """The tests in llama-bench's order: per depth, those of prompts, of generation, and of both."""
    from satchel.runtime.tasks.bench import Test

    pairs = [numbers("-pg", text, 0) for text in both]
    if bad := next((text for text, pair in zip(both, pairs, strict=True) if len(pair) != 2), None):
        raise wrong("-pg", f"expected PP,TG, got {bad!r}")
    for d in depths:
        yield from (Test(n, 0, d) for n in prompts if n)
        yield from (Test(0, n, d) for n in generated if n)
        yield from (Test(pp, tg, d) for pp, tg in pairs if pp + tg)


def opened(options: ModelOptions, **changes: Unpack[LoadKwargs]) -> Model:
    """Loads a model and prints its notes. `changes` replace load options of the command line."""
    model = open_model(options, **changes)
    for line in model.notes:
        note(f"satchel: note: {line}")
    return model


def measured(model: Model, about: dict[str, Any]) -> DevicePeaks:
    """The peak rates of the model's devices, which it also prints."""
    from satchel.runtime.device import peaks as device_peaks
    from satchel.runtime.tasks.bench import Test, bytes_by_device

    with working("measuring the devices' limits"):
        found = device_peaks.measure(bytes_by_device(model.engine, Test(0, 1)))
    memory = f"memory {found.read / 1e9:.1f} GB/s" if found.read else "memory not measured by this device"
    rates = "".join(f", {name} {rate / 1e9:.0f}" for name, rate in found.multiply.items())
    peaks = f"; {rates[2:]} GMAC/s ({about['variant']})" if rates else ""
    note(f"satchel: {about['model']}: limits of {runs_on(model, about)}: {memory}{peaks}")
    return found


def runs_on(model: Model, about: dict[str, Any]) -> str:
    """The names of the devices; the number of threads where the CPU is the only one."""
    if model.engine.devices != ("cpu",):
        return " and ".join(model.engine.devices)
    return f"{about['threads']} threads" if about["threads"] != 1 else "1 thread"


def counted(model: Model) -> Counters:
    """The energy counters of the model's devices, which it also prints."""
    from satchel.runtime.device.energy import counters_of

    found = counters_of(model.engine.devices)
    names = ", ".join(c.name for c in found.counters)
    note(f"satchel: energy: {'; '.join(filter(None, (names, *found.reasons)))}")
    return found


def single(
    runs: list[ModelOptions], tests: list[Test], repeats: int, output: str, warm_up: bool, share: bool
) -> None:
    """Prints llama-bench's table."""
    from satchel.runtime.device.peaks import read_rate
    from satchel.runtime.tasks.bench import Runner, bytes_by_device

    write = writer(output, MARKDOWN)
    for options in runs:
        with opened(options, context=max(t.context for t in tests)) as model:
            about, runner = describe(model), Runner(model.engine, model.arch.vocab)
            limits, counters = measured(model, about), counted(model)
            if share:
                write = headed(model, about, MARKDOWN)
            for test in tests:
                with working(f"{test.name}, {repeats} times"):
                    found = runner.run(test, repeats, warm_up, counters)
                size = round(found.bytes_per_token)
                limit = None if test.prompt else read_rate(bytes_by_device(model.engine, test))
                if limit:
                    rate = f"{size / 1e6:.1f} MB, read again and again: {limit / 1e9:.1f} GB/s"
                    note(f"satchel: {test.name}: a token needs {rate}, which is the limit here")
                write.row({**about, **facts(found, limit, limits)})
    write.end()
    explain(output, MEANING)


def profiled(runs: list[ModelOptions], tests: list[Test], repeats: int, output: str) -> None:
    """Prints the profile of each test: by op, by op and weights, and in all."""
    from satchel.cli.profiles import rows, show
    from satchel.runtime.device.peaks import read_rate
    from satchel.runtime.tasks.bench import Runner, bytes_by_device
    from satchel.runtime.tasks.profile import profile

    write = None if output == "md" else writer(output, ())
    for options in runs:
        room: LoadKwargs = {"context": max(t.context for t in tests), "profile": True}
        if (most := max(t.sequences for t in tests)) > 1:
            room["slots"] = most
        with opened(options, **room) as model:
            about, runner = describe(model), Runner(model.engine, model.arch.vocab)
            limits = measured(model, about)
            for test in tests:
                read = read_rate(bytes_by_device(model.engine, test))
                with working(f"profile of {test.name}, {repeats} times"):
                    found = list(rows(profile(runner, test, repeats), limits, read))
                if write is None:
                    show(test, about, found)
                else:
                    for row in found:
                        write.row({**about, **row})
    if write is not None:
        write.end()
    explain(output, MEANING_PROFILE)


def explain(output: str, meaning: str) -> None:
    """Prints the meaning of the columns below a Markdown table."""
    for line in meaning.splitlines() if output == "md" else ():
        note(f"satchel: {line}")


def headed(model: Model, about: dict[str, Any], columns: Sequence[Column]) -> TableWriter:
    """The writer of a table below a block's head, which it prints."""
    from satchel.cli.share import head

    print(head(model, about, sys.argv[1:]), flush=True)
    return writer("md", columns)


def describe(model: Model) -> dict[str, Any]:
    """The columns that all tests of a model share."""
    info, tensors = model.device.info(), model.gguf.tensors.values()
    count = parameters(model.gguf)
    return {
        "model": f"{model.arch.hp.arch} {size_label(count)} {file_type(model.gguf)}",
        "type": file_type(model.gguf),
        "file": str(model.path),
        "size_bytes": sum(t.nbytes for t in tensors),
        "parameters": count,
        "backend": model.device.name,
        "variant": info.variant,
        "threads": info.threads,
    }


def facts(found: BenchResult, limit: float | None, limits: DevicePeaks) -> dict[str, Any]:
    """The columns of one test.

    limit: bytes a second at which the machine rereads a token's bytes, in part from its caches.
    memory_gb_per_second: the same for more bytes than most caches hold. peak_gmac_per_second: multiply-adds a
    second if each ran at its instruction's peak; share_of_peak compares with it, for prompts alone.
    """
    share = None if found.test.generate else found.share_of_peak(limits)
    return {
        "test": found.test.name,
        "tokens_per_second": found.tokens_per_second,
        "deviation": found.deviation,
        "samples": list(found.samples),
        "bytes_per_token": round(found.bytes_per_token),
        "gb_per_second": found.bytes_per_second / 1e9,
        "limit_gb_per_second": limit and limit / 1e9,
        "memory_gb_per_second": limits.read and limits.read / 1e9,
        "share_of_limit": limit and found.bytes_per_second / limit,
        "macs_per_token": round(found.cost.total / found.test.tokens),
        "gmac_per_second": found.macs_per_second / 1e9,
        "peak_gmac_per_second": share and found.macs_per_second / share / 1e9,
        "share_of_peak": share,
        **{f"{name}_gmac_per_second": limits.giga(name) for name in NUMBERS},
        "outside_c": found.outside_c,
        "device_waits_us": found.waits and found.waits * 1e6,
        "joules_per_token": found.joules,
    }


def batched(
    runs: list[ModelOptions],
    counts: Sequence[list[int]],
    repeats: int,
    output: str,
    warm_up: bool,
    share: bool,
) -> None:
    """Prints llama-batched-bench's table, with the medians of the repeats."""
    from satchel.runtime.tasks.bench import Runner, run_batched

    prompts, generated, parallel = counts
    write = writer(output, BATCHED)
    for options in runs:
        context = max(prompts) + max(generated)
        with opened(options, context=context, slots=max(parallel)) as model:
            about = describe(model)
            note(f"satchel: {about['model']} on {about['threads']} threads")
            if share:
                write = headed(model, about, BATCHED)
            runner = Runner(model.engine, model.arch.vocab)
            lines = run_batched(runner, prompts, generated, parallel, repeats, warm_up)
            for line in awaited(lines, "the next batch"):
                write.row({**about, **line.columns()})
    write.end()
