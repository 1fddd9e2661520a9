"""`satchel bench`: tokens per second as llama-bench measures them, and their share of the machine's limits.

The table goes to stdout, everything else to stderr. Columns and default tests are llama-bench's; with -npl
they are llama-batched-bench's. With --url it measures a server over HTTP (cli/load/).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from satchel.cli.console import note
from satchel.cli.groups import option, with_options, wrong
from satchel.cli.load.command import UrlOptions, measure
from satchel.cli.options import (
    BATCH_HELP,
    CACHE_RAM,
    MICRO_BATCH_HELP,
    TYPES,
    ModelOptions,
    default_model,
    open_model,
)
from satchel.cli.store.option import model_file
from satchel.cli.tables import BATCHED, MARKDOWN, NUMBERS, OUTPUTS, elements, file_type, size_label, writer

if TYPE_CHECKING:
    from satchel.runtime.bench import BenchResult, Test
    from satchel.runtime.device_peaks import DevicePeaks
    from satchel.runtime.energy import Counters
    from satchel.runtime.model import Model

Words = list[str]
MEANING = """\
GB/s: weights once a step and the cache in sight, at the measured speed; of limit: of reading as many bytes
GMAC/s: 10^9 multiply-adds of weights or cache with activations a second; of peak: the least time that they
take by the instructions measured above, over the time that they took
idle us: of an answer's step in which the device had nothing to do; J: joules a token, of what is counted"""
MEANING_PROFILE = """\
of roof: the least time for a row's bytes or multiply-adds, whichever is longer, over the time that it took
us: of the first thread; a step that needs no other's result may end on others later"""
MANY = "Several: a,b,c."


@dataclass(frozen=True, slots=True)
class TestOptions:
    """The sizes of the tests."""

    prompt: Annotated[str, option("-p", "--n-prompt", help=f"Tokens of the prompt test; 0: none. {MANY}")] = (
        "512"
    )
    generate: Annotated[str, option("-n", "--n-gen", help=f"Tokens of the answer test; 0: none. {MANY}")] = (
        "128"
    )
    both: Annotated[
        Words | None, option("-pg", metavar="PP,TG", help="A test of both in a row; may be repeated.")
    ] = None
    depth: Annotated[str, option("-d", "--n-depth", help=f"Tokens in the cache before a test. {MANY}")] = "0"

    def tests(self) -> list[Test]:
        prompts, generated = numbers("-p", self.prompt, 0), numbers("-n", self.generate, 0)
        found = list(chosen(prompts, generated, self.both or [], numbers("-d", self.depth, 0)))
        if not found:
            raise wrong("-p", "no test is left: -p, -n and -pg are 0")
        return found


@dataclass(frozen=True, slots=True)
class BatchedOptions:
    """The sizes of batched tests, with several sequences at a time."""

    npl: Annotated[str, option("-npl", help=f"Sequences at a time: prints batched-bench's table. {MANY}")] = (
        ""
    )
    npp: Annotated[str, option("-npp", help=f"With -npl: prompt tokens of a sequence. {MANY}")] = ""
    ntg: Annotated[str, option("-ntg", help=f"With -npl: generated tokens of a sequence. {MANY}")] = ""

    def __post_init__(self) -> None:
        if not self.npl and (self.npp or self.ntg):
            raise wrong("-npp" if self.npp else "-ntg", "it goes with -npl")

    def counts(self) -> tuple[list[int], list[int], list[int]]:
        """Prompt tokens, generated tokens, sequences."""
        prompts, generated = numbers("-npp", self.npp or "512", 1), numbers("-ntg", self.ntg or "128", 1)
        return prompts, generated, numbers("-npl", self.npl, 1)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options for loading models: ModelOptions, except those of which a run takes several values."""

    batch: Annotated[int, option("-b", "--batch-size", min=0, help=BATCH_HELP)] = 0
    micro: Annotated[int, option("-ub", "--ubatch-size", min=0, help=MICRO_BATCH_HELP)] = 0
    cache_k: Annotated[str, option("-ctk", "--cache-type-k", help=f"Of the cache's keys: {TYPES}.")] = "f16"
    cache_v: Annotated[str, option("-ctv", "--cache-type-v", help="Of its values, as -ctk.")] = "f16"
    cache_ram: Annotated[int, option("-cram", "--cache-ram", metavar="MIB", min=-1, help=CACHE_RAM)] = 0
    precision: Annotated[str, option("--precision", help="exact, or fast: products may round to 8 bits.")] = (
        "exact"
    )
    activations: Annotated[
        int,
        option(
            "--activations",
            help="Bits that quantized weights meet: 8 or 16; 0: as is usual.",
        ),
    ] = 0
    repack: Annotated[
        bool, option("--repack/--no-repack", " /-nr", help="Keep weights in the CPU's own order, or not.")
    ] = True
    gpu_layers: Annotated[
        str, option("-ngl", "--gpu-layers", "--n-gpu-layers", help="Layers on GPUs: a number, all, auto.")
    ] = "auto"
    device: Annotated[str, option("-dev", "--device", help="Backends to use, a,b,c, or auto.")] = "auto"
    override_tensor: Annotated[
        Words | None,
        option("-ot", "--override-tensor", metavar="PATTERN=DEVICE", help="Repeatable."),
    ] = None
    tensor_split: Annotated[
        str, option("-ts", "--tensor-split", metavar="N,N,...", help="Shares of the devices in the layers.")
    ] = ""
    cpu_moe: Annotated[
        bool, option("-cmoe", "--cpu-moe", help="Leave all experts of a mixture with the CPU.")
    ] = False
    n_cpu_moe: Annotated[
        int,
        option(
            "-ncmoe", "--n-cpu-moe", min=0, metavar="N", help="Leave experts of the first N layers there."
        ),
    ] = 0
    gpu_memory: Annotated[
        str, option("--gpu-memory", metavar="SIZE", help="Memory to take of each GPU: 3GB.")
    ] = ""
    kv_offload: Annotated[
        bool,
        option("--kv-offload/--no-kv-offload", " /-nkvo", help="KV cache with its layers, or with the CPU."),
    ] = True
    stream: Annotated[
        str, option("--stream-weights", help="on, off, auto: read the CPU's weights as it goes.")
    ] = "auto"
    prefetch: Annotated[
        str,
        option(
            "--prefetch-weights", help="on, off, auto: prefetch the CPU's weights to a GPU for long steps."
        ),
    ] = "auto"
    expert_cache: Annotated[
        str,
        option("--expert-cache", metavar="N|SIZE", help="Most used experts that a GPU caches; or auto, off."),
    ] = "auto"
    deterministic: Annotated[
        bool, option("--deterministic", help="The same bits for the same request, slower on a GPU.")
    ] = False

    def model(self) -> ModelOptions:
        return ModelOptions(
            batch=self.batch,
            micro_batch=self.micro,
            cache_k=self.cache_k,
            cache_v=self.cache_v,
            cache_ram=self.cache_ram,
            precision=self.precision,
            activations=self.activations,
            repack=self.repack,
            gpu_layers=self.gpu_layers,
            device=self.device,
            deterministic=self.deterministic,
            override_tensor=self.override_tensor,
            tensor_split=self.tensor_split,
            cpu_moe=self.cpu_moe,
            n_cpu_moe=self.n_cpu_moe,
            gpu_memory=self.gpu_memory,
            kv_offload=self.kv_offload,
            stream_weights=self.stream,
            prefetch_weights=self.prefetch,
            expert_cache=self.expert_cache,
        )


@with_options
def bench(
    *,
    model: Annotated[
        list[str] | None,
        option("-m", "--model", metavar="MODEL", help="File or name; with --url the server's. Repeatable."),
    ] = None,
    test: TestOptions,
    threads: Annotated[str, option("-t", "--threads", help=f"CPU threads; 0: all. {MANY}")] = "0",
    repeats: Annotated[int, option("-r", "--repetitions", min=1, help="How often a test runs.")] = 5,
    load: LoadOptions,
    batch: BatchedOptions,
    server: UrlOptions,
    output: Annotated[str, option("-o", "--output", help="md, json, jsonl or csv.")] = "md",
    no_warmup: Annotated[bool, option("--no-warmup", help="Time the first run too.")] = False,
    profile: Annotated[bool, option("--profile", help="Where the time of each test goes, op by op.")] = False,
) -> int:
    """Measure tokens per second, and the share of what the machine's memory and instructions allow."""
    if output not in OUTPUTS:
        raise wrong("-o", f"{output} is no output: there are {', '.join(OUTPUTS)}")
    if server.url:
        return on_server(server, model or [], test, batch, output)
    base = load.model()
    runs = [
        replace(base, model=path, threads=count)
        for path in (map(model_file, model) if model else [default_model()])
        for count in numbers("-t", threads, 0)
    ]
    if batch.npl and profile:
        raise wrong("--profile", "it goes with -p, -n and -pg, not with -npl")
    if batch.npl:
        batched(runs, batch.counts(), output)
    elif profile:
        profiled(runs, test.tests(), repeats, output)
    else:
        single(runs, test.tests(), repeats, output, not no_warmup)
    return 0


def on_server(
    server: UrlOptions, models: list[str], test: TestOptions, batch: BatchedOptions, output: str
) -> int:
    """Measures a server. -p and -n list sizes from which each request draws one; -m is the model's name
    there.
    """
    for name, given in (("-pg", test.both), ("-d", test.depth != "0"), ("-npl", batch.npl)):
        if given:
            raise wrong(name, "it does not go with --url")
    if len(models) > 1:
        raise wrong("-m", "one model at a time is asked of a server")
    prompts, answers = numbers("-p", test.prompt, 1), numbers("-n", test.generate, 1)
    return measure(server, "".join(models), prompts, answers, output)


def numbers(name: str, text: str, low: int) -> list[int]:
    """Parses a comma-separated list of integers."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise wrong(name, f"expected integers with commas between them, got {text!r}") from None
    if min(found) < low:
        raise wrong(name, f"{min(found)} is below {low}")
    return found


def chosen(prompts: list[int], generated: list[int], both: Words, depths: list[int]) -> Iterator[Test]:
    """The tests in llama-bench's order: prompts, answers, both, for each depth."""
    from satchel.runtime.bench import Test

    pairs = [numbers("-pg", text, 0) for text in both]
    if bad := next((text for text, pair in zip(both, pairs, strict=True) if len(pair) != 2), None):
        raise wrong("-pg", f"expected PP,TG, got {bad!r}")
    for d in depths:
        yield from (Test(n, 0, d) for n in prompts if n)
        yield from (Test(0, n, d) for n in generated if n)
        yield from (Test(pp, tg, d) for pp, tg in pairs if pp + tg)


def opened(options: ModelOptions, slots: int = 1, *, profile: bool = False) -> Model:
    """Loads a model with `slots` sequences, and prints its notes."""
    model = open_model(options, slots, profile=profile)
    for line in model.notes:
        note(f"satchel: note: {line}")
    return model


def measured(model: Model, about: dict[str, Any]) -> DevicePeaks:
    """Measures the peaks of the model's devices, and prints them on one line."""
    from satchel.runtime import device_peaks
    from satchel.runtime.bench import Test, bytes_by_device

    found = device_peaks.measure(bytes_by_device(model.engine, Test(0, 1)))
    memory = f"memory {found.read / 1e9:.1f} GB/s" if found.read else "memory not measured by this device"
    rates = "".join(f", {name} {rate / 1e9:.0f}" for name, rate in found.multiply.items())
    peaks = f"; {rates[2:]} GMAC/s ({about['variant']})" if rates else ""
    note(f"satchel: {about['model']}: limits of {runs_on(model, about)}: {memory}{peaks}")
    return found


def runs_on(model: Model, about: dict[str, Any]) -> str:
    """The names of the devices; for the CPU alone, its threads."""
    if model.engine.devices != ("cpu",):
        return " and ".join(model.engine.devices)
    return f"{about['threads']} threads" if about["threads"] != 1 else "1 thread"


def counted(model: Model) -> Counters:
    """Finds the energy counters of the model's devices, and prints them on one line."""
    from satchel.runtime.energy import counters_of

    found = counters_of(model.engine.devices)
    names = ", ".join(c.name for c in found.counters)
    note(f"satchel: energy: {'; '.join(filter(None, (names, *found.reasons)))}")
    return found


def single(runs: list[ModelOptions], tests: list[Test], repeats: int, output: str, warm_up: bool) -> None:
    """Runs the tests and prints llama-bench's table."""
    from satchel.runtime.bench import Runner, bytes_by_device
    from satchel.runtime.device_peaks import read_rate

    write = writer(output, MARKDOWN)
    for options in runs:
        with opened(replace(options, context=max(t.context for t in tests))) as model:
            about, runner = describe(model), Runner(model.engine, model.arch.vocab)
            limits, counters = measured(model, about), counted(model)
            for test in tests:
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
    """Prints the profile of each test: by op, by op and weights, and the sums."""
    from satchel.cli.profiles import rows, show
    from satchel.runtime.bench import Runner, bytes_by_device
    from satchel.runtime.device_peaks import read_rate
    from satchel.runtime.profile import profile

    write = None if output == "md" else writer(output, ())
    for options in runs:
        with opened(replace(options, context=max(t.context for t in tests)), profile=True) as model:
            about, runner = describe(model), Runner(model.engine, model.arch.vocab)
            limits = measured(model, about)
            for test in tests:
                read = read_rate(bytes_by_device(model.engine, test))
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
    """The meaning of the columns, under the printed table."""
    for line in meaning.splitlines() if output == "md" else ():
        note(f"satchel: {line}")


def describe(model: Model) -> dict[str, Any]:
    """The columns that are equal for all tests of a model."""
    info, tensors = model.device.info(), model.gguf.tensors.values()
    count = elements(model.gguf)
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
    """One test's numbers.

    limit: bytes a second at which this machine reads as much as a token needs, over and over, so partly from
    caches; memory_gb_per_second: the same for more than most caches hold. peak_gmac_per_second: multiply-adds
    a second if each of the test's took as long as its instruction takes at its peak; share_of_peak is against
    that, and of interest for prompts alone.
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


def batched(runs: list[ModelOptions], counts: Sequence[list[int]], output: str) -> None:
    """Runs the batched tests and prints llama-batched-bench's table."""
    from satchel.runtime.bench import Runner, run_batched

    prompts, generated, parallel = counts
    write = writer(output, BATCHED)
    for options in runs:
        context = max(prompts) + max(generated)
        with opened(replace(options, context=context), max(parallel)) as model:
            about = describe(model)
            note(f"satchel: {about['model']} on {about['threads']} threads")
            runner = Runner(model.engine, model.arch.vocab)
            for line in run_batched(runner, prompts, generated, parallel):
                write.row({**about, **line.columns()})
    write.end()
