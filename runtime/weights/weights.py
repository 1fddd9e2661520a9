"""Loads a file's tensors onto a device. Matrices are packed in the device's own layout, if it has one. Other
tensors are used in place where the device can read the mapped file, else copied, each byte once.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from queue import SimpleQueue
from threading import Event

import numpy as np

from satchel.errors import ModelError
from satchel.errors.threads import SafeThreadPool
from satchel.formats.gguf import GGUF, TensorInfo
from satchel.formats.verify_values import scan
from satchel.quant import FORMATS
from satchel.runtime.device.device import WEIGHT, Buffer, Device
from satchel.runtime.graph import Array, Type
from satchel.runtime.plan import ALIGN, WeightPlace
from satchel.runtime.weights.packing import (
    ALIGNMENT,
    PACKED_BUFFER,
    PackedWeight,
    PackedWeights,
    Places,
    file_places,
    in_place,
)

Progress = Callable[[int, int], None]  # bytes done, bytes in all
CHUNK = 32 << 20
PART = 8 << 20  # bytes of the file that are packed at a time
PART_ROWS = 256  # a part of a matrix is a multiple of 256 rows
LARGE = 16  # tensors larger than 1/16 of the file are packed first
POPULATE_READ = 22  # madvise: fault pages in now; Linux 5.14, not yet named in mmap

PANELS_KEY = "satchel.panels"  # tensor, and key, of a file whose weights are packed (runtime/aot/panels.py)


class FileWeights:
    """A file's tensors as an architecture sees them: types, and values of small ones."""

    def __init__(self, gguf: GGUF) -> None:
        self.gguf = gguf

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.gguf.tensors)

    def type(self, name: str) -> Type | None:
        info = self.gguf.tensors.get(name)
        if info is None and PANELS_KEY in self.gguf.tensors:
            raise ModelError(
                f"{self.gguf.path}: its weights are panels, which libsatchel alone reads; `satchel build "
                "--undo` writes the file as it was"
            )
        if info is None:
            return None
        if info.format not in FORMATS:
            raise ModelError(
                f"{self.gguf.path}: {name} is stored as {info.format}, which this version does not run yet"
            )
        return Type(info.shape, info.format)

    def array(self, name: str) -> Array:
        """Float32 values, read from the file: if it is truncated meanwhile, reading the mapping would kill
        the process.
        """
        info = self.gguf.tensors[name]
        return FORMATS[info.format].decode(self.gguf.copy(name)).reshape(info.shape)


class DeviceWeights:
    """Locations of a device's tensors, and their buffers; implements the plan's WeightPlaces."""

    def __init__(self, places: Places | None = None) -> None:
        self.buffers: dict[str, Buffer] = {}
        self._places = places or Places()

    def place(self, name: str) -> WeightPlace:
        return self._places.place(name)

    def sizes(self) -> dict[str, int]:
        return {name: buffer.size for name, buffer in self.buffers.items()}

    def add(self, name: str, buffer: str, offset: int, packed: int = 0) -> None:
        self._places.places[name] = WeightPlace(buffer, offset, packed)

    def overlaid(self, other: DeviceWeights) -> DeviceWeights:
        """These with others laid over them: of a tensor that both have, the other's."""
        found = DeviceWeights(Places(self._places.places | other._places.places))
        found.buffers = self.buffers | other.buffers
        return found


def bind(
    gguf: GGUF, device: Device, packed: PackedWeights, progress: Progress | None = None
) -> DeviceWeights:
    """Makes tensors readable by the device: all of the file, or those that `packed` names. Tensors in
    `packed` are packed.
    """
    mapped = in_place(gguf, device)
    places = file_places(gguf, mapped, packed)
    weights, forget = DeviceWeights(places), crowds(gguf, device, packed)
    for name, size in places.buffers.items():
        if mapped and name != PACKED_BUFFER:
            weights.buffers[name] = device.wrap(gguf.parts[int(name.split(".")[1])].mmap)
        else:
            weights.buffers[name] = device.alloc(size, WEIGHT)
    order = in_order(gguf, packed)
    done, total = 0, sum(info.nbytes for info in order)
    for info, following in pairwise([*order, None]):
        if following and not packed.streamed:
            _advise(gguf, following, "MADV_WILLNEED")
        for size in _move(gguf, info, weights, packed, mapped) if info else ():
            done += size
            if progress:
                progress(done, total)
        if forget and info and info.name in packed:
            gguf.parts[info.part].forget(info.offset, info.nbytes)
    return weights


Bind = Callable[[GGUF, Device, PackedWeights, Progress | None], DeviceWeights]


def bind_beside(
    gguf: GGUF,
    device: Device,
    packed: PackedWeights,
    progress: Progress | None,
    meanwhile: Callable[[], None],
    bind: Bind = bind,
) -> DeviceWeights:
    """bind(), or another one, in a thread. This thread calls `meanwhile`, then `progress`; an error of either
    ends both.
    """
    said: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
    given_up = Event()

    def note(done: int, total: int) -> None:
        if given_up.is_set():
            raise CancelledError
        said.put((done, total))

    def work() -> DeviceWeights:
        try:
            return bind(gguf, device, packed, note)
        finally:
            said.put(None)

    with SafeThreadPool(1, "satchel-load") as pool:
        running = pool.submit(work)
        try:
            meanwhile()
            for at in iter(said.get, None):
                if progress:
                    progress(*at)
        except BaseException:
            given_up.set()
            raise
        return running.result()


def in_order(gguf: GGUF, packed: PackedWeights) -> list[TensorInfo]:
    """The file's tensors in its order, with large packed ones first. A tensor and its packed copy are in
    memory together, so the largest come while memory is still free.
    """
    tensors = [info for info in gguf.tensors.values() if packed.reads(info.name)]
    least = sum(info.nbytes for info in tensors) // LARGE
    large = {i.name: i.nbytes for i in tensors if i.name in packed and i.nbytes > least}
    return sorted(tensors, key=lambda info: -large.get(info.name, 0))


def crowds(gguf: GGUF, device: Device, packed: PackedWeights) -> bool:
    """Whether the file's tensors and the CPU's packed copies do not fit in free memory together. Then copied
    parts are dropped from the page cache: otherwise the system has no huge pages left for the copies, and
    every product is slower (17.7 GiB of weights in 24 GiB of memory: a tenth of the decoding speed).
    """
    read = sum(info.nbytes for info in in_order(gguf, packed) if info.name in packed)
    made = sum(weight.size for weight in packed.values())
    return device.can_wrap and read + made > device.info().memory_free


def _move(
    gguf: GGUF, info: TensorInfo, weights: DeviceWeights, packed: PackedWeights, mapped: bool
) -> Iterator[int]:
    """Brings one tensor to the device; gives the bytes done, piece by piece."""
    place = weights.place(info.name)
    if info.name in packed:
        buffer = weights.buffers[place.buffer]
        yield from _pack(gguf, info, buffer, place.offset, packed[info.name])
    elif mapped and packed.streamed:
        yield info.nbytes
    elif mapped:
        yield from _fault_in(gguf.parts[info.part].mmap, info.offset, info.nbytes)
    else:
        at = place.offset
        for piece in gguf.chunks(info.name, CHUNK):
            weights.buffers[place.buffer].write(at, np.frombuffer(piece, np.uint8))
            at += len(piece)
            yield len(piece)


def _pack(gguf: GGUF, info: TensorInfo, buffer: Buffer, offset: int, packed: PackedWeight) -> Iterator[int]:
    """Packs a tensor part by part. The pages of a packed part are released at once, so no more than one part
    is in memory twice.
    """
    raw = gguf.raw(info.name).reshape(-1)
    start = 0
    for part in parts_of(buffer.device, packed, info.nbytes):
        size = info.nbytes * part.stack * part.rows // (packed.stack * packed.rows)
        following = min(size, info.nbytes - start - size)
        _advise_range(gguf, info, start + size, following, "MADV_WILLNEED")
        data = aligned(raw[start : start + size])
        write_weight(buffer, offset, data, part)
        _advise_range(gguf, info, start, size, "MADV_DONTNEED")
        offset += part.size
        start += size
        yield size


def write_weight(buffer: Buffer, offset: int, data: Array, packed: PackedWeight | None) -> None:
    """Writes bytes in the file's format, packed where the device packs the weight."""
    if packed is None:
        buffer.write(offset, data)
    else:
        buffer.pack(offset, packed.format, (packed.stack, packed.rows, packed.columns), data)


def write_experts(
    buffer: Buffer,
    place: WeightPlace,
    slot: int,
    gguf: GGUF,
    name: str,
    experts: range,
    packed: PackedWeight | None,
) -> None:
    """Writes experts of a stack of the file one after another to slots of a device's stack, from `slot` on.
    place: of slot 0. packed: the device's stack, where it packs it.
    """
    info = gguf.tensors[name]
    each = info.nbytes // info.shape[0]
    there = packed.size // packed.stack if packed else each
    part = replace(packed, stack=len(experts), size=there * len(experts)) if packed else None
    raw = gguf.raw(name).reshape(-1).view(np.uint8)[each * experts.start : each * experts.stop]
    write_weight(buffer, place.offset + there * slot, aligned(raw), part)


def parts_of(device: Device, packed: PackedWeight, nbytes: int) -> Iterator[PackedWeight]:
    """Splits a weight into its matrices, and these into parts of about PART bytes of the file, each a
    multiple of PART_ROWS rows. A weight stays whole if the packed sizes of its parts do not add up to its
    own: the device's layout is then not sequential.
    """
    rows = PART * packed.stack * packed.rows // nbytes // PART_ROWS * PART_ROWS or PART_ROWS

    def sized(stack: int, rows: int) -> PackedWeight:
        size = device.packed(packed.format, stack, rows, packed.columns)
        return replace(packed, stack=stack, rows=rows, size=size)

    whole, last = divmod(packed.rows, rows)
    cut = [sized(1, rows)] * whole + [sized(1, last)] * (last > 0)
    adds_up = packed.size == packed.stack * sum(part.size for part in cut)
    if nbytes <= PART or not adds_up or any(part.size % ALIGN for part in cut):
        yield packed
        return
    for _ in range(packed.stack):
        yield from cut


def aligned(data: Array) -> Array:
    """The bytes at an address aligned for any block format; copied only if the file does not align them."""
    if data.ctypes.data % ALIGNMENT == 0:
        return data
    room = np.empty(data.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    room[start : start + data.nbytes] = data
    return room[start : start + data.nbytes]


def _advise(gguf: GGUF, info: TensorInfo, advice: str) -> None:
    _advise_range(gguf, info, 0, min(info.nbytes, CHUNK), advice)


def _advise_range(gguf: GGUF, info: TensorInfo, start: int, size: int, advice: str) -> None:
    """madvise on the whole pages within a tensor's bytes; does nothing on a system that lacks it."""
    page = mmap.PAGESIZE
    first = -(-(info.offset + start) // page) * page
    last = (info.offset + start + size) // page * page
    if last > first and hasattr(mmap, advice):
        with suppress(OSError):
            gguf.parts[info.part].mmap.madvise(getattr(mmap, advice), first, last - first)


def _fault_in(mapping: mmap.mmap, offset: int, nbytes: int) -> Iterator[int]:
    """Reads a tensor through the mapping, so that the disk streams and the first token does not wait for page
    faults.
    """
    page = mmap.PAGESIZE
    for start in range(offset, offset + nbytes, CHUNK):
        size = min(CHUNK, offset + nbytes - start)
        first = start // page * page
        try:
            mapping.madvise(POPULATE_READ, first, start + size - first)
        except (OSError, ValueError, AttributeError):
            np.frombuffer(mapping, np.uint8, size, start)[::page].max()
        yield size


def upload(device: Device, values: Mapping[str, Array], packed: Mapping[str, PackedWeight]) -> DeviceWeights:
    """Copies weights that belong to no file, arrays of blocks by name, into one device buffer each."""
    weights = DeviceWeights()
    for name, data in values.items():
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        found = packed.get(name)
        buffer = device.alloc(found.size if found else max(flat.nbytes, 64), WEIGHT)
        write_weight(buffer, 0, flat, found)
        weights.buffers[f"weights.{name}"] = buffer
        weights.add(name, f"weights.{name}", 0, found.size if found else 0)
    return weights


def check_tensors(gguf: GGUF, progress: Progress | None = None) -> None:
    """Reads every weight that this version can decode. Raises ModelError for NaN or infinity
    (--check-tensors).
    """
    for damage in scan(gguf, progress=progress):
        if damage.grave:
            raise ModelError(
                f"{damage.tensor}: row {damage.row} holds {damage.kind}; "
                "the file is damaged or was badly quantized"
            )
