"""Opens the devices that a model may use: the named ones, or those of this machine, with the CPU last.

A named device that cannot be used is an error; under auto it is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from satchel.errors import DeviceError, RequestError
from satchel.formats.resource import Resource
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import HOST_MEMORY, TEST_ONLY, Backend, Device, device_name, open_device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.sharded import CacheRoom
from satchel.runtime.net.address import SLASH, read_name
from satchel.runtime.net.device import NetBackend, NetDevice
from satchel.runtime.placement.options import GROUP, PlacementOptions

Open = Callable[[Backend, int], Device]
ROOM = 1.1  # bytes of a group's member, over its share: what is whole on every member
DRIVER = 256 << 20  # bytes that a driver takes: 237 to 290 MB on an H200, for any model


@dataclass(frozen=True, slots=True)
class Opened(Resource):
    """Devices, fastest first, and notes for the user on those that were left out."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        for device in self.devices:
            device.close()


def open_for(options: Options, placement_options: PlacementOptions | None = None) -> Opened:
    """The devices of a load. placement_options replaces those in `options`."""
    opened = open_devices(placement_options or options.placement_options, partial(open_one, options))
    if opened.devices[0].name == "numba" and options.device == "auto":
        slow = "no compiled CPU backend is installed: numba runs the model, slowly; see `satchel doctor`"
        return Opened(opened.devices, (*opened.notes, slow))
    return opened


def open_one(options: Options, backend: Backend, index: int = 0) -> Device:
    """One device, opened with the options. Raises RequestError if they demand determinism that it does not
    promise.
    """
    return open_device(
        backend,
        options.threads,
        options.threads_batch,
        fast=options.precision == "fast",
        profile=options.profile,
        deterministic=options.deterministic,
        index=index,
    )


def used_of(devices: Sequence[Device], used: Collection[str]) -> tuple[Device, ...]:
    """The devices that have a part of the model; closes the others."""
    for device in (d for d in devices if d.name not in used):
        device.close()
    return tuple(d for d in devices if d.name in used)


def open_devices(placement_options: PlacementOptions, open: Open) -> Opened:
    """Opens the devices; the CPU comes after devices with memory of their own."""
    made: list[Device] = []
    notes: list[str] = []
    try:
        if placement_options.devices:
            for name in placement_options.devices:
                _open_named(name, placement_options, open, made, notes)
        elif placement_options.layers != 0:
            _open_found(open, made, notes, placement_options.lost)
            notes += _without_gpu(made, placement_options)
        if made and all(apart(device) for device in made):
            made.append(_open("cpu", open))
        if not made:
            made.append(_open("auto", open))
        return Opened(tuple(made), tuple(notes))
    except BaseException:
        for device in made:
            device.close()
        raise


def _open_named(
    name: str, placement_options: PlacementOptions, open: Open, made: list[Device], notes: list[str]
) -> None:
    """Opens a requested device. It is left out on failure if another device was lost before."""
    try:
        if SLASH in name:
            net = read_name(name)
            made.append(open(NetBackend(net, placement_options.key), net.number))
        else:
            made.append(_open_group(name, placement_options, open) if GROUP in name else _open(name, open))
    except DeviceError as error:
        if not placement_options.lost:
            raise
        notes.append(f"device {name} is left out: {error}")


def _open_group(name: str, placement_options: PlacementOptions, open: Open) -> GroupDevice:
    """A group of devices. Those that were opened are closed if one cannot be."""
    members: list[Device] = []
    try:
        for member in name.split(GROUP):
            members.append(_open(member, open))
        return GroupDevice(members, placement_options.member_split)
    except BaseException:
        for device in members:
            device.close()
        raise


def _open_found(open: Open, made: list[Device], notes: list[str], lost: Collection[str]) -> None:
    """Opens the devices of this machine except the CPU and test devices. Backends come by name, so a card's
    native driver is tried before SYCL's, and a card that several drivers serve is opened once. A broken
    device is noted and skipped.
    """
    found = [f for f in libraries() if f.name not in ("cpu", "numba")]
    usable = {f.name for f in found if not f.reason}
    notes += [
        f"device {f.name} is left out: {f.reason}" for f in found if f.score < 0 and f.name not in usable
    ]
    cards: dict[str, str] = {}
    for name in sorted(usable):
        backend = find_backend(name)
        for index in range(backend.count()):
            if device_name(name, index) in lost:
                continue
            try:
                device = open(backend, index)
            except (DeviceError, RequestError) as error:
                notes.append(f"device {device_name(name, index)} is left out: {error}")
                continue
            info = device.info()
            other = cards.setdefault(info.name, name)
            if info.flags & (HOST_MEMORY | TEST_ONLY) or other != name:
                device.close()
                continue
            made.append(device)


def _without_gpu(made: list[Device], placement_options: PlacementOptions) -> list[str]:
    """A note where layers are to be on GPUs and the machine has none: the CPU computes all of them."""
    if made or not placement_options.layers:
        return []
    wanted = "all" if placement_options.everything else placement_options.layers
    return [f"-ngl {wanted} has no effect: this machine has no GPU that can be used, see `satchel doctor`"]


def _open(name: str, open: Open) -> Device:
    base, _, index = name.partition(":")
    if index and not (index.isascii() and index.isdigit()):
        raise DeviceError(f"device {name!r}: expected NAME or NAME:INDEX")
    return open(find_backend(base), int(index or 0))


def apart(device: Device) -> bool:
    """Whether a device has memory of its own."""
    return not device.info().flags & HOST_MEMORY


def driver_bytes(device: Device) -> int:
    """Memory that a driver takes once a device works: local memory of kernels, graphs, staging buffers. Of a
    group, that of all members.
    """
    if isinstance(device, GroupDevice):
        return sum(map(driver_bytes, device.members))
    if isinstance(device, NetDevice):
        return device.driver
    return 0 if device.info().flags & (HOST_MEMORY | TEST_ONLY) else DRIVER


def free_bytes(device: Device, placement_options: PlacementOptions) -> int:
    """Memory on a device that a model may take: the free memory within the budget, and on the host within the
    limits of the control groups; of that, its part where several engines divide it. Of a group, as much as
    its members have room for together when each takes its share.
    """
    if isinstance(device, GroupDevice):
        shares = device.shares or (1.0,) * len(device.members)
        most = (
            free_bytes(d, placement_options) / s for d, s in zip(device.members, shares, strict=True) if s
        )
        return int(min(most) * sum(shares) / ROOM)
    free = device.info().memory_free
    if apart(device):
        own = free // placement_options.sharers
        return min(own, placement_options.gpu_memory) if placement_options.gpu_memory else own
    return min([free, *_group_room()]) // placement_options.sharers


def cache_room(devices: Sequence[Device], placement_options: PlacementOptions) -> CacheRoom:
    """Whether groups divide their caches by blocks, as the options want it."""
    members = (d for group in devices if isinstance(group, GroupDevice) for d in group.members)
    free = {d.name: free_bytes(d, placement_options) - driver_bytes(d) for d in members}
    return CacheRoom(placement_options.context_parallel, free)


def _group_room() -> Iterator[int]:
    """Bytes that this process's control groups leave. The page cache counts as room, because it can be
    dropped.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        second = not controllers
        if second or "memory" in controllers.split(","):
            root, limit = ("", "memory.max") if second else ("memory", "memory.limit_in_bytes")
            for place in (path.lstrip("/"), ""):  # in a container the group may be mounted at the root
                folder = Path("/sys/fs/cgroup", root, place)
                with suppress(OSError, ValueError, KeyError):
                    stat = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
                    used = int(stat["anon" if second else "total_rss"])
                    yield max(0, int((folder / limit).read_text()) - used)
