"""Weights of a device of another host: the host reads them from its own copy of the model's file. What
crosses the network is the file's name and identity, and which weights the device has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import GGUF
from satchel.runtime.device.device import Device
from satchel.runtime.kv.identity import weights_identity
from satchel.runtime.net.device import NetDevice
from satchel.runtime.net.link import Message
from satchel.runtime.net.tables import whole
from satchel.runtime.weights.packing import PackedWeight, PackedWeights, file_places, in_place
from satchel.runtime.weights.weights import DeviceWeights, Progress

NAME, MOST = 256, 1 << 50  # characters of a weight's name; the largest number of a packed weight


def model_of(gguf: GGUF) -> Message:
    """The model's file for a host: its path, and the identity of its weights."""
    return {"path": str(Path(gguf.path).absolute()), "identity": weights_identity(gguf)}


def bind_there(
    gguf: GGUF, device: Device, packed: PackedWeights, progress: Progress | None = None
) -> DeviceWeights:
    """bind() on a NetDevice. Raises ModelError where the host has no such file."""
    if not isinstance(device, NetDevice):
        raise TypeError(device)
    places = file_places(gguf, in_place(gguf, device), packed)
    weights = DeviceWeights(places)
    mine = {name: p for name, p in packed.items() if name in gguf.tensors}
    wanted: Message = {
        "names": None if packed.names is None else sorted(packed.names & gguf.tensors.keys()),
        "packed": {name: [p.format, p.stack, p.rows, p.columns, p.size] for name, p in mine.items()},
    }
    weights.buffers |= device.load(model_of(gguf), wanted, progress)
    if weights.sizes() != places.buffers:
        raise DeviceError(
            f"device {device.name}: its weights lie in {weights.sizes()}, expected {places.buffers}: both "
            "hosts need one version of Satchel"
        )
    return weights


def read_packed(message: Mapping[str, Any]) -> PackedWeights:
    """The weights of a message of bind_there(). Raises RequestError for anything else."""
    names, packed = message.get("names"), message.get("packed")
    if not (names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names))):
        raise RequestError(f"names is {names!r:.60}: expected names of weights")
    if not isinstance(packed, dict):
        raise RequestError(f"packed is {packed!r:.60}: expected weights by name")
    found = {}
    for name, row in packed.items():
        if not isinstance(row, list) or len(row) != 5:
            raise RequestError(f"packed weight {name:.60}: expected 5 numbers, found {row!r:.60}")
        found[name] = PackedWeight(*(whole(value, name, MOST) for value in row))
    return PackedWeights(found, None if names is None else frozenset(names))
