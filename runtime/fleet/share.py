"""What each of several engines on one machine gets of it: devices, threads, and memory.

Invariant: the members together take no more than one engine with the same options would. Options that say how
much of something there is (`threads`, `device`, `host_cache`, a `kv_budget` of tokens or bytes, `gpu_memory`
where a GPU is shared) are divided; `context` and `slots` are those of each member.

Members on the processors of a machine with several NUMA nodes are pinned to a node each, where they divide
evenly among the nodes: a member's threads then read weights, keys and values from the memory next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from satchel.errors import DeviceError, RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import HOST_MEMORY, TEST_ONLY
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.device.processors import cores, usable
from satchel.runtime.placement.devices import open_one
from satchel.runtime.placement.options import OFF, read_devices, read_kv_budget, read_replicas

HOLDS = (
    1.2  # a device must have this many times the bytes of the file free: the cache and buffers lie there too
)
NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many engines there are, and the options of them all together."""

    count: int
    options: Options
    note: str = ""  # what was chosen and why; "": the user said all


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    free: int  # bytes


def replicas_of(
    options: Options,
    size: int,
    gpus: Callable[[Options], Sequence[Gpu]] | None = None,
    nodes: Path = NODES,
) -> Replicas:
    """Settles `replicas` and, where the user names no device, which GPUs they have. size: bytes of the file.
    gpus: finds those of this machine. The options of one replica ask for one engine in a process, which must
    not ask for replicas again.
    """
    wanted = read_replicas(options.replicas)
    if wanted == 1:
        return Replicas(1, options)
    named = read_devices(options.device)
    gpus_here = [] if named or options.gpu_layers in (0, "0") else (gpus or gpus_of)(options)
    if not gpus_here:
        found = _without_gpus(options, wanted, named, size, nodes)
    else:
        found = _one_each(options, gpus_here, size) if wanted is None else _on(options, gpus_here, wanted)
    if found.count > 1:
        return found
    return replace(found, options=replace(found.options, worker="process", replicas=1, pools=OFF))


def _without_gpus(
    options: Options, wanted: int | None, named: tuple[str, ...], size: int, nodes: Path
) -> Replicas:
    """Replicas on devices that the user names, or on the CPU."""
    if wanted is not None:
        share_of(options, 0, wanted)  # says what cannot be divided
        return Replicas(wanted, options)
    if named and named != ("cpu",):
        apart = [name for name in named if name != "cpu"]
        return Replicas(len(apart), options, f"{len(apart)} replicas: one for each device of -dev")
    memory = numa_memory(nodes)
    if len(memory) > 1 and min(memory) > HOLDS * size and not options.threads:
        return Replicas(len(memory), options, f"{len(memory)} replicas: one for each NUMA node, pinned to it")
    return Replicas(1, options, "1 replica: on one CPU, several engines share its memory bandwidth")


def _one_each(options: Options, found: Sequence[Gpu], size: int) -> Replicas:
    """As many replicas as the GPUs hold: one each, or one for as few GPUs together as hold the model."""
    names, least = [gpu.name for gpu in found], min(gpu.free for gpu in found)
    each = next((n for n in range(1, len(found) + 1) if n * least > HOLDS * size), len(found))
    count = len(found) // each
    if count < 2:
        need = f"the model's {size / 1e9:,.1f} GB need more than half of the memory of {len(found)} GPUs"
        return Replicas(1, options, f"1 replica: {need if len(found) > 1 else 'there is one GPU'}")
    each = len(found) // count
    devices = ",".join(names[: count * each])
    why = "one for each GPU" if each == 1 else f"one for each {each} GPUs, which hold the model together"
    return Replicas(count, replace(options, device=devices), f"{count} replicas: {why}")


def _on(options: Options, found: Sequence[Gpu], count: int) -> Replicas:
    """So many replicas on the GPUs of this machine, as evenly as they can be divided."""
    names = [gpu.name for gpu in found]
    used = names[: len(names) // count * count] if count <= len(names) else list(names)
    while count % len(used) and len(used) % count:
        used.pop()
    note = "" if used == names else f"{len(used)} of {len(names)} GPUs are used: {count} replicas share them"
    return Replicas(count, replace(options, device=",".join(used)), note)


def gpus_of(options: Options) -> list[Gpu]:
    """The GPUs that `device = auto` finds, with their free memory. Each is opened for a moment."""
    found: dict[str, Gpu] = {}
    cards: dict[str, str] = {}
    for name in sorted(f.name for f in libraries() if f.name not in ("cpu", "numba") and not f.reason):
        backend = find_backend(name)
        for index in range(backend.count()):
            try:
                device = open_one(options, backend, index)
            except (DeviceError, RequestError):
                continue  # the load says what is wrong with it
            info = device.info()
            device.close()
            other = cards.setdefault(info.name, name)
            if not info.flags & (HOST_MEMORY | TEST_ONLY) and other == name:
                found[device.name] = Gpu(device.name, info.memory_free)
    return list(found.values())


def numa_memory(nodes: Path = NODES) -> list[int]:
    """Bytes of memory of each NUMA node that has processors; [] where the system does not say."""
    found = []
    for node in sorted(nodes.glob("node[0-9]*")):
        try:
            has_cores = bool((node / "cpulist").read_text().strip())
            lines = (node / "meminfo").read_text().splitlines()
            total = next(int(line.split()[-2]) * 1024 for line in lines if "MemTotal:" in line)
        except (OSError, ValueError, StopIteration):
            return []
        if has_cores:
            found.append(total)
    return found


def numa_cpus(nodes: Path = NODES) -> list[tuple[int, ...]]:
    """The processors of each NUMA node that this process may use; [] where the system does not say. A node of
    which it may use none is left out.
    """
    mine, found = usable(), []
    for node in sorted(nodes.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            cpus = read_cpus((node / "cpulist").read_text())
        except (OSError, ValueError):
            return []
        if own := tuple(cpu for cpu in cpus if cpu in mine):
            found.append(own)
    return found


def read_cpus(text: str) -> list[int]:
    """Parses the kernel's list of processors, such as 0-3,8-11. Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, dash, last = part.partition("-")
            found += range(int(first), int(last if dash else first) + 1)
    return found


def _pinned(devices: tuple[str, ...], index: int, count: int, nodes: Path) -> tuple[int, ...]:
    """The processors of a member; () where it may use all."""
    if devices and devices != ("cpu",):
        return ()  # the work is a GPU's
    memories = numa_cpus(nodes)
    if len(memories) < 2 or count % len(memories):
        return ()
    return memories[index % len(memories)]


def share_of(options: Options, index: int, count: int, nodes: Path = NODES) -> Options:
    """The options of member `index` of `count`. Raises RequestError where devices cannot be divided."""
    devices = read_devices(options.device)
    own, shared = _devices(devices, index, count)
    cpus = _pinned(devices, index, count, nodes)
    each = len(cpus) // (count // len(numa_cpus(nodes))) if cpus and not options.threads else 0
    threads = max(1, each or (options.threads or cores()) // count)
    batch = max(1, options.threads_batch // count) if options.threads_batch else 0
    return replace(
        options,
        worker="process",
        replicas=1,
        pools=OFF,
        sharers=shared,
        cpus=cpus,
        device=",".join(own) or options.device,
        threads=threads,
        threads_batch=batch,
        host_cache=options.host_cache // count,
        kv_budget=_budget(options.kv_budget, count),
        gpu_memory=options.gpu_memory // shared,
    )


def _devices(devices: tuple[str, ...], index: int, count: int) -> tuple[tuple[str, ...], int]:
    """The devices of a member, and how many members have each of them."""
    if not devices or devices == ("cpu",):
        return devices, count
    if len(devices) % count == 0:
        each = len(devices) // count
        return devices[index * each : (index + 1) * each], 1
    if count % len(devices) == 0:
        return (devices[index % len(devices)],), count // len(devices)
    raise RequestError(
        f"{len(devices)} devices cannot be divided among {count} replicas: name as many as there are"
        f" replicas, or a multiple, such as --replicas {len(devices)}"
    )


def _budget(text: str | int, count: int) -> str | int:
    """A member's part of a budget of the KV cache; words hold for each member."""
    budget = read_kv_budget(text)
    if budget.bytes is not None:
        return f"{budget.bytes // count}B"
    return str(max(1, budget.tokens // count)) if budget.tokens is not None else text
