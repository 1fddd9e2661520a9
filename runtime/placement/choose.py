"""Chooses where each part of a model goes: of the ways that fit, the one that is done first.

Ways are tried as people think of them: so many layers from the end on devices with memory of their own, the
head with them or not, and of a mixture the experts of some layers left on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from satchel.quant import DeviceError, RequestError
from satchel.runtime.placement.asked import Asked, Rule
from satchel.runtime.placement.predict import Prediction
from satchel.runtime.placement.sizes import Sizes
from satchel.runtime.placement.where import Where

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """A device as the choice sees it. free: bytes for weights and states, what a step needs besides taken
    off; apart: it is not the CPU.
    """

    name: str
    free: int
    apart: bool


@dataclass(frozen=True, slots=True)
class Way:
    """One way to place a model. on: layers on devices apart; head, embed: whether these are there; experts:
    of how many of the layers the experts stay on the CPU.
    """

    where: Where
    on: int
    head: bool
    embed: bool
    experts: int = 0


Predict = Callable[[Where], Prediction]


def choose(sizes: Sizes, rooms: Sequence[Room], asked: Asked, predict: Predict | None = None) -> Way:
    """The quickest of the ways that fit; without `predict` the one with most on devices apart.

    DeviceError where more was asked for than fits. Where even the CPU is too small, it takes what is left.
    """
    check_rules(asked.rules, sizes, rooms)
    best: Way | None = None
    least = float("inf")
    for way in ways(sizes, rooms, asked):
        if best is not None and predict is None:
            break
        if fits(sizes.on(way.where), rooms):
            seconds = predict(way.where).seconds if predict else 0.0
            if seconds < least:
                best, least = way, seconds
    if best is None:
        raise _too_much(sizes, rooms, asked)
    return best


def fits(held: Mapping[str, int], rooms: Sequence[Room], host: bool = False) -> bool:
    """Whether devices apart have room for what they hold, and the CPU too where `host` says so."""
    asked = (room for room in rooms if held[room.name] and (room.apart or host))
    return all(held[room.name] <= room.free for room in asked)


def ways(sizes: Sizes, rooms: Sequence[Room], asked: Asked) -> Iterator[Way]:
    """Those that were asked for, most on devices apart first."""
    whole = sizes.layers
    if not any(room.apart for room in rooms):
        counts: Sequence[int] = (0,)
    elif asked.layers is None:
        counts = range(whole, -1, -1)
    else:
        counts = (whole if asked.everything else min(asked.layers, whole),)
    for on in counts:
        for head, embed in _ends(on, whole, asked):
            for experts in range(on + 1 if _may_stay(sizes, rooms, asked, on) else 1):
                made = spread(sizes, rooms, asked, Way(Where(""), on, head, embed, experts))
                if made is not None:
                    yield made


def _ends(on: int, whole: int, asked: Asked) -> Sequence[tuple[bool, bool]]:
    """Whether the head and the embeddings go with so many layers."""
    if asked.layers is None:
        return ((True, True), (True, False), (False, False)) if on == whole else ((on > 0, False),)
    full = asked.everything or asked.layers > whole
    return ((full, full),)


def _may_stay(sizes: Sizes, rooms: Sequence[Room], asked: Asked, on: int) -> bool:
    has_host = any(not room.apart for room in rooms)
    return sizes.mixture and has_host and asked.layers is None and on == sizes.layers


def spread(sizes: Sizes, rooms: Sequence[Room], asked: Asked, way: Way) -> Way | None:
    """The way with its layers given out: the last ones to the first device apart, until it is full."""
    far = [room for room in rooms if room.apart]
    host = next((room.name for room in rooms if not room.apart), far[-1].name)
    end = far[0].name if way.head else host
    labels = {"output": end, "embed": far[-1].name if way.embed else host}
    each = _by_label(sizes, far, host if way.experts else "")
    used, turn = {room.name: 0 for room in far}, 0
    first_expert = sizes.layers - way.on + way.experts
    for i in range(sizes.layers - 1, sizes.layers - way.on - 1, -1):
        label, stay = f"blk.{i}", i < first_expert
        while turn < len(far) - 1 and used[far[turn].name] + each(label, far[turn], stay) > far[turn].free:
            turn += 1
        used[far[turn].name] += each(label, far[turn], stay)
        labels[label] = far[turn].name
    staying = {f"blk.{i}" for i in range(sizes.layers - way.on, first_expert)} if way.experts else set[str]()
    weights = {t.name: host for t in sizes.tensors if t.expert and t.label in staying}
    weights |= ruled(asked.rules, sizes)
    states = {"tokens": end}
    if not asked.kv:
        states |= dict.fromkeys((name for name in sizes.states if name != "tokens"), host)
    return Way(Where(host, labels, weights, states), way.on, way.head, way.embed, way.experts)


def _by_label(sizes: Sizes, far: Sequence[Room], host: str) -> Callable[[str, Room, bool], int]:
    """Bytes of a layer on a device, with its experts or without."""
    sums: dict[tuple[str, str, bool], int] = {}
    for room in far:
        for t in sizes.tensors:
            key = (t.label, room.name, t.expert)
            sums[key] = sums.get(key, 0) + sizes.held[room.name][t.name]
        for label, size in sizes.states.values():
            key = (label, room.name, False)
            sums[key] = sums.get(key, 0) + size

    def each(label: str, room: Room, stay: bool) -> int:
        experts = 0 if stay and host else sums.get((label, room.name, True), 0)
        return sums.get((label, room.name, False), 0) + experts

    return each


def ruled(rules: Sequence[Rule], sizes: Sizes) -> dict[str, str]:
    """Devices of the tensors that a rule names; the first that finds one counts."""
    found = ((t.name, next((r.device for r in rules if r.pattern.search(t.name)), "")) for t in sizes.tensors)
    return {name: device for name, device in found if device}


def check_rules(rules: Sequence[Rule], sizes: Sizes, rooms: Sequence[Room]) -> None:
    """RequestError for a rule of a device that is not there, or that no tensor meets."""
    names = [room.name for room in rooms]
    for rule in rules:
        if rule.device not in names:
            raise RequestError(
                f"tensor place {rule.pattern.pattern}={rule.device}: the devices in use are"
                f" {', '.join(names)}; name others with --device"
            )
        if not any(rule.pattern.search(t.name) for t in sizes.tensors):
            raise RequestError(
                f"tensor place {rule.pattern.pattern}={rule.device}: no tensor of the model has such a name"
            )


def _too_much(sizes: Sizes, rooms: Sequence[Room], asked: Asked) -> DeviceError:
    """The error of what does not fit even with as little on devices apart as was asked for."""
    last = list(ways(sizes, rooms, asked))[-1]
    held = sizes.on(last.where)
    room = next(room for room in rooms if room.apart and held[room.name] > room.free)
    return DeviceError(
        f"device {room.name}: {_asked_for(asked)} need {held[room.name] / MIB:,.0f} MiB and it has"
        f" {max(0, room.free) / MIB:,.0f} MiB: ask for fewer layers, a smaller context, or -ngl auto"
    )


def _asked_for(asked: Asked) -> str:
    if asked.layers is None:
        return "the tensors placed there"
    return "all layers" if asked.everything else f"{asked.layers} layers"
