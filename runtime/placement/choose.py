"""Chooses where each part of a model goes: of the ways that fit, the one that is done first.

Ways are tried as people think of them: so many layers from the end on devices with memory of their own, the
head with them or not, and of a mixture the experts of some layers left on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations
from types import MappingProxyType

from satchel.quant import DeviceError, RequestError
from satchel.runtime.placement.asked import Asked, Rule
from satchel.runtime.placement.predict import Prediction
from satchel.runtime.placement.sizes import Sizes
from satchel.runtime.placement.where import Where

MIB = 1 << 20
PERMUTED = 4  # devices apart of which every order is tried
NO_SHARES: Mapping[str, float] = MappingProxyType({})


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
    for way in ways(sizes, rooms, asked, orders=predict is not None):
        if best is not None and (predict is None or (asked.named and _amount(way) != _amount(best))):
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


def _amount(way: Way) -> tuple[int, bool, bool, int]:
    """How much is on devices apart, whichever they are."""
    return way.on, way.head, way.embed, way.experts


def ways(sizes: Sizes, rooms: Sequence[Room], asked: Asked, *, orders: bool = False) -> Iterator[Way]:
    """Those that were asked for, most on devices apart first. orders: each with several devices apart filled
    in every order, where their shares are not given.
    """
    whole, far = sizes.layers, [room for room in rooms if room.apart]
    shares = shares_of(asked, rooms)
    filled: list[Sequence[Room]] = [far]
    if orders and not shares and 1 < len(far) <= PERMUTED:
        filled = list(permutations(far))
    turns = [[*order, *(room for room in rooms if not room.apart)] for order in filled]
    if not far:
        counts: Sequence[int] = (0,)
    elif shares and asked.layers is None and not shares.keys() <= {room.name for room in far}:
        counts = (sum(_quotas(shares, whole, far)),)
    elif asked.layers is None:
        counts = range(whole, -1, -1)
    else:
        counts = (whole if asked.everything else min(asked.layers, whole),)
    for on in counts:
        for head, embed in _ends(on, whole, asked):
            for experts in range(on + 1 if _may_stay(sizes, rooms, asked, on) else 1):
                for turn in turns:
                    yield spread(sizes, turn, asked, Way(Where(""), on, head, embed, experts), shares)


def _ends(on: int, whole: int, asked: Asked) -> Sequence[tuple[bool, bool]]:
    """Whether the head and the embeddings go with so many layers."""
    if asked.layers is None:
        return ((True, True), (True, False), (False, False)) if on == whole else ((on > 0, False),)
    full = asked.everything or asked.layers > whole
    return ((full, full),)


def _may_stay(sizes: Sizes, rooms: Sequence[Room], asked: Asked, on: int) -> bool:
    has_host = any(not room.apart for room in rooms)
    return sizes.mixture and has_host and asked.layers is None and on == sizes.layers


def shares_of(asked: Asked, rooms: Sequence[Room]) -> dict[str, float]:
    """The share of each device in the layers, where shares are given; RequestError where they are for other
    devices than there are.
    """
    names = asked.devices or tuple(room.name for room in rooms if room.apart)
    if asked.split and len(names) != len(asked.split):
        given = f"tensor_split has {len(asked.split)} numbers, the devices are {', '.join(names)}"
        raise RequestError(f"{given}: give one for each")
    return {name: part / sum(asked.split) for name, part in zip(names, asked.split, strict=False)}


def _quotas(shares: Mapping[str, float], layers: int, far: Sequence[Room]) -> list[int]:
    """So many of the model's layers for each device apart, rounded so that they add up."""
    bounds = list(accumulate((shares[room.name] for room in far), initial=0.0))
    return [round(layers * b) - round(layers * a) for a, b in pairwise(bounds)]


def spread(
    sizes: Sizes, rooms: Sequence[Room], asked: Asked, way: Way, shares: Mapping[str, float] = NO_SHARES
) -> Way:
    """The way with its layers given out: the last ones to the first device apart, until it is full, or has
    its share.
    """
    far = [room for room in rooms if room.apart]
    mine = sum(shares.get(room.name, 0.0) for room in far) or 1.0
    quota = _quotas({name: part / mine for name, part in shares.items()}, way.on, far) if shares else []
    host = next((room.name for room in rooms if not room.apart), far[-1].name)
    end = far[0].name if way.head else host
    labels = {"output": end, "embed": host}
    each = _by_label(sizes, far, host if way.experts else "")
    used, given, turn = {room.name: 0 for room in far}, [0] * len(far), 0
    first_expert = sizes.layers - way.on + way.experts
    for i in range(sizes.layers - 1, sizes.layers - way.on - 1, -1):
        label, stay = f"blk.{i}", i < first_expert
        while turn < len(far) - 1 and (
            given[turn] >= quota[turn]
            if quota
            else used[far[turn].name] + each(label, far[turn], stay) > far[turn].free
        ):
            turn += 1
        given[turn] += 1
        used[far[turn].name] += each(label, far[turn], stay)
        labels[label] = far[turn].name
    if way.embed:  # with the layer that reads them: alone on a further device they would only cost a crossing
        labels["embed"] = far[turn].name
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
                f"override_tensor {rule.pattern.pattern}={rule.device}: the devices in use are"
                f" {', '.join(names)}; name others with --device"
            )
        if not any(rule.pattern.search(t.name) for t in sizes.tensors):
            raise RequestError(
                f"override_tensor {rule.pattern.pattern}={rule.device}: no tensor has such a name"
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
