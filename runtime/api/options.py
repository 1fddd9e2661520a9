"""Load options. Each is one field of Options (runtime/option.py), from which the flags of the commands and
the keys of a server's [models.NAME] are derived. LoadKwargs types the same names for `**kwargs`. A new load
option is added in this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from satchel.errors import RequestError
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime.adapter_file import Loadable
from satchel.runtime.api.defaults import check_defaults, read_object
from satchel.runtime.api.overrides import read_overrides, read_template
from satchel.runtime.net.address import SLASH
from satchel.runtime.option import PARALLEL, REPLICAS, SERVER, WORKER, check_options, documented, option_field
from satchel.runtime.placement.options import (
    DIVIDED_CACHES,
    GROUP,
    PREFETCHES,
    SPLIT_MODES,
    STREAMS,
    PlacementOptions,
    is_range,
    read_devices,
    read_expert_cache,
    read_kv_budget,
    read_layers,
    read_pools,
    read_replicas,
    read_rules,
    read_size,
    read_split,
    read_split_mode,
)
from satchel.runtime.scheduler_limits import DEFAULT_LIMITS, SchedulerLimits
from satchel.runtime.speculation import Speculation
from satchel.runtime.words import PRECISIONS, WORKERS

ALONE_SECONDS = 0.25  # `alone_seconds` of a server whose user gave none
NO_LIMIT = 1 << 62  # bytes
TYPES = ", ".join(CACHE_TYPES)
# Called with (bytes loaded, bytes in all). False stops the load; any other result continues it.
LoadProgress = Callable[[int, int], object]


def _cache_bytes(mib: int) -> int:
    """Bytes of a number of MiB; llama.cpp writes -1 for no limit."""
    return NO_LIMIT if mib == -1 else mib << 20


@documented
@dataclass(frozen=True, slots=True)
class Options:
    """How a model is loaded: every load option with its default."""

    context: int = option_field(
        0,
        "Tokens of context; 0: the model's own, as far as a quarter of the free memory allows.",
        "-c",
        "--ctx-size",
        low=0,
    )
    slots: int = option_field(
        1, "Sequences that run together.", "-np", "--parallel", low=1, env="N_PARALLEL", group=PARALLEL
    )
    kv_budget: str | int = option_field(
        "auto",
        "Size of the KV cache that all slots share: tokens, or bytes such as 4GB; context: one full"
        " conversation; auto: one for each slot.",
        "--kv-budget",
        metavar="N|SIZE",
        check_value=read_kv_budget,
    )
    threads: int = option_field(
        0, "CPU threads for decoding; 0: all cores.", "-t", "--threads", low=0, also={-1: 0}
    )
    threads_batch: int = option_field(
        0,
        "CPU threads for the prompt; 0: as many as for decoding.",
        "-tb",
        "--threads-batch",
        low=0,
        also={-1: 0},
    )
    precision: str = option_field(
        "exact",
        "exact, or fast: matrix products may round weights and activations to 8 bits.",
        "--precision",
        choices=PRECISIONS,
    )
    activations: int = option_field(
        0,
        "Bits of the activations that quantized weights are multiplied with: 8 or 16; 0: 16 for encoders,"
        " else 8.",
        "--activations",
        choices=(0, 8, 16),
    )
    repack: bool = option_field(
        True,
        "Copy the weights into the CPU's own layout. Without, products read the mapped file, which processes"
        " share, and are slower.",
        "--repack/--no-repack",
        " /-nr",
    )
    batch: int = option_field(
        0,
        "Most tokens of a step; 0: 512, 4096 with all layers on a GPU, and the context for an encoder.",
        "-b",
        "--batch-size",
        low=0,
        high=1 << 16,
        env="BATCH",
    )
    cache_type: str = option_field("f16", f"Type of the KV cache: {TYPES}.", choices=CACHE_TYPES)
    cache_type_k: str = option_field(
        "",
        f"Type of the cached keys: {TYPES}; empty: `cache_type`.",
        "-ctk",
        "--cache-type-k",
        help=f"Type of the cached keys: {TYPES}; default: f16.",
        choices=("", *CACHE_TYPES),
    )
    cache_type_v: str = option_field(
        "",
        f"Type of the cached values: {TYPES}; empty: `cache_type`.",
        "-ctv",
        "--cache-type-v",
        help="Type of the cached values, as -ctk.",
        choices=("", *CACHE_TYPES),
    )
    host_cache: int = option_field(
        0,
        "Bytes of host memory for blocks that the KV cache evicts; 0: none.",
        "-cram",
        "--cache-ram",
        low=0,
        help="MiB of host memory for blocks that the KV cache evicts; 0: none, -1: no limit.",
        metavar="MIB",
        parse=_cache_bytes,
    )
    gpu_layers: str | int = option_field(
        "auto",
        "How many of the last layers GPUs hold: a number, all, or auto: the fastest placement.",
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        env="N_GPU_LAYERS",
        check_value=read_layers,
    )
    device: str = option_field(
        "auto",
        "Backends to use, a,b,c, each NAME or NAME:INDEX; a+b: a group; HOST/a: another host's; none: the CPU"
        " alone; auto: all.",
        "-dev",
        "--device",
        check_value=read_devices,
        also={"none": "cpu"},
    )
    device_key: str = option_field(
        "",
        "File with the key of devices of other hosts, which `satchel device` there has too.",
        "--device-key-file",
        metavar="FILE",
    )
    override_tensor: str | Sequence[str] = option_field(
        (),
        "PATTERN=DEVICE for tensors that another device holds than the one of their layer.",
        "-ot",
        "--override-tensor",
        help="Tensors that another device holds than the one of their layer; repeatable.",
        metavar="PATTERN=DEVICE",
        check_value=lambda rules: [read_rules(text) for text in rules],
    )
    tensor_split: str = option_field(
        "",
        "Each device's share of the layers, or of each layer, such as 3,1, in the order of `device`.",
        "-ts",
        "--tensor-split",
        help="Each device's share of the layers, or of each layer, such as 3,1, in the order of -dev.",
        metavar="N,N,...",
        check_value=read_split,
    )
    split_mode: str = option_field(
        "auto",
        "How several devices share the model: layer (also row), tensor (each layer is divided), none (the "
        "first alone), or auto: the fastest by measured speeds.",
        "-sm",
        "--split-mode",
        help="layer: whole layers on each device; tensor: a part of each; none: the first alone; auto: the "
        "fastest.",
        choices=SPLIT_MODES,
    )
    context_parallel: str = option_field(
        "auto",
        "Whether the members of a group divide the blocks of caches that each of them would hold otherwise:"
        " on, off, or auto: if the cache does not fit.",
        "--context-parallel",
        help="Members of a group divide caches that each would hold: on, off; auto: if they do not fit.",
        choices=DIVIDED_CACHES,
    )
    gpu_memory: int = option_field(
        0,
        "Most bytes to use of each GPU's memory; 0: all that is free.",
        "--gpu-memory",
        low=0,
        help="Most memory to use of each GPU, such as 3GB; 0: all that is free.",
        metavar="SIZE",
        flag_default="0",
        parse=read_size,
    )
    kv_offload: bool = option_field(
        True,
        "Keep the KV cache of each layer on the layer's device. Without, the CPU keeps all of it.",
        "--kv-offload/--no-kv-offload",
        "-kvo/-nkvo",
    )
    stream_weights: str = option_field(
        "auto",
        "on, off, or auto: read the CPU's weights from the file step by step if they exceed the memory.",
        "--stream-weights",
        choices=STREAMS,
    )
    prefetch_weights: str = option_field(
        "auto",
        "on, off, or auto: prefetch the CPU's weights to a GPU for long steps if that is faster.",
        "--prefetch-weights",
        choices=PREFETCHES,
    )
    expert_cache: str | int = option_field(
        "auto",
        "Most used experts that a GPU caches: a number per layer, or bytes; off; auto: if that is faster.",
        "--expert-cache",
        metavar="N|SIZE",
        check_value=read_expert_cache,
    )
    dense_attention: bool = option_field(
        False, "Attend to all positions in models with sparse attention (DeepSeek V3.2).", "--dense-attention"
    )
    override_kv: Sequence[str] = option_field(
        (),
        "KEY=TYPE:VALUE of metadata in place of the file's; a KEY may begin with {arch}., the architecture.",
        "--override-kv",
        help="Metadata in place of the file's, TYPE int, float, bool or str; repeatable.",
        metavar="KEY=TYPE:VALUE",
        check_value=lambda texts: [read_overrides(text) for text in texts],
    )
    chat_template: str = option_field(
        "",
        "Jinja text of a chat template in place of the file's, or a name such as chatml, llama3 or gemma;"
        " empty: the file's.",
        "--chat-template",
        metavar="JINJA|NAME",
        check_value=read_template,
    )
    chat_template_kwargs: str = option_field(
        "",
        "JSON object with variables of the chat template, for requests that set none of the name.",
        "--chat-template-kwargs",
        metavar="JSON",
        check_value=lambda text: read_object(text, "chat_template_kwargs"),
    )
    defaults: Mapping[str, Any] | None = option_field(
        None,
        "Options of requests that leave them out: of sampling, max_tokens, stop, ignore_eos, on_overflow,"
        " reasoning, reasoning_end, grammar; None: the file's, else the program's.",
        check_value=check_defaults,
    )
    deterministic: bool = option_field(
        False,
        "The same bits for the same request, whatever runs beside it. It costs time on a GPU, none on the"
        " CPU. Devices that cannot promise it are refused.",
        "--deterministic",
    )
    worker: str = option_field(
        "thread",
        "thread, or process: the engine runs in a process of its own, which may crash alone.",
        "--worker",
        choices=WORKERS,
        metavar="KIND",
        group=WORKER,
    )
    engine_host: str = option_field(
        "",
        "The engine runs on another host, HOST or HOST:PORT, where `satchel engine` listens; of a,b,c each"
        " has one, and they share the requests. It needs --device-key-file.",
        "--engine-host",
        help="Hosts whose `satchel engine` runs the engine, a,b,c; with --device-key-file.",
        metavar="HOST",
        group=WORKER,
    )
    replicas: str | int = option_field(
        "1",
        "Engines that share the requests, each a worker process with its part of the devices, threads and"
        " memory; auto: one for each GPU that holds the model, one on a CPU for each NUMA node that does;"
        " 1..4: as many of these as the load asks for.",
        "--replicas",
        help="Engines that share the requests; auto: one for each GPU or NUMA node; 1..4: by the load.",
        metavar="N|auto|N..M",
        check_value=read_replicas,
        group=REPLICAS,
    )
    replica_wait: float = option_field(
        0.5,
        "Seconds that a new prompt may wait, as predicted, before a replica is added; below a quarter of"
        " them one is taken away.",
        "--replica-wait",
        above=0,
        group=REPLICAS,
    )
    engine_listen: str = option_field(
        "",
        "Address of this host, HOST or HOST:PORT, at which engines of other hosts join the fleet"
        " (`satchel engine --join`). It needs --device-key-file.",
        "--engine-listen",
        help="Address at which engines join (`satchel engine --join`); with --device-key-file.",
        metavar="HOST[:PORT]",
        group=REPLICAS,
    )
    ray: str = option_field(
        "",
        "Ray cluster that starts the engines: its address, auto for that of this host, local for one that"
        " is begun here.",
        "--ray",
        metavar="ADDRESS",
        group=REPLICAS,
    )
    ray_cpus: float = option_field(
        1.0, "CPUs that each engine reserves of the Ray cluster.", "--ray-cpus", low=0, group=REPLICAS
    )
    ray_gpus: float = option_field(
        0.0,
        "GPUs that each engine, or each of its stages, has of the Ray cluster; several are a group of"
        " devices.",
        "--ray-gpus",
        low=0,
        group=REPLICAS,
    )
    ray_stages: int = option_field(
        1,
        "Nodes of the Ray cluster among which each engine divides the layers of its model.",
        "--ray-stages",
        low=1,
        group=REPLICAS,
    )
    pools: str = option_field(
        "off",
        "How many replicas compute prompts and how many answer, P+A; the keys and values of a prompt are"
        " moved where that is predicted to pay. auto: each does both, and prompts are moved likewise.",
        "--pools",
        help="Replicas that compute prompts and replicas that answer, such as 1+3; auto: all do both.",
        metavar="off|auto|P+A",
        check_value=read_pools,
        group=REPLICAS,
    )
    sharers: int = option_field(
        1,
        "Engines that divide the free memory of the devices: what replicas are given.",
        low=1,
        in_table=False,
    )
    cpus: Sequence[int] = option_field(
        (),
        "Processors that the engine's process is pinned to, which replicas of a machine with several NUMA"
        " nodes are given; none: all.",
        in_table=False,
    )
    sandbox: bool = option_field(
        True,
        "A worker process gives up access to files, network and programs as far as the system allows.",
        "--sandbox/--no-sandbox",
        group=WORKER,
    )
    warmup: bool = option_field(
        False,
        "Make the plans of ordinary requests before these come: at the load with a GPU, else while idle.",
        "--warmup/--no-warmup",
        group=SERVER,
    )
    worker_timeout: float = option_field(
        60.0,
        "Seconds after which a silent worker process is restarted; 0: never.",
        "--worker-timeout",
        low=0,
        group=SERVER,
    )
    step_timeout: float = option_field(
        600.0,
        "Seconds of one step, one compilation or one part of a load after which a worker process is"
        " restarted; 0: never.",
        "--step-timeout",
        low=0,
        group=SERVER,
    )
    limits: SchedulerLimits = option_field(
        DEFAULT_LIMITS, "How many requests wait, and how they share the steps."
    )
    profile: bool = option_field(False, "The device measures the time of each op.", in_table=False)
    speculation: Speculation | None = option_field(
        None, "Speculative decoding; None: no draft tokens.", in_table=False
    )
    adapters: Sequence[Loadable] = option_field((), "LoRA adapters that requests may use.", in_table=False)
    control_vectors: Sequence[Loadable] = option_field(
        (), "Control vectors that requests may use.", in_table=False
    )
    digests: Sequence[tuple[str, str, str]] = option_field(
        (),
        "(algorithm, digest, name) that the file must have, as `satchel hash` writes them.",
        in_table=False,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "cpus", tuple(self.cpus))
        for name in ("override_tensor", "adapters", "control_vectors"):
            given = getattr(self, name)  # one may stand alone
            object.__setattr__(self, name, (given,) if isinstance(given, Loadable) else tuple(given))
        check_options(self)
        devices, split = self._devices, read_split(self.tensor_split)
        count = len(devices[0].split(GROUP)) if len(devices) == 1 else len(devices)
        if split and devices and len(split) != count:
            raise RequestError(
                f"tensor_split has {len(split)} numbers for {count} devices: give one for each"
            )
        self._check_far()
        self._check_deterministic()
        if self.engine_host and read_replicas(self.replicas) != 1:
            raise RequestError(
                "replicas: not supported with engine_host, where each host has one engine: name more hosts"
            )
        self._check_joining()
        if read_pools(self.pools) is not None and read_replicas(self.replicas) == 1 and not self.engine_host:
            raise RequestError("pools: they divide the work of several engines: give replicas too")
        if "+" in self.pools and is_range(self.replicas):
            raise RequestError(
                f"pools is {self.pools}: not supported with replicas that come and go ({self.replicas}): give"
                " one number of replicas, or pools=auto"
            )
        if self.split_mode == "tensor" or any(GROUP in name for name in devices):
            self._check_group()

    def _check_joining(self) -> None:
        """Raises RequestError for engines that would come in two ways."""
        if self.engine_host and (self.engine_listen or self.ray):
            raise RequestError(
                "engine_host: not supported with engine_listen or ray, where engines join by themselves: "
                "give one of them"
            )
        if self.engine_listen and not self.ray:
            if read_replicas(self.replicas) != 1:
                told = "as many as there are: leave it out, or let Ray begin them (ray)"
                raise RequestError(f"replicas: not supported with engine_listen, where engines join, {told}")
            if not self.device_key:
                raise RequestError(
                    f"engine_listen {self.engine_listen}: no key: give the file of the key that the engines "
                    "have, --device-key-file FILE"
                )
        if self.ray and read_replicas(self.replicas) is None:
            raise RequestError("replicas is 'auto': with ray, give a number, or two such as 1..4")

    @property
    def _devices(self) -> tuple[str, ...]:
        """Names of the devices, under the split mode."""
        return read_split_mode(self.split_mode, read_devices(self.device))

    def moving_weights(self) -> list[str]:
        """Names of the given options with which weights change devices while steps run; groups have none."""
        moving = {
            "prefetch_weights": self.prefetch_weights == "on",
            "expert_cache": str(self.expert_cache) not in ("auto", "off"),
        }
        return [name for name, given in moving.items() if given]

    def _check_deterministic(self) -> None:
        """Raises RequestError for options with which a token's bits depend on what else is computed."""
        if self.deterministic and (wrong := self.moving_weights()):
            raise RequestError(
                f"{wrong[0]}: not supported with deterministic: the device that computes a token would "
                "depend on the others of its step; leave one of the two out"
            )

    def _check_group(self) -> None:
        """Raises RequestError for options that a group of devices cannot have."""
        if wrong := self.moving_weights():
            raise RequestError(
                f"{wrong[0]}: not supported with a group of devices (split_mode='tensor'): leave it out, or "
                "take split_mode='layer'"
            )

    def _check_far(self) -> None:
        """Raises RequestError for options that send weights, where a device is another host's."""
        wrong = {
            "adapters": bool(self.adapters),
            "control_vectors": bool(self.control_vectors),
            "split_mode='tensor'": self.split_mode == "tensor",
        }
        named = [*(name for name, given in wrong.items() if given), *self.moving_weights()]
        if named and any(SLASH in device for device in self._devices):
            raise RequestError(
                f"{named[0]}: not supported beside a device of another host, which reads whole layers from "
                "its own copy of the file: leave it out, or name devices of this host alone"
            )

    @property
    def in_process(self) -> bool:
        """Whether the engine runs in the caller's process. Replicas and engines of other hosts never do."""
        apart = self.engine_host or self.engine_listen or self.ray or read_replicas(self.replicas) != 1
        return self.worker == "thread" and not apart

    @property
    def placement_options(self) -> PlacementOptions:
        """The options that concern the placement, parsed. Where a device is another host's, what would send
        weights to it is off.
        """
        far = any(SLASH in device for device in self._devices)
        one_group = self.split_mode == "tensor" if not self._devices else GROUP in self._devices[0]
        one_group, shares = one_group and len(self._devices) < 2, read_split(self.tensor_split)
        return PlacementOptions(
            self._devices,
            read_layers(self.gpu_layers),
            tuple(rule for text in self.override_tensor for rule in read_rules(text)),
            self.gpu_memory,
            self.kv_offload,
            self.stream_weights,
            "off" if self.deterministic or far else self.prefetch_weights,
            split=() if one_group else shares,
            member_split=shares if one_group else (),
            mode=self.split_mode,
            key=self.device_key,
            sharers=self.sharers,
            expert_cache="off" if self.deterministic or far else read_expert_cache(self.expert_cache).word,
            context_parallel=self.context_parallel,
        )

    @property
    def served(self) -> SchedulerLimits:
        """The scheduler's limits of a server. Unless the user sets `batch` or `alone_seconds`, a step of
        prompts alone takes ALONE_SECONDS at most, so that new requests wait no longer.
        """
        if self.batch or self.limits.alone_seconds:
            return self.limits
        return replace(self.limits, alone_seconds=ALONE_SECONDS)


class LoadKwargs(TypedDict, total=False):
    """The fields of Options as keyword arguments; a test keeps the two equal."""

    context: int
    slots: int
    kv_budget: str | int
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
    device_key: str
    override_tensor: str | Sequence[str]
    tensor_split: str
    split_mode: str
    context_parallel: str
    gpu_memory: int
    kv_offload: bool
    stream_weights: str
    prefetch_weights: str
    expert_cache: str | int
    dense_attention: bool
    override_kv: Sequence[str]
    chat_template: str
    chat_template_kwargs: str
    defaults: Mapping[str, Any] | None
    deterministic: bool
    worker: str
    engine_host: str
    replicas: str | int
    replica_wait: float
    engine_listen: str
    ray: str
    ray_cpus: float
    ray_gpus: float
    ray_stages: int
    pools: str
    sharers: int
    cpus: Sequence[int]
    sandbox: bool
    warmup: bool
    worker_timeout: float
    step_timeout: float
    limits: SchedulerLimits
    profile: bool
    speculation: Speculation | None
    adapters: Sequence[Loadable]
    control_vectors: Sequence[Loadable]
    digests: Sequence[tuple[str, str, str]]


def settled(options: Options | None, changes: LoadKwargs) -> Options:
    """The options with these changes."""
    return replace(options or Options(), **changes)


def stopping(progress: LoadProgress | None, path: Path) -> Callable[[int, int], None] | None:
    """A callback that calls `progress` and raises RequestError where that returns False: the load ends and
    frees its memory.
    """
    if progress is None:
        return None

    def call(done: int, total: int) -> None:
        if progress(done, total) is False:
            raise RequestError(
                f"{path}: loading was stopped at {done:,} of {total:,} bytes, as the caller asked"
            )

    return call
