"""How a model is loaded. Each load option is one field of Options, from which the flags of the commands and
the keys of a server's [models.NAME] are derived (load_option.py). LoadKwargs types the same names for
`**kwargs`. A new option is added here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from satchel.errors import RequestError
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.adapter_file import Loadable
from satchel.runtime.load_option import PARALLEL, SERVER, WORKER, check_options, documented, load_option
from satchel.runtime.placement.options import (
    PREFETCHES,
    STREAMS,
    PlacementOptions,
    read_devices,
    read_expert_cache,
    read_layers,
    read_placement_options,
    read_rules,
    read_size,
    read_split,
)
from satchel.runtime.scheduler_limits import USUAL, SchedulerLimits
from satchel.runtime.speculation import Speculation
from satchel.runtime.words import PRECISIONS, WORKERS

ALONE_SECONDS = 0.25  # for which a prompt may hold up other requests
NO_LIMIT = 1 << 62  # bytes
TYPES = ", ".join(CACHE_TYPES)
# bytes done, bytes in all; False stops the load, any other answer goes on
LoadProgress = Callable[[int, int], object]


def _threads(given: int) -> int:
    """-1 is llama.cpp's word for 0."""
    return 0 if given == -1 else given


def _cache_bytes(mib: int) -> int:
    """Bytes of so many MiB; -1 is llama.cpp's word for no limit."""
    return NO_LIMIT if mib == -1 else mib << 20


@documented
@dataclass(frozen=True, slots=True)
class Options:
    """How a model is loaded: every load option, with the default that the library has."""

    context: int = load_option(
        0,
        doc="Tokens of context; 0: the model's own, as far as a quarter of the free memory allows.",
        least=0,
        flags=("-c", "--ctx-size"),
        env="CTX_SIZE",
        help="Tokens of context; 0: the model's own.",
    )
    slots: int = load_option(
        1,
        doc="Sequences that run together.",
        least=1,
        flags=("-np", "--parallel"),
        env="N_PARALLEL",
        group=PARALLEL,
    )
    threads: int = load_option(
        0,
        doc="CPU threads of an answer; 0: all cores.",
        least=0,
        flags=("-t", "--threads"),
        env="THREADS",
        help="CPU threads of an answer; -1 or 0: all cores.",
        from_flag=_threads,
    )
    threads_batch: int = load_option(
        0,
        doc="CPU threads of a prompt; 0: as many as `threads`.",
        least=0,
        flags=("-tb", "--threads-batch"),
        env="THREADS_BATCH",
        help="CPU threads of a prompt; -1 or 0: as -t.",
        from_flag=_threads,
    )
    precision: str = load_option(
        "exact",
        doc="exact, or fast: products may round weights to 8 bits.",
        choices=PRECISIONS,
        flags=("--precision",),
        env="PRECISION",
    )
    activations: int = load_option(
        0,
        doc="Bits of what quantized weights are multiplied with: 8, 16, or 0: 8, encoders 16.",
        choices=(0, 8, 16),
        flags=("--activations",),
        env="ACTIVATIONS",
    )
    repack: bool = load_option(
        True,
        doc="Keep weights in the CPU's own order; False: in the mapped file, which processes share, and"
        " products are slower.",
        flags=("--repack/--no-repack", " /-nr"),
        env="REPACK",
        help="Keep weights in the CPU's own order, or in the file, which processes share.",
    )
    batch: int = load_option(
        0,
        doc="Most tokens of a step; 0: 512, 4096 with all layers on a GPU, and for an encoder its context.",
        least=0,
        most=1 << 16,
        flags=("-b", "--batch-size"),
        env="BATCH",
        help="Most prompt tokens that are fed in one go; 0: as -ub.",
    )
    cache_type: str = load_option("f16", doc=f"Of the cache's keys and values: {TYPES}.", choices=CACHE_TYPES)
    cache_type_k: str = load_option(
        "",
        doc="Of the cache's keys; empty: as cache_type.",
        choices=("", *CACHE_TYPES),
        flags=("-ctk", "--cache-type-k"),
        env="CACHE_TYPE_K",
        help=f"Of the cache's keys: {TYPES}; default: f16.",
    )
    cache_type_v: str = load_option(
        "",
        doc="Of the cache's values; empty: as cache_type.",
        choices=("", *CACHE_TYPES),
        flags=("-ctv", "--cache-type-v"),
        env="CACHE_TYPE_V",
        help="Of its values, as -ctk.",
    )
    host_cache: int = load_option(
        0,
        doc="Bytes of host memory for blocks of the KV cache that were given up for room; 0: none.",
        least=0,
        flags=("-cram", "--cache-ram"),
        env="CACHE_RAM",
        metavar="MIB",
        help="Host memory for what the cache gives up for room, in MiB; 0: none, -1: no limit.",
        from_flag=_cache_bytes,
    )
    gpu_layers: str | int = load_option(
        "auto",
        doc="How many of the last layers go to GPUs: a number, all, or auto: what is fastest.",
        check=read_layers,
        flags=("-ngl", "--gpu-layers", "--n-gpu-layers"),
        env="N_GPU_LAYERS",
        help="How many of the last layers go to GPUs: a number, all, or auto.",
    )
    device: str = load_option(
        "auto",
        doc="Backends to use, a,b,c, each NAME or NAME:INDEX; none: the CPU alone; or auto.",
        check=read_devices,
        flags=("-dev", "--device"),
        env="DEVICE",
        help="Backends to use, a,b,c; none: the CPU alone; or auto.",
        from_flag=lambda text: "cpu" if text == "none" else text,
    )
    override_tensor: Sequence[str] = load_option(
        (),
        doc="PATTERN=DEVICE for tensors that go elsewhere than their layer.",
        check=lambda rules: [read_rules(text) for text in rules],
        flags=("-ot", "--override-tensor"),
        env="OVERRIDE_TENSOR",
        metavar="PATTERN=DEVICE",
        help="Tensors that go elsewhere than their layer; may be repeated.",
    )
    tensor_split: str = load_option(
        "",
        doc="Shares of the devices in the layers, such as 3,1, one for each of `device`.",
        check=read_split,
        flags=("-ts", "--tensor-split"),
        env="TENSOR_SPLIT",
        metavar="N,N,...",
        help="Shares of the devices in the layers, such as 3,1, one for each of -dev.",
    )
    gpu_memory: int = load_option(
        0,
        doc="Most bytes to take of each GPU; 0: what is free.",
        least=0,
        flags=("--gpu-memory",),
        env="GPU_MEMORY",
        metavar="SIZE",
        help="Memory to take of each GPU: 3GB; 0: what is free.",
        from_flag=read_size,
        flag_type=str,
    )
    kv_offload: bool = load_option(
        True,
        doc="Keep the KV cache with its layers; False: all of it with the CPU.",
        flags=("--kv-offload/--no-kv-offload", " /-nkvo"),
        env="KV_OFFLOAD",
        help="Keep the KV cache with its layers, or all of it with the CPU.",
    )
    stream_weights: str = load_option(
        "auto",
        doc="on, off or auto: read the CPU's weights from the file as it goes, where they do not fit.",
        choices=STREAMS,
        flags=("--stream-weights",),
        env="STREAM_WEIGHTS",
    )
    prefetch_weights: str = load_option(
        "auto",
        doc="on, off or auto: prefetch the CPU's weights to a GPU for long steps, where quicker.",
        choices=PREFETCHES,
        flags=("--prefetch-weights",),
        env="PREFETCH_WEIGHTS",
    )
    expert_cache: str | int = load_option(
        "auto",
        doc="Experts of each layer, or bytes, that a GPU caches: those most used; off; auto: if that helps.",
        check=read_expert_cache,
        flags=("--expert-cache",),
        env="EXPERT_CACHE",
        metavar="N|SIZE",
        help="Experts of each layer, or bytes, that a GPU caches: those most used; or auto, off.",
    )
    dense_attention: bool = load_option(
        False,
        doc="Attend to all positions, in models with sparse attention (DeepSeek V3.2).",
        flags=("--dense-attention",),
        env="DENSE_ATTENTION",
    )
    deterministic: bool = load_option(
        False,
        doc="The same bits for the same request, whatever runs beside it; a device that cannot promise it is"
        " refused.",
        flags=("--deterministic",),
        env="DETERMINISTIC",
        help="The same bits for the same request: slower on a GPU, usual on the CPU; else a refusal.",
    )
    worker: str = load_option(
        "thread",
        doc="thread, or process: the engine runs in a process of its own, where it may crash alone.",
        choices=WORKERS,
        flags=("--worker",),
        env="WORKER",
        metavar="KIND",
        help="thread, or process: the engine runs apart, where it may crash alone.",
        group=WORKER,
    )
    sandbox: bool = load_option(
        True,
        doc="A worker process gives up files, network and programs, as far as the system can take them away.",
        flags=("--sandbox/--no-sandbox",),
        env="SANDBOX",
        help="A worker process gives up files, network and programs; a thread has no sandbox.",
        group=WORKER,
    )
    worker_timeout: float = load_option(
        60.0,
        doc="Seconds until a silent worker process is ended and begun anew; 0: never.",
        least=0,
        flags=("--worker-timeout",),
        env="WORKER_TIMEOUT",
        help="Seconds until a silent worker process is ended; 0: never.",
        group=SERVER,
    )
    step_timeout: float = load_option(
        600.0,
        doc="Seconds of one step, one compilation or one part of a load until a worker process is ended and"
        " begun anew; 0: never.",
        least=0,
        flags=("--step-timeout",),
        env="STEP_TIMEOUT",
        help="Seconds until a worker process that is stuck in a step is ended; 0: never.",
        group=SERVER,
    )
    limits: SchedulerLimits = load_option(USUAL, doc="How many requests may wait, and how steps are shared.")
    profile: bool = load_option(False, doc="The device counts the time of each step.", in_table=False)
    speculation: Speculation | None = load_option(
        None, doc="How tokens are drafted; None: not at all.", in_table=False
    )
    adapters: Sequence[Loadable] = load_option((), doc="LoRA adapters that requests may use.", in_table=False)
    control_vectors: Sequence[Loadable] = load_option(
        (), doc="Control vectors that requests may use.", in_table=False
    )
    digests: Sequence[tuple[str, str, str]] = load_option(
        (),
        doc="(algorithm, digest, name) that the file must have, as `satchel hash` writes them.",
        in_table=False,
    )

    @property
    def placement_options(self) -> PlacementOptions:
        """What they ask of the placement; RequestError for what cannot be meant."""
        return read_placement_options(
            self.device,
            self.gpu_layers,
            self.override_tensor,
            self.gpu_memory,
            self.kv_offload,
            self.stream_weights,
            self.prefetch_weights,
            self.tensor_split,
            "off" if self.deterministic else self.expert_cache,
        )

    @property
    def served(self) -> SchedulerLimits:
        """The scheduler's limits: large steps that the user did not ask for keep no request waiting."""
        if self.batch or self.limits.alone_seconds:
            return self.limits
        return replace(self.limits, alone_seconds=ALONE_SECONDS)

    def check(self) -> None:
        """RequestError for a value that no model can be loaded with."""
        check_options(self)
        _ = self.placement_options


class LoadKwargs(TypedDict, total=False):
    """The fields of Options as keyword arguments; a test holds the two equal."""

    context: int
    slots: int
    threads: int
    threads_batch: int
    precision: str
    activations: int
    repack: bool
    batch: int
    cache_type: str
    cache_type_k: str
    cache_type_v: str
    host_cache: int
    gpu_layers: str | int
    device: str
    override_tensor: Sequence[str]
    tensor_split: str
    gpu_memory: int
    kv_offload: bool
    stream_weights: str
    prefetch_weights: str
    expert_cache: str | int
    dense_attention: bool
    deterministic: bool
    worker: str
    sandbox: bool
    worker_timeout: float
    step_timeout: float
    limits: SchedulerLimits
    profile: bool
    speculation: Speculation | None
    adapters: Sequence[Loadable]
    control_vectors: Sequence[Loadable]
    digests: Sequence[tuple[str, str, str]]


def settled(options: Options | None, changes: LoadKwargs) -> Options:
    """The options with these changed, and checked."""
    made = replace(options or Options(), **changes)
    made.check()
    return made


def stopping(progress: LoadProgress | None, path: Path) -> Callable[[int, int], None] | None:
    """The callback, whose answer False becomes a RequestError, which ends the load and frees what it took."""
    if progress is None:
        return None

    def call(done: int, total: int) -> None:
        if progress(done, total) is False:
            raise RequestError(
                f"{path}: loading was stopped at {done:,} of {total:,} bytes, as the caller asked"
            )

    return call
