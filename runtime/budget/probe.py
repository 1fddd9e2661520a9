"""A loaded model in which some weights are temporarily replaced, to measure the divergence of each
replacement.

The model is read once. A replacement gets a graph of its own, so its products are those of the finished file,
8-bit activations included; all other weights stay in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.formats.logits import LogitsFile, open_logits
from satchel.formats.resource import Resource
from satchel.quant.format import Blocks
from satchel.runtime.api.model import Model
from satchel.runtime.compiler import optimize
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Type
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.tasks.perplexity import Divergence, Progress, diverge, write_base
from satchel.runtime.weights.packing import packable, packed_by
from satchel.runtime.weights.residency import Over, PackedOn, Residency, WeightsOn
from satchel.runtime.weights.resident import LoadedOnce, Resident
from satchel.runtime.weights.weights import FileWeights, upload
from satchel.runtime.weights.weights import Progress as Loaded

Windows = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Replacement of a tensor: a format, and its blocks."""

    format: str
    blocks: Blocks


class Exchanged(FileWeights):
    """The file's tensors with some replaced."""

    def __init__(self, gguf: GGUF, formats: Mapping[str, str]) -> None:
        super().__init__(gguf)
        self.formats = formats

    def type(self, name: str) -> Type | None:
        found = super().type(name)
        return Type(found.shape, self.formats[name]) if found and name in self.formats else found


class _Exchanging(Over):
    """Weights of which some are replaced."""

    def __init__(self, inner: Residency, exchanges: Mapping[str, Exchange]) -> None:
        super().__init__(inner)
        self._blocks = {name: exchange.blocks for name, exchange in exchanges.items()}

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        found = self.inner.load(devices, packed)
        return {d.name: found[d.name].overlaid(upload(d, self._blocks, packed[d.name])) for d in devices}


class Prober(Resource):
    """An open model, and its own log-probabilities, `base`, as the reference of every measurement."""

    def __init__(
        self,
        gguf: GGUF,
        windows: Windows,
        bos: int | None,
        base: Path,
        *,
        threads: int = 0,
        device: str = "auto",
        loaded: Loaded | None = None,
        progress: Progress | None = None,
    ) -> None:
        """windows: token ids (n, context). base: a file to be written, removed by the caller."""
        self.gguf, self.bos = gguf, bos
        name = gguf.metadata.get_str("general.architecture")
        self._arch, self._hp = find_arch(name, str(gguf.path)), HParams(gguf.metadata, name)
        self._cache = Cache(windows.shape[1], 1)
        self._weights = LoadedOnce(Resident(gguf, progress=loaded))
        self.device: Device = find_backend(device).open(threads=threads)
        try:
            engine = self._engine({})
            try:
                self.source = write_base(base, engine, windows, self.vocab, bos, progress)
            finally:
                engine.release()
            self.base: LogitsFile = open_logits(base)
        except BaseException:
            self.close()
            raise

    def measure(self, exchanges: Mapping[str, Exchange]) -> float:
        """Mean divergence in nats per token with these tensors replaced."""
        engine = self._engine(exchanges)
        try:
            return diverge(engine, self.base, self.vocab, self.bos)[1].kld_mean
        finally:
            engine.release()

    def write_base(self, path: Path, windows: Windows) -> None:
        """Writes the model's own log-probabilities on other windows of the same length."""
        engine = self._engine({})
        try:
            write_base(path, engine, windows, self.vocab, self.bos)
        finally:
            engine.release()

    def runs(self, name: str, format: str) -> bool:
        """Whether the device runs the model with this tensor in this format."""
        arch = self._arch(self._hp, Exchanged(self.gguf, {name: format}), self._cache)
        forward = arch.build()
        target = DeviceTarget(self.device, packed_by(self.device, packable(forward)))
        try:
            optimize(forward.roots("tokens"), Context((target,), lambda node: self.device.name))
        except DeviceError:
            return False
        return True

    def _engine(self, exchanges: Mapping[str, Exchange]) -> Engine:
        formats = {name: exchange.format for name, exchange in exchanges.items()}
        arch = self._arch(self._hp, Exchanged(self.gguf, formats), self._cache)
        self.vocab = arch.vocab
        return Engine(
            arch.build(),
            self._cache,
            [self.device],
            _Exchanging(self._weights, exchanges),
            source=str(self.gguf.path),
        )

    def close(self) -> None:
        self.device.close()


def measure_file(path: Path, base: LogitsFile, bos: int | None, threads: int = 0) -> Divergence:
    """Divergence of a finished file from a base."""
    with Model.load(path, context=base.context, threads=threads) as model:
        return diverge(model.engine, base, model.arch.vocab, bos)[1]
