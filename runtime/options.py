"""How a model is loaded: Options defines it, LoadKwargs types the same names for `**kwargs`. A new option is
added here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from satchel.quant import RequestError
from satchel.runtime.adapter_file import Loadable
from satchel.runtime.placement.options import PlacementOptions, read_placement_options
from satchel.runtime.scheduler_limits import USUAL, SchedulerLimits
from satchel.runtime.speculation import Speculation
from satchel.runtime.words import PRECISIONS, WORKERS

ACTIVATIONS = (0, 8, 16)
ALONE_SECONDS = 0.25  # for which a prompt may hold up other requests
# bytes done, bytes in all; False stops the load, any other answer goes on
LoadProgress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Options:
    """context 0: the model's own, as far as a quarter of the free memory allows.

    slots: sequences that run together. threads: for answers, 0: all; threads_batch: for prompts, 0: as many
    as threads. batch: tokens of a step, 0: 512, and 4096 where all layers are on a GPU, and for an
    encoder its context. cache_type: of keys and values; cache_type_k, cache_type_v: of one of them alone.
    repack False: weights stay in the mapped file, which processes share, and products are slower.
    precision "fast": products may round weights to 8 bits. activations: bits of what quantized weights
    are multiplied with, 8 or 16; 0: 8, and for an encoder 16. worker "process": the engine runs in a
    process of its own, which may crash without taking this one along. speculation: how tokens are drafted;
    None: not at all. limits: how many requests may wait, and how steps are shared. adapters,
    control_vectors: files that requests may use. deterministic: answers depend on their request alone, as
    they do on the CPU anyway but for long prompts of latent attention (DeepSeek) and precision "fast"; a
    device that never promises it is refused.
    host_cache: bytes of host memory for blocks of the KV cache that were given up for room, 0: none.
    device: names with commas between them, each NAME or NAME:INDEX, or "auto". gpu_layers: how many of the
    last layers go to devices other than the CPU: a number, "all", or "auto" for what is done first.
    override_tensor: PATTERN=DEVICE for tensors that go elsewhere than their layer. gpu_memory: bytes to take
    of each such device at most, 0: what is free. kv_offload False: the KV cache stays with the CPU.
    dense_attention: models with sparse attention (DeepSeek V3.2) attend to all positions.
    stream_weights: "on" reads the CPU's weights from the file as it goes, "auto" where they do not fit.
    tensor_split: shares of the devices in the layers, such as "3,1", one for each of `device`.
    expert_cache: of a mixture whose experts are the CPU's, how many of each layer a GPU holds too, those
    picked most: a number, a size, "off", or "auto" for what fits where that is foretold to help.
    sandbox: a worker process gives up files, network and programs, as far as the system can take them away.
    digests: (algorithm, digest, name) that the file must have, as `satchel hash` writes them.
    worker_timeout: seconds without a sign of life, and step_timeout: seconds of one step, one compilation or
    one part of a load, after which a worker process is ended and begun anew; 0: never.
    """

    context: int = 0
    slots: int = 1
    threads: int = 0
    device: str = "auto"
    cache_type: str = "f16"
    cache_type_k: str = ""
    cache_type_v: str = ""
    batch: int = 0
    threads_batch: int = 0
    repack: bool = True
    precision: str = "exact"
    profile: bool = False
    activations: int = 0
    worker: str = "thread"
    speculation: Speculation | None = None
    limits: SchedulerLimits = USUAL
    adapters: Sequence[Loadable] = ()
    control_vectors: Sequence[Loadable] = ()
    deterministic: bool = False
    host_cache: int = 0
    gpu_layers: str | int = "auto"
    override_tensor: Sequence[str] = ()
    gpu_memory: int = 0
    kv_offload: bool = True
    stream_weights: str = "auto"
    prefetch_weights: str = "auto"
    dense_attention: bool = False
    tensor_split: str = ""
    expert_cache: str | int = "auto"
    sandbox: bool = True
    digests: Sequence[tuple[str, str, str]] = ()
    worker_timeout: float = 60.0
    step_timeout: float = 600.0

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
        if min(self.threads, self.threads_batch) < 0 or not 0 <= self.batch <= 1 << 16 or self.slots < 1:
            raise RequestError(f"threads, batch and slots must be positive, got {self}")
        if self.host_cache < 0:
            raise RequestError(f"host_cache is {self.host_cache} bytes: it must not be negative")
        for name, allowed in (("precision", PRECISIONS), ("worker", WORKERS)):
            if getattr(self, name) not in allowed:
                raise RequestError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        _ = self.placement_options
        for name in ("worker_timeout", "step_timeout"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise RequestError(f"{name} is {getattr(self, name)}: expected seconds, or 0 for never")
        if self.activations not in ACTIVATIONS:
            raise RequestError(
                f"activations are {self.activations} bits: it must be one of 8, 16, or 0 for the"
                " model's usual ones"
            )


class LoadKwargs(TypedDict, total=False):
    """The fields of Options as keyword arguments; a test holds the two equal."""

    context: int
    slots: int
    threads: int
    device: str
    cache_type: str
    cache_type_k: str
    cache_type_v: str
    batch: int
    threads_batch: int
    repack: bool
    precision: str
    profile: bool
    activations: int
    worker: str
    speculation: Speculation | None
    limits: SchedulerLimits
    adapters: Sequence[Loadable]
    control_vectors: Sequence[Loadable]
    deterministic: bool
    host_cache: int
    gpu_layers: str | int
    override_tensor: Sequence[str]
    gpu_memory: int
    kv_offload: bool
    stream_weights: str
    prefetch_weights: str
    dense_attention: bool
    tensor_split: str
    expert_cache: str | int
    sandbox: bool
    digests: Sequence[tuple[str, str, str]]
    worker_timeout: float
    step_timeout: float


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
