"""Options of the commands that load a model and draw text: names, defaults and meaning are llama.cpp's.

What cannot hold is wrong use (exit code 2), said before a file is opened.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from satchel.cli.groups import flag_values, flags_of, option, wrong
from satchel.cli.model_argument import model_file
from satchel.errors import RequestError
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.placement.options import (
    PREFETCHES,
    STREAMS,
    experts_rule,
    read_devices,
    read_expert_cache,
    read_layers,
    read_placement_options,
    read_rules,
    read_size,
)
from satchel.runtime.words import PRECISIONS
from satchel.store.digests import digests_of

if TYPE_CHECKING:
    from satchel.cli.adapters import AdapterOptions
    from satchel.formats.gguf import GGUF
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.options import Options
    from satchel.runtime.speculative import Speculation

M = TypeVar("M", bound="Model")

BATCH_HELP = "Most prompt tokens that are fed in one go; 0: as -ub."
MICRO_BATCH_HELP = "Most tokens of one step; 0: as -b, else 512, or 4096 where all layers are on a GPU."
TYPES = ", ".join(CACHE_TYPES)
CACHE_RAM = "Host memory for what the cache gives up for room, in MiB; 0: none, -1: no limit."
NO_LIMIT = 1 << 62  # bytes
ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: Annotated[
        Path | None,
        option(
            "-m",
            "--model",
            env="MODEL",
            metavar="MODEL",
            parser=model_file,
            help="GGUF file, or a name of `satchel list`; default: the bundled model.",
        ),
    ] = None
    context: Annotated[
        int, option("-c", "--ctx-size", env="CTX_SIZE", min=0, help="Tokens of context; 0: the model's own.")
    ] = 0
    threads: Annotated[
        int, option("-t", "--threads", env="THREADS", help="CPU threads of an answer; -1 or 0: all cores.")
    ] = -1
    threads_batch: Annotated[
        int,
        option("-tb", "--threads-batch", env="THREADS_BATCH", help="CPU threads of a prompt; default: -t."),
    ] = 0
    precision: Annotated[
        str, option("--precision", env="PRECISION", help="exact, or fast: products may round to 8 bits.")
    ] = "exact"
    activations: Annotated[
        int,
        option(
            "--activations",
            env="ACTIVATIONS",
            help="Bits of what quantized weights are multiplied with: 8, 16, or 0: 8, encoders 16.",
        ),
    ] = 0
    repack: Annotated[
        bool,
        option(
            "--repack/--no-repack",
            " /-nr",
            env="REPACK",
            help="Keep weights in the CPU's own order, or in the file, which processes share.",
        ),
    ] = True
    batch: Annotated[
        int,
        option("-b", "--batch-size", env="BATCH", min=0, help=BATCH_HELP),
    ] = 0
    micro_batch: Annotated[
        int, option("-ub", "--ubatch-size", env="UBATCH", min=0, help=MICRO_BATCH_HELP)
    ] = 0
    cache_k: Annotated[
        str, option("-ctk", "--cache-type-k", env="CACHE_TYPE_K", help=f"Of the cache's keys: {TYPES}.")
    ] = "f16"
    cache_v: Annotated[
        str, option("-ctv", "--cache-type-v", env="CACHE_TYPE_V", help="Of its values, as -ctk.")
    ] = "f16"
    cache_ram: Annotated[
        int,
        option("-cram", "--cache-ram", env="CACHE_RAM", metavar="MIB", min=-1, help=CACHE_RAM),
    ] = 0
    gpu_layers: Annotated[
        str,
        option(
            "-ngl",
            "--gpu-layers",
            "--n-gpu-layers",
            env="N_GPU_LAYERS",
            help="How many of the last layers go to GPUs: a number, all, or auto.",
        ),
    ] = "auto"
    device: Annotated[
        str,
        option(
            "-dev", "--device", env="DEVICE", help="Backends to use, a,b,c; none: the CPU alone; or auto."
        ),
    ] = "auto"
    override_tensor: Annotated[
        list[str] | None,
        option(
            "-ot",
            "--override-tensor",
            metavar="PATTERN=DEVICE",
            env="OVERRIDE_TENSOR",
            help="Tensors that go elsewhere than their layer; may be repeated.",
        ),
    ] = None
    tensor_split: Annotated[
        str,
        option(
            "-ts",
            "--tensor-split",
            env="TENSOR_SPLIT",
            metavar="N,N,...",
            help="Shares of the devices in the layers, such as 3,1, one for each of -dev.",
        ),
    ] = ""
    cpu_moe: Annotated[
        bool, option("-cmoe", "--cpu-moe", env="CPU_MOE", help="Leave all experts of a mixture with the CPU.")
    ] = False
    n_cpu_moe: Annotated[
        int,
        option(
            "-ncmoe",
            "--n-cpu-moe",
            env="N_CPU_MOE",
            min=0,
            metavar="N",
            help="Leave the experts of the first N layers with the CPU.",
        ),
    ] = 0
    gpu_memory: Annotated[
        str,
        option("--gpu-memory", env="GPU_MEMORY", metavar="SIZE", help="Memory to take of each GPU: 3GB."),
    ] = ""
    kv_offload: Annotated[
        bool,
        option(
            "--kv-offload/--no-kv-offload",
            " /-nkvo",
            env="KV_OFFLOAD",
            help="Keep the KV cache with its layers, or all of it with the CPU.",
        ),
    ] = True
    stream_weights: Annotated[
        str,
        option(
            "--stream-weights",
            env="STREAM_WEIGHTS",
            help="on, off or auto: read the CPU's weights from the file as it goes, where they do not fit.",
        ),
    ] = "auto"
    prefetch_weights: Annotated[
        str,
        option(
            "--prefetch-weights",
            env="PREFETCH_WEIGHTS",
            help="on, off or auto: prefetch the CPU's weights to a GPU for long steps, where quicker.",
        ),
    ] = "auto"
    expert_cache: Annotated[
        str,
        option(
            "--expert-cache",
            env="EXPERT_CACHE",
            metavar="N|SIZE",
            help="Experts of each layer, or bytes, that a GPU caches: those most used; or auto, off.",
        ),
    ] = "auto"
    dense_attention: Annotated[
        bool,
        option("--dense-attention", help="Attend to all, in models that attend to chosen positions."),
    ] = False
    deterministic: Annotated[
        bool,
        option(
            "--deterministic",
            help="The same bits for the same request: slower on a GPU, usual on the CPU; else a refusal.",
        ),
    ] = False
    check_tensors: Annotated[
        bool, option("--check-tensors", help="Read every weight first and refuse NaN and infinity.")
    ] = False
    verify_weights: Annotated[
        str,
        option(
            "--verify-weights",
            metavar="FILE",
            help="Compare digests first, with a manifest of `satchel hash` or, `store`, what was pulled.",
        ),
    ] = ""
    offline: Annotated[
        bool, option("--offline", help="Open no connection; only `satchel pull` ever does.")
    ] = False

    def __post_init__(self) -> None:
        if self.threads < -1:
            raise wrong("-t", f"{self.threads} threads; -1 or 0 takes all cores")
        if self.threads_batch < -1:
            raise wrong("-tb", f"{self.threads_batch} threads; -1 or 0 takes as many as -t")
        if self.precision not in PRECISIONS:
            raise wrong("--precision", f"{self.precision} is none: there is {' and '.join(PRECISIONS)}")
        if self.activations not in (0, 8, 16):
            raise wrong(
                "--activations", f"{self.activations} bits: there are 8 and 16, and 0: the usual ones"
            )
        self._check_placement()
        if self.stream_weights not in STREAMS:
            raise wrong("--stream-weights", f"{self.stream_weights} is none: there is {', '.join(STREAMS)}")
        if self.prefetch_weights not in PREFETCHES:
            raise wrong(
                "--prefetch-weights", f"{self.prefetch_weights} is none: there is {', '.join(PREFETCHES)}"
            )
        for name, value in (("-ctk", self.cache_k), ("-ctv", self.cache_v)):
            if value not in CACHE_TYPES:
                raise wrong(name, f"{value} is no cache type: there are {TYPES}")

    def _check_placement(self) -> None:
        rules = self.override_tensor or ()
        checks: tuple[tuple[str, Callable[[], object]], ...] = (
            ("-ngl", lambda: read_layers(self.gpu_layers)),
            ("-dev", lambda: read_devices(self.device)),
            ("--expert-cache", lambda: read_expert_cache(self.expert_cache)),
            ("-ts", lambda: read_placement_options(self.device, tensor_split=self.tensor_split)),
            ("-ot", lambda: [read_rules(text) for text in rules]),
            ("--gpu-memory", lambda: self.gpu_bytes),
        )
        for name, read in checks:
            try:
                read()
            except RequestError as error:
                raise wrong(name, str(error)) from None

    @property
    def tensor_rules(self) -> tuple[str, ...]:
        """Rules of tensors that go elsewhere than their layer; experts' last, for the first counts."""
        experts = experts_rule(None if self.cpu_moe else self.n_cpu_moe)
        return (*(self.override_tensor or ()), *([experts] if experts else []))

    @property
    def gpu_bytes(self) -> int:
        """Bytes to take of each GPU at most; 0: what is free."""
        return read_size(self.gpu_memory) if self.gpu_memory else 0


@dataclass(frozen=True, slots=True)
@flags_of(GenerateOptions)
class TextOptions:
    """What is asked, and where the answer ends: the flags of GenerateOptions' fields among them."""

    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None
    file: Annotated[
        list[Path] | None,
        option("-f", "--file", metavar="FILE", help="A file that goes before the prompt; may be repeated."),
    ] = None
    system: Annotated[
        str | None,
        option("-sys", "--system-prompt", env="SYSTEM_PROMPT", metavar="TEXT", help="System prompt."),
    ] = None
    system_file: Annotated[
        Path | None,
        option("-sysf", "--system-prompt-file", metavar="FILE", help="A file with the system prompt."),
    ] = None
    escape: Annotated[
        bool | None,
        option("-e", "--escape/--no-escape", help=r"Read \n, \t, \\ and the like; default: in -p, -sys, -r."),
    ] = None
    reverse: Annotated[
        list[str] | None,
        option(
            "-r", "--reverse-prompt", metavar="TEXT", help="An answer ends before this text; may be repeated."
        ),
    ] = None
    jinja: Annotated[bool, typer.Option("--jinja", hidden=True)] = True
    verbose: Annotated[bool, option("-v", "--verbose", help="Print the timings.")] = False

    def __post_init__(self) -> None:
        if self.system is not None and self.system_file is not None:
            raise wrong("-sysf", "the system prompt is given by -sys already")
        if any(not text for text in self.reverse or ()):
            raise wrong("-r", "an empty text would end every answer at once")

    def generate_kwargs(self) -> GenerateKwargs:
        """As fields of GenerateOptions: those that have a flag, and where the answer ends."""
        kwargs = cast(GenerateKwargs, flag_values(self, GenerateOptions))
        return {**kwargs, "stop": tuple(self._read(text, "-r") for text in self.reverse or ())}

    def system_text(self) -> str:
        """The system prompt, "" for none."""
        if self.system_file is not None:
            return read_text(self.system_file)
        return self._read(self.system or "", "-sys")

    def prompt_text(self, argument: str | None = None) -> str | None:
        """The files of -f and then -p or the argument, a line end between them; None where none is given."""
        if self.prompt is not None and argument is not None:
            raise wrong("prompt", "the prompt is given by -p already")
        last = self._read(self.prompt, "-p") if self.prompt is not None else argument
        if last and self.prompt is None:
            last = typed(last, "prompt", bool(self.escape))
        parts = [*map(self._from_file, self.file or ()), *([last] if last is not None else [])]
        return "\n".join(part for part in parts if part) if parts else None

    def _from_file(self, path: Path) -> str:
        text = read_text(path)
        return typed(text, str(path), True) if self.escape else text

    def _read(self, text: str, name: str) -> str:
        return typed(text, name, self.escape is not False)


def typed(text: str, name: str, escapes: bool) -> str:
    r"""Text of the command line; `escapes`: \n, \r, \t, \', \", \\ and bytes \xHH are read, others stay."""
    data = text.encode("utf-8", "surrogateescape")
    if escapes:
        data = ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else ESCAPES[m[2]], data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise wrong(
            name, f"expected UTF-8 text, got byte {data[error.start]:#04x} at {error.start}"
        ) from None


def read_text(path: Path) -> str:
    """A text file without its last line end. RequestError where it is no UTF-8 text."""
    return decoded(path.read_bytes(), str(path))


def decoded(data: bytes, source: str) -> str:
    """Bytes from outside as text, the last line end taken off."""
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x} at {error.start}"
        raise RequestError(f"{source}: expected UTF-8 text, got {byte}") from None


def default_model() -> Path:
    """The bundled model's file."""
    from importlib.resources import files

    names = re.compile(r"satchel-40m-.*\.gguf")
    found = sorted(str(f) for f in files("satchel.models").iterdir() if names.fullmatch(f.name))
    if not found:
        raise RequestError("no model is bundled with this install: give one with -m FILE")
    return Path(found[0])


def loading(
    options: ModelOptions,
    slots: int,
    adapters: AdapterOptions | None = None,
    worker: str = "thread",
    sandbox: bool = True,
) -> Options:
    """The same as the library has it."""
    from satchel.runtime.api.options import Options

    return Options(
        context=options.context,
        slots=slots,
        threads=max(0, options.threads),
        device="cpu" if options.device == "none" else options.device,
        cache_type_k=options.cache_k,
        cache_type_v=options.cache_v,
        host_cache=NO_LIMIT if options.cache_ram < 0 else options.cache_ram << 20,
        batch=min(filter(None, (options.batch, options.micro_batch)), default=0),
        threads_batch=max(0, options.threads_batch),
        repack=options.repack,
        precision=options.precision,
        activations=options.activations,
        adapters=adapters.lora_files() if adapters else (),
        control_vectors=adapters.control_vector_files() if adapters else (),
        worker=worker,
        sandbox=sandbox,
        deterministic=options.deterministic,
        gpu_layers=options.gpu_layers,
        override_tensor=options.tensor_rules,
        gpu_memory=options.gpu_bytes,
        kv_offload=options.kv_offload,
        stream_weights=options.stream_weights,
        prefetch_weights=options.prefetch_weights,
        expert_cache=options.expert_cache,
        dense_attention=options.dense_attention,
        tensor_split=options.tensor_split,
    )


def open_model(
    options: ModelOptions,
    slots: int = 1,
    *,
    profile: bool = False,
    speculation: Speculation | None = None,
    adapters: AdapterOptions | None = None,
    worker: str = "thread",
    sandbox: bool = True,
) -> Model:
    """Loads the model with room for so many sequences, with a bar where that takes long. profile: the device
    counts the time of each step. worker: "process" for an engine in a process of its own, with a sandbox.
    """
    from satchel.runtime.api.model import Model

    return open_as(
        Model,
        options,
        slots,
        profile=profile,
        speculation=speculation,
        adapters=adapters,
        worker=worker,
        sandbox=sandbox,
    )


def open_as(
    kind: type[M],
    options: ModelOptions,
    slots: int = 1,
    *,
    profile: bool = False,
    speculation: Speculation | None = None,
    adapters: AdapterOptions | None = None,
    worker: str = "thread",
    sandbox: bool = True,
) -> M:
    """The same for a class that is made from Model."""
    from satchel.cli.chat.bar import late_bar

    path = options.model or default_model()
    chosen = loading(options, slots, adapters, worker, sandbox)
    if options.verify_weights:
        chosen = replace(chosen, digests=digests_of(path, options.verify_weights))
    with late_bar(f"loading {path.name}", sys.stderr, in_bytes=True) as progress:
        model = kind.load(
            path,
            chosen,
            profile=profile,
            speculation=speculation,
            progress=progress,
        )
    try:
        check_weights(options, model.gguf)
    except BaseException:
        model.close()
        raise
    return model


def check_weights(options: ModelOptions, gguf: GGUF) -> None:
    """With --check-tensors, ModelError where a weight is no number."""
    if not options.check_tensors:
        return
    from satchel.cli.chat.bar import late_bar
    from satchel.runtime.weights.weights import check_tensors

    with late_bar("checking the weights", sys.stderr, in_bytes=True) as progress:
        check_tensors(gguf, progress)
