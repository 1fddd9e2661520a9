"""Resident weights: of a file, or of arrays that belong to none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from satchel.formats.gguf import GGUF
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Array
from satchel.runtime.net.device import NetDevice
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.weights.packing import PackedWeights
from satchel.runtime.weights.residency import Over, PackedOn, Residency, WeightsOn
from satchel.runtime.weights.sharded import bind_pieces, has_pieces
from satchel.runtime.weights.there import bind_there
from satchel.runtime.weights.weights import Bind, Progress, bind, bind_beside, upload


class Resident(Residency):
    """A file's weights: packed, in place in the mapped file, or copied. progress: as of bind(). meanwhile:
    called once for each device while its weights load.
    """

    def __init__(
        self,
        gguf: GGUF,
        repack: bool = True,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(repack)
        self.gguf, self._progress, self._meanwhile = gguf, progress, meanwhile

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        how = self._progress, self._meanwhile or (lambda: None)
        # Both may be the model's own methods, and the engine must not keep its model alive.
        self._progress = self._meanwhile = None
        return {
            d.name: bind_beside(self.gguf, d, packed[d.name], *how, bind=self._bind(d, packed[d.name]))
            for d in devices
        }

    def _bind(self, device: Device, packed: PackedWeights) -> Bind:
        if isinstance(device, NetDevice):
            return bind_there
        return bind_pieces if has_pieces(self.gguf, packed) else bind


class Uploaded(Residency):
    """Arrays of blocks by name, copied to each device."""

    def __init__(self, values: Mapping[str, Array], repack: bool = True) -> None:
        super().__init__(repack)
        self.values = values

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        return {d.name: upload(d, self._of(packed[d.name].names), packed[d.name]) for d in devices}

    def _of(self, names: frozenset[str] | None) -> Mapping[str, Array]:
        """All values, and the pieces that a member of a group reads."""
        pieces = [Piece.of(name) for name in names or () if name not in self.values]
        return {**self.values, **{p.name: p.blocks(self.values[p.tensor]) for p in pieces}}


class LoadedOnce(Over):
    """Weights that several engines share: the first one loads them."""

    _loaded: WeightsOn | None = None

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        if self._loaded is None:
            self._loaded = self.inner.load(devices, packed)
        return self._loaded

    def close(self) -> None:
        """The weights stay for the next engine."""
