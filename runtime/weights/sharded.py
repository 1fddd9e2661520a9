"""Loads a member's pieces of a file's tensors onto its device: packed where the device packs them, else as in
the file. Nothing is read in place, for a piece by columns lies in no one stretch of the file.
"""

from __future__ import annotations

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.quant import FORMATS
from satchel.runtime.device.device import WEIGHT, Device
from satchel.runtime.graph import Array
from satchel.runtime.plan import align_up
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.weights.packing import PACKED_BUFFER, PackedWeights, Places
from satchel.runtime.weights.weights import DeviceWeights, Progress, aligned, parts_of, write_weight


def has_pieces(gguf: GGUF, packed: PackedWeights) -> bool:
    """Whether some of these weights are pieces of the file's tensors."""
    names = (name for name in packed.names or () if name not in gguf.tensors)
    return any(Piece.of(name).tensor in gguf.tensors for name in names)


def pieces_in(gguf: GGUF, packed: PackedWeights) -> dict[str, Piece]:
    """The pieces of the file's tensors that a device reads, in the order of the file."""
    order = {name: i for i, name in enumerate(gguf.tensors)}
    found = {name: Piece.of(name) for name in packed.names or ()}
    known = {name: piece for name, piece in found.items() if piece.tensor in order}
    return dict(sorted(known.items(), key=lambda item: (order[item[1].tensor], item[0])))


def piece_bytes(gguf: GGUF, piece: Piece) -> int:
    """Bytes of a piece in the file's format."""
    info = gguf.tensors[piece.tensor]
    shape = list(info.shape)
    for axis, range in enumerate(piece.ranges):
        shape[axis] = range.size if range is not None else shape[axis]
    return info.nbytes * int(np.prod(shape)) // max(1, int(np.prod(info.shape)))


def piece_places(gguf: GGUF, packed: PackedWeights) -> Places:
    """Places of a member's pieces, as file_places()."""
    found, plain, own = Places(), 0, 0
    for name, piece in pieces_in(gguf, packed).items():
        if name in packed:
            found.place_at(name, PACKED_BUFFER, own, packed[name].size)
            own = align_up(own + packed[name].size)
        else:
            found.place_at(name, "weights.0", plain)
            plain = align_up(plain + piece_bytes(gguf, piece))
    found.buffers["weights.0"] = max(plain, 64)
    if own:
        found.buffers[PACKED_BUFFER] = own
    return found


def bind_pieces(
    gguf: GGUF, device: Device, packed: PackedWeights, progress: Progress | None = None
) -> DeviceWeights:
    """As bind(), for a member of a group."""
    places = piece_places(gguf, packed)
    weights = DeviceWeights(places)
    for buffer, size in places.buffers.items():
        weights.buffers[buffer] = device.alloc(size, WEIGHT)
    pieces = pieces_in(gguf, packed)
    done, total = 0, sum(piece_bytes(gguf, piece) for piece in pieces.values())
    for name, piece in pieces.items():
        place, data = places.place(name), _bytes_of(gguf, piece)
        whole = packed.get(name)
        offset, start = place.offset, 0
        for part in [None] if whole is None else parts_of(device, whole, data.nbytes):
            size = data.nbytes
            if part is not None and whole is not None:
                size = data.nbytes * part.stack * part.rows // (whole.stack * whole.rows)
            write_weight(weights.buffers[place.buffer], offset, aligned(data[start : start + size]), part)
            offset, start = offset + (part.size if part is not None else 0), start + size
        done += data.nbytes
        if progress:
            progress(done, total)
    return weights


def _bytes_of(gguf: GGUF, piece: Piece) -> Array:
    """The piece's bytes, dense."""
    info, raw = gguf.tensors[piece.tensor], gguf.raw(piece.tensor)
    slices = list(piece.slices())
    last = piece.ranges[-1] if len(piece.ranges) == len(info.shape) else None
    if last is not None:
        format = FORMATS[info.format]
        each = format.block_bytes
        slices[-1] = slice(last.start // format.block * each, last.stop // format.block * each)
    return np.ascontiguousarray(raw[tuple(slices)]).reshape(-1)
