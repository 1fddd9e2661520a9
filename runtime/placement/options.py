"""The user's options for the placement: devices by name, how many layers go to them, tensors by pattern,
memory budgets. All are checked here, before a file is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from satchel.errors import RequestError

AUTO, ALL, NONE, OFF = "auto", "all", "none", "off"
STREAMS = PREFETCHES = ("auto", "on", "off")
WORDS = {"-1": AUTO, "-2": ALL}


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors whose names match the regular expression go to this device (-ot)."""

    pattern: re.Pattern[str]
    device: str


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """devices: names, in order of preference; () for what there is. layers: how many go to devices other than
    the CPU, None: as many as fit, -1: all. prefetch: whether its weights are prefetched to another device
    for long steps: "on", "off", or "auto": by the measured speeds. gpu_memory: bytes of each device other
    than the CPU, 0: what is free. kv: whether the cache stands with its layer. stream: "on", "off", or
    "auto": where it does not fit. lost: devices that do nothing more. split: shares of the devices in the
    layers, in their order; (): as many as each holds. expert_cache: experts that devices hold beside the
    CPU: "auto", "off", a number of each layer, or a size.
    """

    devices: tuple[str, ...] = ()
    layers: int | None = None
    rules: tuple[TensorOverride, ...] = ()
    gpu_memory: int = 0
    kv: bool = True
    stream: str = AUTO
    prefetch: str = AUTO
    lost: tuple[str, ...] = ()
    split: tuple[float, ...] = ()
    expert_cache: str = AUTO

    @property
    def named(self) -> bool:
        """Whether devices were named and the CPU was not: they get what they hold."""
        return bool(self.devices) and "cpu" not in self.devices

    @property
    def everything(self) -> bool:
        return self.layers == -1

    def without(self, device: str) -> PlacementOptions:
        """The options once this device is lost: the others, with the fastest number of layers there; the CPU
        where no other was named.
        """
        left = tuple(name for name in self.devices if name != device)
        rules = tuple(rule for rule in self.rules if rule.device != device)
        named = left or (("cpu",) if self.devices else ())
        return replace(self, devices=named, layers=None, rules=rules, lost=(*self.lost, device), split=())


def read_placement_options(
    device: str,
    gpu_layers: str | int = AUTO,
    override_tensor: Sequence[str] = (),
    gpu_memory: int = 0,
    kv_offload: bool = True,
    stream_weights: str = AUTO,
    prefetch_weights: str = AUTO,
    tensor_split: str = "",
    expert_cache: str | int = AUTO,
) -> PlacementOptions:
    """The options from their texts; RequestError for an invalid one."""
    if gpu_memory < 0:
        raise RequestError(f"gpu_memory is {gpu_memory} bytes: it must not be negative")
    if stream_weights not in STREAMS:
        raise RequestError(f"stream_weights is {stream_weights!r}: expected one of {', '.join(STREAMS)}")
    if prefetch_weights not in PREFETCHES:
        raise RequestError(
            f"prefetch_weights is {prefetch_weights!r}: expected one of {', '.join(PREFETCHES)}"
        )
    rules = tuple(rule for text in override_tensor for rule in read_rules(text))
    devices, layers = read_devices(device), read_layers(gpu_layers)
    split = read_split(tensor_split)
    if split and devices and len(split) != len(devices):
        raise RequestError(
            f"tensor_split has {len(split)} numbers for {len(devices)} devices: give one for each"
        )
    return PlacementOptions(
        devices,
        layers,
        rules,
        gpu_memory,
        kv_offload,
        stream_weights,
        prefetch_weights,
        split=split,
        expert_cache=read_expert_cache(expert_cache).word,
    )


class ExpertCacheSize(NamedTuple):
    """How many experts of a layer are held twice, or in how many bytes; None: not said."""

    word: str
    experts: int | None = None
    bytes: int | None = None


def read_expert_cache(text: str | int) -> ExpertCacheSize:
    """auto, off, a number of experts, or a size with a unit."""
    word = str(text).strip().lower()
    if word in (AUTO, OFF):
        return ExpertCacheSize(word, None if word == AUTO else 0)
    if word.isascii() and word.isdigit():
        return ExpertCacheSize(word, int(word))
    try:
        return ExpertCacheSize(word, None, read_size(word))
    except RequestError:
        raise RequestError(
            f"expert_cache is {text!r}: expected auto, off, a number of experts, or a size such as 4GB"
        ) from None


def read_split(text: str) -> tuple[float, ...]:
    """Shares of a comma list, of any sum; () for none."""
    if not text:
        return ()
    try:
        parts = tuple(float(part) for part in text.split(","))
    except ValueError:
        parts = ()
    if not parts or not all(0 <= part < float("inf") for part in parts) or not sum(parts):
        raise RequestError(f"tensor_split is {text!r}: expected shares such as 3,1, one for each device")
    return parts


def read_devices(text: str) -> tuple[str, ...]:
    """Names of a comma list, each NAME or NAME:INDEX; () for auto."""
    if text in (AUTO, ""):
        return ()
    names = tuple(_known(part.strip()) for part in text.split(","))
    if "" in names or AUTO in names or len(set(names)) < len(names):
        raise RequestError(f"device {text!r}: expected auto, or different names with commas between them")
    return tuple("cpu" if name == NONE else name for name in names)


def _known(name: str) -> str:
    """The name by which a device is told of: the first one of a backend has no number."""
    return name.removesuffix(":0")


def read_layers(text: str | int) -> int | None:
    """A number of layers, None for auto (or -1), -1 for all (or -2, as llama.cpp has it)."""
    word = WORDS.get(str(text), str(text))
    if word in (AUTO, ALL):
        return None if word == AUTO else -1
    if not word.isascii() or not word.isdigit():
        raise RequestError(f"gpu_layers is {text!r}: expected auto, all or a number of layers")
    return int(word)


def read_rules(text: str) -> list[TensorOverride]:
    """Rules of PATTERN=DEVICE[,PATTERN=DEVICE...]; the device stands behind the last equals sign of each."""
    found = []
    parts = [text] if text.count("=") == 1 else re.split(r",(?=[^,=]*=)", text)
    for part in parts:
        pattern, equals, device = part.rpartition("=")
        if not equals or not pattern or not device:
            raise RequestError(f"override_tensor {part!r}: expected PATTERN=DEVICE")
        try:
            found.append(TensorOverride(re.compile(pattern), _known(device.strip().lower())))
        except re.error as error:
            raise RequestError(f"override_tensor {part!r}: the pattern cannot be read: {error}") from None
    return found


def experts_rule(layers: int | None) -> str:
    """The rule that leaves experts with the CPU: those of the first so many layers, or with None all."""
    if layers is None:
        return r"\.ffn_\w*_exps\.=cpu"
    if layers < 0:
        raise RequestError(f"{layers} layers of experts: it must not be negative")
    return rf"^blk\.({'|'.join(map(str, range(layers)))})\.ffn_\w*_exps\.=cpu" if layers else ""


def read_size(text: str) -> int:
    """Bytes of "3GB", "512MiB", "3e9"; a number without a unit is bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", text)
    if not found:
        raise RequestError(f"{text!r} is no size: expected such as 3GB, 512MiB or 3000000000")
    base = 1024 if found[3] else 1000
    return round(float(found[1]) * float(base) ** " kmgt".index(found[2].lower() or " "))
