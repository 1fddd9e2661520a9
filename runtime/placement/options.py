"""The user's placement options: devices by name, number of layers on them, tensors by pattern, memory
budgets. All are validated before a file is opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from satchel.errors import RequestError
from satchel.runtime.net.address import SLASH, read_name

AUTO, ALL, NONE, OFF = "auto", "all", "none", "off"
GROUP = "+"  # between the names of a group's devices
SPLIT_MODES = ("auto", "layer", "row", "tensor", "none")
MOST_REPLICAS = 256
ONE_CONTEXT = "context"  # a KV budget of one full conversation
STREAMS = PREFETCHES = DIVIDED_CACHES = ("auto", "on", "off")
PEER = re.compile(
    r"(CPU|CUDA|ROCm|HIP|SYCL|Metal|MTL)(\d*)", re.IGNORECASE
)  # devices as llama.cpp writes them
PEER_NAMES = {"rocm": "hip", "mtl": "metal"}
WORDS = {"-1": AUTO, "-2": ALL}


@dataclass(frozen=True, slots=True)
class TensorOverride:
    """Tensors whose names match the regular expression go to this device (-ot)."""

    pattern: re.Pattern[str]
    device: str


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """Placement options of a load."""

    devices: tuple[str, ...] = ()  # names in order of preference; (): whatever the machine has
    layers: int | None = None  # number on devices other than the CPU; None: as many as fit, -1: all
    rules: tuple[TensorOverride, ...] = ()
    gpu_memory: int = 0  # byte limit per device other than the CPU; 0: its free memory
    kv: bool = True  # a layer's KV cache is on the layer's device
    # The CPU reads weights from the file on demand: "on", "off", or "auto": if they do not fit.
    stream: str = AUTO
    # Another device prefetches the CPU's weights for long steps: "on", "off", or "auto": by measured speeds.
    prefetch: str = AUTO
    lost: tuple[str, ...] = ()  # devices that failed and are not used again
    # Each device's share of the layers, in their order; (): as many as fit each.
    split: tuple[float, ...] = ()
    # Where all devices are one group, each member's share of every layer; (): equal ones.
    member_split: tuple[float, ...] = ()
    # How several devices share the model, as of read_split_mode; auto: the fastest by prediction.
    mode: str = "layer"
    key: str = ""  # path of the key file for devices of other hosts; "": none
    sharers: int = 1  # engines that divide the free memory of these devices
    expert_cache: str = AUTO  # experts cached beside the CPU's: "auto", "off", a number per layer, or a size
    # The members of a group divide caches by blocks: "on", "off", or "auto": if they do not fit otherwise.
    context_parallel: str = AUTO

    @property
    def far(self) -> bool:
        """Whether some device is another host's."""
        return any(SLASH in name for name in self.devices)

    @property
    def grouped(self) -> bool:
        """Whether some device is a group (tensor parallelism)."""
        return any(GROUP in name for name in self.devices)

    @property
    def named(self) -> bool:
        """Whether devices were named and the CPU was not: they then get as many layers as fit."""
        return bool(self.devices) and "cpu" not in self.devices

    @property
    def everything(self) -> bool:
        return self.layers == -1

    def without(self, device: str) -> PlacementOptions:
        """The options after this device is lost: the remaining devices, with an automatic number of layers;
        the CPU if none is left.
        """
        left = tuple(name for whole in self.devices if (name := _left(whole, device)))
        rules = tuple(rule for rule in self.rules if rule.device != device)
        named = left or (("cpu",) if self.devices else ())
        left_out = replace(self, devices=named, layers=None, rules=rules, lost=(*self.lost, device))
        return replace(left_out, split=(), member_split=())


def _left(name: str, lost: str) -> str:
    """A device, or a group of them, without one that is lost; "": nothing is left."""
    return "" if name == lost else GROUP.join(member for member in name.split(GROUP) if member != lost)


class ExpertCacheSize(NamedTuple):
    """Size of the expert cache: experts per layer, or bytes; None: not given."""

    word: str
    experts: int | None = None
    bytes: int | None = None


def read_expert_cache(text: str | int) -> ExpertCacheSize:
    """Parses auto, off, a number of experts, or a size with a unit."""
    word = str(text).strip().lower()
    if word in (AUTO, OFF):
        return ExpertCacheSize(word, None if word == AUTO else 0)
    try:
        return ExpertCacheSize(word, *_count_or_size(word))
    except RequestError:
        raise RequestError(
            f"expert_cache is {text!r}: expected auto, off, a number of experts, or a size such as 4GB"
        ) from None


class KVBudget(NamedTuple):
    """The KV cache that all slots share: tokens, or bytes over all layers. Neither is given for `auto`, room
    for a full context of each slot, and for `context`, room for one.
    """

    word: str = AUTO
    tokens: int | None = None
    bytes: int | None = None

    @property
    def limits(self) -> bool:
        """Whether the user gives the size."""
        return self.tokens is not None or self.bytes is not None


def read_kv_budget(text: str | int) -> KVBudget:
    """Parses auto, context, a number of tokens, or a size with a unit."""
    word = str(text).strip().lower()
    try:
        found = KVBudget(word, *((None, None) if word in (AUTO, ONE_CONTEXT) else _count_or_size(word)))
    except RequestError:
        found = KVBudget(word, 0)
    if 0 in (found.tokens, found.bytes):
        raise RequestError(
            f"kv_budget is {text!r}: expected auto, context, a number of tokens, or a size such as 4GB"
        )
    return found


def _count_or_size(word: str) -> tuple[int | None, int | None]:
    """A plain number, or the bytes of a size."""
    return (int(word), None) if word.isascii() and word.isdigit() else (None, read_size(word))


def read_replicas(text: str | int) -> int | None:
    """Parses a number of replicas, or of LEAST..MOST the most; None for auto."""
    word = str(text).strip().lower()
    return None if word == AUTO else replica_range(word)[1]


def replica_range(text: str | int) -> tuple[int, int]:
    """Parses LEAST..MOST, the replicas between which a fleet is scaled; of a number both are that."""
    first, dots, last = str(text).strip().partition("..")
    numbers = [int(n) for n in (first, last if dots else first) if n.isascii() and n.isdigit() and len(n) < 9]
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1] <= MOST_REPLICAS:
        raise RequestError(
            f"replicas is {text!r}: expected auto, or a number from 1 to {MOST_REPLICAS}, or two such as 1..4"
        )
    return numbers[0], numbers[1]


def is_range(text: str | int) -> bool:
    """Whether a fleet is scaled between two numbers of replicas."""
    return ".." in str(text)


def read_pools(text: str) -> tuple[int, int] | None:
    """Parses how replicas divide prompts and answers: None for off; (0, 0) for auto; the number that compute
    prompts and the number that answer.
    """
    word = str(text).strip().lower()
    if word in ("", OFF):
        return None
    if word == AUTO:
        return 0, 0
    prompts, plus, answers = word.partition("+")
    if not (
        plus and all(n.isascii() and n.isdigit() and 1 <= int(n) <= MOST_REPLICAS for n in (prompts, answers))
    ):
        raise RequestError(
            f"pools is {text!r}: expected off, auto, or how many replicas compute prompts and how many"
            " answer, such as 1+3"
        )
    return int(prompts), int(answers)


def read_split(text: str) -> tuple[float, ...]:
    """Parses a comma-separated list of shares, of any sum; () if empty."""
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
    """Parses a comma-separated list of NAME or NAME:INDEX; () for auto. NAME:0+NAME:1 is a group of devices,
    which divide each layer that the group has; HOST/NAME:INDEX or HOST:PORT/NAME:INDEX a device of another
    host.
    """
    if text in (AUTO, ""):
        return ()
    groups = [[_known(member.strip()) for member in part.split(GROUP)] for part in text.split(",")]
    names = [name for group in groups for name in group]
    if far := next((name for group in groups if len(group) > 1 for name in group if SLASH in name), ""):
        raise RequestError(
            f"device {text!r}: {far} is a device of another host, which no group can have: give whole "
            "layers to it, with a comma before it"
        )
    if "" in names or AUTO in names or len(set(names)) < len(names):
        raise RequestError(
            f"device {text!r}: expected auto, or different names with commas between them, or with + between "
            "those of a group"
        )
    if any(NONE in group for group in groups if len(group) > 1):
        raise RequestError(f"device {text!r}: {NONE} cannot be in a group")
    return tuple("cpu" if group == [NONE] else GROUP.join(group) for group in groups)


def read_split_mode(text: str, devices: tuple[str, ...]) -> tuple[str, ...]:
    """The devices under a split mode: auto, layer: as they are; tensor: one group of them; none: the first.
    row, which command lines of model cards name, is layer here. Devices that are not named are chosen when
    they are known, in split_mode.py.
    """
    if text == "none":
        return devices[:1]
    if text != "tensor" or not devices or any(GROUP in name for name in devices):
        return devices
    if len(devices) < 2 or "cpu" in devices:
        raise RequestError(
            "split_mode is 'tensor': name the devices of the group, at least two and not the CPU, as in "
            "-dev cuda:0,cuda:1"
        )
    return (GROUP.join(devices),)


def _known(name: str) -> str:
    """The canonical name of a device: the first of a backend has no number. llama.cpp's CUDA0 is cuda."""
    if SLASH in name:
        return str(read_name(name))
    if found := PEER.fullmatch(name):
        backend = found[1].lower()
        name = f"{PEER_NAMES.get(backend, backend)}:{found[2] or 0}"
    return name.removesuffix(":0")


def read_layers(text: str | int) -> int | None:
    """Parses a number of layers; None for auto (or -1), -1 for all (or -2, as in llama.cpp)."""
    word = WORDS.get(str(text), str(text))
    if word in (AUTO, ALL):
        return None if word == AUTO else -1
    if not word.isascii() or not word.isdigit():
        raise RequestError(f"gpu_layers is {text!r}: expected auto, all or a number of layers")
    return int(word)


def read_rules(text: str) -> list[TensorOverride]:
    """Parses PATTERN=DEVICE[,PATTERN=DEVICE...]. The device follows the last equals sign of each rule."""
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
    """The rule that keeps experts on the CPU: those of the first `layers` layers; None: of all."""
    if layers is None:
        return r"\.ffn_\w*_exps\.=cpu"
    if layers < 0:
        raise RequestError(f"{layers} layers of experts: the number must not be negative")
    return rf"^blk\.({'|'.join(map(str, range(layers)))})\.ffn_\w*_exps\.=cpu" if layers else ""


def read_size(text: str) -> int:
    """Bytes of a size such as "3GB", "512MiB" or "3e9". Without a unit, the number is bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", text)
    if not found:
        raise RequestError(f"{text!r} is no size: expected such as 3GB, 512MiB or 3000000000")
    base = 1024 if found[3] else 1000
    return round(float(found[1]) * float(base) ** " kmgt".index(found[2].lower() or " "))
