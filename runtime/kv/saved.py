"""Files of saved keys and values: a GGUF whose tensors are the full blocks of a conversation in cache layout,
with their tokens and a digest per block.

The file is untrusted input: nothing of it is used before all of it is validated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import GGUF, OpenFile, TensorSource, fill_gguf, open_gguf
from satchel.formats.gguf.writer import lay_out, write_layouts
from satchel.formats.resource import Resource
from satchel.quant import FORMATS
from satchel.runtime.graph import Array
from satchel.runtime.kv.group import first_needed

TYPE, VERSION = "satchel.state", 1
AT_ONCE = 1 << 22  # bytes of blocks that are read or written in one call
PRIVATE = 0o600  # the file contains the conversation's tokens
DIGEST = 32  # bytes of a SHA-256
AGAIN = "the file is damaged or was forged: save the state again"
Read = Callable[[int, int, int], Array]


@dataclass(frozen=True, slots=True)
class SavedShape:
    """What a model's blocks look like; a saved file must match it."""

    model: str  # its identity()
    keys: str  # cache formats, as for values
    values: str
    numbers: str  # other options that decide the bits of keys and values
    block: int
    vocabulary: int
    windows: tuple[int, ...]
    # Per group and state, in the order within a block: format and bytes per block.
    parts: tuple[tuple[tuple[str, int], ...], ...]

    @property
    def block_bytes(self) -> tuple[int, ...]:
        return tuple(sum(size for _, size in group) for group in self.parts)

    def first(self, group: int, length: int, start: int = 0) -> int:
        """First block from `start` on that the token after `length` blocks needs."""
        return max(start, first_needed(self.windows[group], length * self.block, self.block))

    def finite(self, group: int, blocks: Array) -> bool:
        """Whether blocks (n, block_bytes) uint8 hold no NaN and no infinity."""
        at = 0
        for name, size in self.parts[group]:
            format = FORMATS[name]
            part = np.ascontiguousarray(blocks[:, at : at + size]).view(format.dtype)
            if not np.isfinite(format.decode(part)).all():
                return False
            at += size
        return True

    def at_once(self, group: int) -> int:
        """Blocks that are moved in one call."""
        return max(1, AT_ONCE // max(1, self.block_bytes[group]))


def write_saved(
    file: Path | OpenFile, shape: SavedShape, ids: Sequence[int], read: Read, start: int = 0
) -> None:
    """Writes the blocks of `ids`, whose number is a multiple of the block size. read(group, place, count)
    gives (count, block_bytes) uint8. A path appears atomically, readable by its owner alone; an open file is
    written from its start. start: blocks at the beginning that are left out, because the reader has them.
    """
    path = file.path if isinstance(file, OpenFile) else file
    length = len(ids) // shape.block
    digests: list[bytes] = [_digest_of(ids)]

    def blocks(group: int) -> Iterator[Array]:
        step = shape.at_once(group)
        for place in range(shape.first(group, length, start), length, step):
            data = read(group, place, min(step, length - place))
            if not shape.finite(group, data):
                raise RequestError(
                    f"{path}: the cache holds numbers that are not finite, so nothing was saved: "
                    "check the model with `satchel verify`"
                )
            digests.extend(hashlib.sha256(row.data).digest() for row in data)
            yield data

    def group_source(group: int) -> TensorSource:
        count = length - shape.first(group, length, start)
        return TensorSource(_name(group), (count, shape.block_bytes[group]), "i8", lambda: blocks(group))

    groups = [group_source(g) for g in range(len(shape.windows))]
    total = 1 + sum(g.shape[0] for g in groups)
    last = TensorSource("sha256", (total, DIGEST), "i8", lambda: b"".join(digests))
    if isinstance(file, OpenFile):
        fill_gguf(file.take(), path, _metadata(shape, ids, start), [*groups, last])
    else:
        write_layouts(lay_out(path, _metadata(shape, ids, start), [*groups, last]), mode=PRIVATE)


def _metadata(shape: SavedShape, ids: Sequence[int], start: int) -> dict[str, Any]:
    return {
        **({"satchel.state.start": start} if start else {}),
        "general.type": TYPE,
        "satchel.state.version": VERSION,
        "satchel.state.model": shape.model,
        "satchel.state.keys": shape.keys,
        "satchel.state.values": shape.values,
        "satchel.state.numbers": shape.numbers,
        "satchel.state.block": shape.block,
        "satchel.state.windows": np.asarray(shape.windows, np.uint32),
        "satchel.state.tokens": np.asarray(ids, np.int32),
    }


class Saved(Resource):
    """An open file of blocks that fit `shape`. open_saved makes it and checks everything except the blocks'
    bytes.

    ids: (length * block) int32.
    start: blocks at the beginning that the file leaves out.
    """

    def __init__(self, gguf: GGUF, shape: SavedShape) -> None:
        self.gguf, self.shape, self.path = gguf, shape, gguf.path
        _check_kind(gguf)
        _check_shape(gguf, shape)
        self.ids = _tokens(gguf, shape)
        self.length = len(self.ids) // shape.block
        self.start = _start(gguf, self.length)
        self._digests, self._checked = self._check_tensors(), False

    def _check_tensors(self) -> Array:
        """The digests: (1 + blocks of all groups, DIGEST) uint8."""
        shape, total, wanted = self.shape, 1, dict[str, tuple[int, ...]]()
        for group, size in enumerate(shape.block_bytes):
            count = self.length - self._first(group)
            wanted[_name(group)], total = (count, size), total + count
        wanted["sha256"] = (total, DIGEST)
        for name in (*wanted, *self.gguf.tensors):
            info = self.gguf.tensors.get(name)
            got = None if info is None else (info.format, info.shape)
            if name not in wanted or got != ("i8", wanted[name]):
                expected = f"i8 {wanted[name]}" if name in wanted else "no such tensor"
                raise ModelError(
                    f"{self.path}: tensor {name!a}: expected {expected}, got {got or 'none'}; {AGAIN}"
                )
        digests = np.empty((total, DIGEST), np.uint8)
        self.gguf.read_into("sha256", digests)
        if digests[0].tobytes() != _digest_of(self.ids):
            raise ModelError(f"{self.path}: satchel.state.tokens: expected those of the digest; {AGAIN}")
        return digests

    def blocks(self, group: int, place: int, count: int) -> Array:
        """`count` blocks from `place` on: (count, block_bytes) uint8. Their digests are verified, and their
        values are finite.
        """
        shape, path = self.shape, self.path
        first = self._first(group)
        size, row = shape.block_bytes[group], 1 + place - first
        row += sum(self.length - self._first(g) for g in range(group))
        info = self.gguf.info(_name(group))
        data = np.empty((count, size), np.uint8)
        offset = info.offset + (place - first) * size
        self.gguf.parts[info.part].read_into(offset, data.reshape(-1).data)
        for i in range(count):
            if hashlib.sha256(data[i].data).digest() != self._digests[row + i].tobytes():
                raise ModelError(f"{path}: block {place + i} of {_name(group)}: wrong digest; {AGAIN}")
        # After check(), a matching digest proves that these are the bytes that were found finite.
        if not self._checked and not shape.finite(group, data):
            raise ModelError(
                f"{path}: blocks {place} to {place + count - 1} of {_name(group)}: expected finite numbers, "
                f"got others; {AGAIN}"
            )
        return data

    def check(self) -> None:
        """Reads every block. Raises ModelError for the first that is wrong."""
        for group in range(len(self.shape.windows)):
            step = self.shape.at_once(group)
            for place in range(self._first(group), self.length, step):
                self.blocks(group, place, min(step, self.length - place))
        self._checked = True

    def has(self, group: int, place: int) -> bool:
        """Whether the file has this block."""
        return self._first(group) <= place < self.length

    def _first(self, group: int) -> int:
        """The group's first block in the file."""
        return self.shape.first(group, self.length, self.start)

    def close(self) -> None:
        self.gguf.close()


def open_saved(path: str | Path | OpenFile, shape: SavedShape) -> Saved:
    """Opens a saved state for a model of this shape. Raises ModelError if it is not a saved state, is
    malformed or belongs to another model, and RequestError if this model was loaded with another cache.
    """
    gguf = open_gguf(path)
    try:
        return Saved(gguf, shape)
    except BaseException:
        gguf.close()
        raise


def _check_kind(gguf: GGUF) -> None:
    meta, path = gguf.metadata, gguf.path
    kind = meta.get_str("general.type", "")
    if kind != TYPE:
        raise ModelError(f"{path}: general.type: expected {TYPE}, got {kind[:40]!a}; give a saved state")
    version = meta.get_uint("satchel.state.version")
    if version != VERSION:
        raise ModelError(f"{path}: satchel.state.version: expected {VERSION}, got {version}; save it again")
    if len(gguf.parts) > 1:
        raise ModelError(f"{path}: expected one file, got a set of {len(gguf.parts)}; {AGAIN}")


def _check_shape(gguf: GGUF, shape: SavedShape) -> None:
    """Raises an error unless the file's blocks match this model's."""
    meta, path = gguf.metadata, gguf.path
    model = meta.get_str("satchel.state.model")
    if model != shape.model:
        raise ModelError(
            f"{path}: satchel.state.model: expected {shape.model[:12]}..., got {model[:12]!a}; "
            "it is another model's state: load that model"
        )
    texts = {"keys": shape.keys, "values": shape.values, "numbers": shape.numbers, "block": str(shape.block)}
    for name, wanted in texts.items():
        key = f"satchel.state.{name}"
        got = str(meta.get_uint(key)) if name == "block" else meta.get_str(key)
        if got != wanted:
            raise RequestError(
                f"{path}: {key}: this model runs with {wanted}, the state with {got[:40]!a}: "
                "load the model with the options of the saved state"
            )
    windows = tuple(meta.get_array("satchel.state.windows", kind="int").tolist())
    if windows != shape.windows:
        raise RequestError(
            f"{path}: satchel.state.windows: expected {shape.windows}, got {windows[:8]}: "
            "load the model with the context of the saved state"
        )


def _tokens(gguf: GGUF, shape: SavedShape) -> Array:
    key, path = "satchel.state.tokens", gguf.path
    found = gguf.metadata.get_array(key, kind="int")
    if not len(found) or len(found) % shape.block:
        raise ModelError(f"{path}: {key}: expected full blocks of {shape.block}, got {len(found)}; {AGAIN}")
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= shape.vocabulary:
        wrong = low if low < 0 else high
        raise ModelError(
            f"{path}: {key}: expected ids below {shape.vocabulary}, the vocabulary, got {wrong}; {AGAIN}"
        )
    return np.asarray(found, np.int32)


def _start(gguf: GGUF, length: int) -> int:
    key = "satchel.state.start"
    found = gguf.metadata.get_uint(key, 0)
    if found >= length:
        raise ModelError(f"{gguf.path}: {key}: expected less than {length}, its blocks, got {found}; {AGAIN}")
    return found


def _digest_of(ids: Sequence[int] | Array) -> bytes:
    return hashlib.sha256(np.asarray(ids, "<i4").tobytes()).digest()


def _name(group: int) -> str:
    return f"group.{group}"
