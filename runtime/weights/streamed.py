"""Weights read from their file while a step runs: while one layer runs, the next layer's pages are prefetched
and the previous layer's are released. So a model can be larger than memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Type
from satchel.runtime.weights.packing import PackedWeights
from satchel.runtime.weights.residency import (
    Over,
    PackedOn,
    Pager,
    Residency,
    StepWeights,
    Targets,
    WeightsOn,
)

EMBEDDINGS = "token_embd.weight"  # a step reads only a few rows, unless it is the head too


class FilePages(Pager):
    """Pages of a mapped file, by layer."""

    def __init__(self, gguf: GGUF) -> None:
        self.gguf = gguf
        self.layers: dict[str, list[str]] = {}
        tied = "output.weight" not in gguf.tensors
        for name in gguf.tensors:
            label = layer_of(name, tied)
            if label:
                self.layers.setdefault(label, []).append(name)
        self._order = sorted(self.layers, key=_rank)
        self._at = ""

    def enter(self, label: str) -> None:
        """Called when a segment of this layer begins."""
        if label == self._at or label not in self.layers:
            return
        at = self._order.index(label)
        if self._at:
            self._advise(self._at, "MADV_DONTNEED")
        else:
            self._advise(label, "MADV_WILLNEED")
        following = self._order[(at + 1) % len(self._order)]
        if following != label:
            self._advise(following, "MADV_WILLNEED")
        self._at = label

    def _advise(self, label: str, advice: str) -> None:
        for part, first, size in self._spans(label):
            if hasattr(mmap, advice):
                with suppress(OSError):
                    self.gguf.parts[part].mmap.madvise(getattr(mmap, advice), first, size)

    def _spans(self, label: str) -> Iterator[tuple[int, int, int]]:
        """For each tensor of the layer: part of the file, first byte and length of the whole pages within."""
        page = mmap.PAGESIZE
        for name in self.layers[label]:
            info = self.gguf.tensors[name]
            first = -(-info.offset // page) * page
            last = (info.offset + info.nbytes) // page * page
            if last > first:
                yield info.part, first, last - first


class Streamed(Over):
    """Weights that these devices leave in the file, unpacked, and read layer by layer."""

    def __init__(self, inner: Residency, gguf: GGUF, devices: Collection[str]) -> None:
        super().__init__(inner)
        self._pagers = dict.fromkeys(devices, FilePages(gguf))

    def targets(self, devices: Sequence[Device], types: Mapping[str, Type]) -> Targets:
        found = self.inner.targets(devices, types)
        return {name: DeviceTarget(t.device) if name in self._pagers else t for name, t in found.items()}

    def context(self, context: Context, tokens: int) -> Context:
        return replace(self.inner.context(context, tokens), streamed=tuple(self._pagers))

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        mine = {name: PackedWeights(p, p.names, name in self._pagers) for name, p in packed.items()}
        return self.inner.load(devices, mine)

    def steps(self, tokens: int, loaded: WeightsOn) -> StepWeights:
        return replace(self.inner.steps(tokens, loaded), pagers=self._pagers)


def layer_of(name: str, tied: bool) -> str:
    """The label of the steps that read a tensor; "": left to the system's paging."""
    if name.startswith("blk."):
        return ".".join(name.split(".")[:2])
    return "output" if name.startswith("output") or (tied and name == EMBEDDINGS) else ""


def _rank(label: str) -> int:
    number = layer_number(label)
    return 1 << 30 if number is None else number


def layer_number(name: str) -> int | None:
    """The number of the layer in a tensor's name or label; None if there is none, also for `blk.2&norm` of a
    damaged file.
    """
    found = name.split(".")[1] if name.startswith("blk.") else ""
    return int(found) if found.isascii() and found.isdecimal() else None
