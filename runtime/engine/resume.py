"""Saves a conversation's keys and values to a file and restores them, between the steps of other requests, so
that they need not be recomputed after a restart, nor by another engine that goes on with them.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import OpenFile, open_gguf
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.options import Options
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.kv.identity import identity
from satchel.runtime.kv.memory_file import memory_file, read_all, write_all
from satchel.runtime.kv.saved import Saved, SavedShape, open_saved, write_saved
from satchel.runtime.layers.arch import AdapterScales

MOVED = Path("moved blocks")  # names them in errors
NO_TOKEN = 0  # appended to a lookup, because a prompt's last token never comes from the cache


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of restoring a state."""

    tokens: int  # tokens that requests can find in the cache now
    saved: int  # tokens in the file
    ids: tuple[int, ...]  # the tokens in the file

    @property
    def note(self) -> str:
        """A warning for the user; "" if everything was restored."""
        if self.tokens == self.saved:
            return ""
        return (
            f"{self.tokens} of {self.saved} saved tokens were restored: the KV cache had no room for more; "
            "the rest is computed again"
        )


def shape_of(engine: Engine, model: str, numbers: str) -> SavedShape:
    """The SavedShape of this engine. model: its identity(); numbers: other options that decide the bits."""
    states, cache = engine.states, engine.cache
    parts = [
        tuple((name, part.size) for name, part in zip(names, group, strict=True))
        for names, group in zip(states.formats, states.paged, strict=True)
    ]
    windows = tuple(g.window for g in engine.pages.groups)
    return SavedShape(
        model, cache.keys, cache.values, numbers, cache.block, engine.vocabulary, windows, tuple(parts)
    )


def numbers_of(options: Options, adapter_scales: AdapterScales) -> str:
    """The load options that decide the bits of keys and values. adapter_scales: the defaults; states of
    requests with other scales are not saved.
    """
    text = f"{options.precision}, activations of {options.activations or 8} bits"
    if not adapter_scales:
        return text
    found = hashlib.sha256(repr(adapter_scales).encode())
    for given in (*options.adapters, *options.control_vectors):
        adapter = given if isinstance(given, AdapterFile) else AdapterFile(given)
        with open_gguf(adapter.path) as file:
            found.update(f"{identity(file)} {adapter.layers}\n".encode())
    return f"{text}, adapters and control vectors {found.hexdigest()[:16]}"


def save(
    service: Service,
    shape: SavedShape,
    path: str | Path | OpenFile,
    ids: Sequence[int],
    salt: str = "",
    start: int = 0,
) -> int:
    """Writes the cached prefix of `ids`, in whole blocks; gives its number of tokens. Waits for a slot.
    start: blocks at the beginning that are left out. Raises RequestError if nothing after them is cached.
    """
    engine, file = service.engine, _file(path)
    (slot,) = service.acquire_slots(1)
    try:
        asked = list(ids[: engine.cache.table_width * shape.block])
        length = service.ask(lambda: engine.begin(slot, [*asked, NO_TOKEN], salt)[0])
        if length <= start * shape.block:
            name = file.path if isinstance(file, OpenFile) else file
            raise RequestError(
                f"{name}: there is nothing to save: the cache holds none of these {len(ids)} tokens in whole "
                f"blocks of {shape.block}; save after they were computed"
            )

        def read(group: int, place: int, count: int) -> Array:
            return service.ask(lambda: _read(engine, slot, group, place, count))

        write_saved(file, shape, asked[:length], read, start)
    finally:
        service.release_slots([slot])
    return length


def _file(path: str | Path | OpenFile) -> Path | OpenFile:
    return path if isinstance(path, OpenFile) else Path(path)


def restore(service: Service, shape: SavedShape, path: str | Path | OpenFile, salt: str = "") -> Restored:
    """Loads a saved state into the cache, as much as there is room for. The whole file is validated before
    anything changes.
    """
    with open_saved(_file(path), shape) as saved:
        saved.check()
        (slot,) = service.acquire_slots(1)
        try:
            ids = tuple(saved.ids.tolist())
            tokens = _bring(service, saved, ids, slot, salt)
        finally:
            service.release_slots([slot])
    return Restored(tokens, len(ids), ids)


def export_blocks(
    service: Service, shape: SavedShape, ids: Sequence[int], salt: str, start: int, file: OpenFile | None
) -> tuple[int, Array]:
    """The cached blocks of `ids` from block `start` on, for another engine of the same model: a saved state
    in `file`, or without one its bytes (uint8). Gives the tokens up to which they reach, too.
    """
    if file is not None:
        return save(service, shape, file, ids, salt, start), np.empty(0, np.uint8)
    descriptor = memory_file()
    try:
        tokens = save(service, shape, OpenFile(MOVED, os.dup(descriptor)), ids, salt, start)
        return tokens, read_all(descriptor)
    finally:
        os.close(descriptor)


def import_blocks(service: Service, shape: SavedShape, salt: str, given: OpenFile | str) -> int:
    """Takes what export_blocks() gave, in a file or as base64 text; gives how many of its tokens requests can
    find now. Every block is checked before the cache changes. Raises ModelError for what is damaged or
    another model's.
    """
    if isinstance(given, OpenFile):
        return restore(service, shape, given, salt).tokens
    try:
        data = b64decode(given, validate=True)
    except ValueError as error:
        raise ModelError(f"{MOVED}: expected base64 text, got something else: {error}") from None
    descriptor = memory_file()
    try:
        write_all(descriptor, data)
        return restore(service, shape, OpenFile(MOVED, os.dup(descriptor)), salt).tokens
    finally:
        os.close(descriptor)


def _bring(service: Service, saved: Saved, ids: Sequence[int], slot: int, salt: str) -> int:
    """Number of tokens that requests can find."""
    engine, shape = service.engine, saved.shape
    pages = engine.pages

    def begin() -> tuple[int, list[tuple[int, int]]]:
        most = min(saved.length, pages.cache.table_width)
        engine.begin(slot, [*ids[: most * shape.block], NO_TOKEN], salt)
        best = pages.reachable(slot, most, saved.has)
        return best, pages.extend(slot, best) if best else []

    best, taken = service.ask(begin)
    for group in range(len(shape.windows)):
        places, step = [p for g, p in taken if g == group], shape.at_once(group)
        for at in range(0, len(places), step):
            some = places[at : at + step]
            data = saved.blocks(group, some[0], len(some))
            service.ask(lambda g=group, p=some[0], d=data: _write(engine, slot, g, p, d))  # type: ignore[misc]
    return service.ask(lambda: _publish(engine, slot, ids, best, salt))


def _publish(engine: Engine, slot: int, ids: Sequence[int], blocks: int, salt: str) -> int:
    block = engine.cache.block
    if blocks:
        engine.pages.publish(slot, ids[: blocks * block], salt)
    found, _ = engine.pages.tree.match(ids, salt)
    return found.length * block


def _read(engine: Engine, slot: int, group: int, place: int, count: int) -> Array:
    """(count, block_bytes) uint8"""
    table = engine.pages.groups[group].table
    out = np.empty((count, engine.states.block_bytes[group]), np.uint8)
    for i in range(count):
        engine.states.read_block(int(table[slot, place + i]), out[i], group)
    return out


def _write(engine: Engine, slot: int, group: int, place: int, data: Array) -> None:
    table = engine.pages.groups[group].table
    for i, row in enumerate(data):
        engine.states.write_block(int(table[slot, place + i]), row, group)
