"""split_mode auto: whether a model runs on one device, on several with whole layers each, or on a group that
divides each layer. The least predicted seconds win, and a note says what was chosen and why.

A further device must pay: the first one alone is taken where the model fits it, unless another way is
predicted to be faster. A group is not considered with options that it cannot have, nor of devices that are
too unlike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.net.device import NetDevice
from satchel.runtime.placement.devices import Opened, apart, driver_bytes, free_bytes, open_for, used_of
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import Prediction, predict
from satchel.runtime.placement.settle import Measure, Settled
from satchel.runtime.placement.sizes import sizes_of
from satchel.runtime.placement.speeds import measured
from satchel.runtime.placement.step import settle_step
from satchel.runtime.weights.packing import own_bytes

SLOWEST = 0.6  # speed of a member, as a part of the fastest one's, below which devices do not make a group
GAIN = 0.95  # more devices must bring the seconds of fewer down to this part
# Bytes of weights below which a group is not considered where one device has room: most of a token's time is
# then that of the kernels' starts, which a group does not divide, and measuring it would delay the load.
SMALL = 1 << 30
ROOM = 1.1  # bytes of a member, over its even share: what is whole on every member


class SplitCandidate(NamedTuple):
    """A way to run the model."""

    name: str
    devices: tuple[Device, ...]
    predicted: Prediction
    apart: int  # devices other than the CPU that it takes


def open_split(
    gguf: GGUF,
    options: Options,
    placement_options: PlacementOptions | None = None,
    measure: Measure | None = None,
) -> Opened:
    """The devices of a load, as open_for() opens them, under the split mode. measure: gives a device's speed
    with this model; None: cached or measured now.
    """
    wanted = placement_options or options.placement_options
    opened = open_for(options, wanted)
    try:
        return under_mode(gguf, opened, options, wanted, measure or measured(gguf, options))
    except BaseException:
        opened.close()
        raise


def under_mode(
    gguf: GGUF, opened: Opened, options: Options, wanted: PlacementOptions, measure: Measure
) -> Opened:
    """The opened devices under the split mode: a group takes the place of its members, and devices that are
    left out are closed.
    """
    devices = opened.devices
    if isinstance(devices[0], GroupDevice):
        return Opened(devices, (*opened.notes, *devices[0].notes))
    members = members_among(devices)
    if wanted.mode == "none" and not wanted.devices:
        return _only(opened, (devices[0], *(d for d in devices[1:] if not apart(d))))
    if wanted.mode == "tensor" and len(members) > 1:
        return _grouped(opened, GroupDevice(members, wanted.split))
    if wanted.mode == "tensor" and not wanted.lost:
        raise DeviceError(
            "split_mode is 'tensor': a group takes two GPUs or more of a backend that has groups, and the "
            f"devices are {', '.join(d.name for d in devices)}: take split_mode='layer'"
        )
    asked = options.refused_with_groups() or wanted.split or wanted.rules
    if wanted.mode != "auto" or len(members) < 2 or asked:
        return opened
    whole = own_bytes(gguf, devices[0], options.repack)
    if whole < SMALL and 2 * whole < free_bytes(devices[0], wanted):
        return opened
    if why := unlike(members, measure):
        return Opened(devices, (*opened.notes, f"split_mode auto: layers: {why}"))
    return _fastest(gguf, opened, members, options, wanted, measure)


def members_among(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that may form a group: those of the first one's backend, if that has groups."""
    first = devices[0]
    if isinstance(first, GroupDevice | NetDevice) or not apart(first) or not first.backend.table.join:
        return ()
    return tuple(d for d in devices if d.backend.path == first.backend.path)


def unlike(members: Sequence[Device], measure: Measure) -> str:
    """Why these devices are too unlike for a group; "" if they are not."""
    if _one_kind(members):
        return ""
    rates = [1 / measure(d).layer[0] for d in members]
    part, slow = min(zip((rate / max(rates) for rate in rates), (d.name for d in members), strict=True))
    if part >= SLOWEST:
        return ""
    return f"{slow} has {part:.0%} of the fastest GPU's speed, and a group takes {SLOWEST:.0%} or more"


def shares_of(members: Sequence[Device], measure: Measure) -> tuple[float, ...]:
    """Each member's share of a layer: by its speed where they are unlike, else ()."""
    return () if _one_kind(members) else tuple(1 / measure(d).layer[0] for d in members)


def _one_kind(members: Sequence[Device]) -> bool:
    return len({(info.name, info.variant) for info in (d.info() for d in members)}) == 1


def _joined(members: Sequence[Device], measure: Measure) -> GroupDevice:
    return GroupDevice(members, shares_of(members, measure))


def _fastest(
    gguf: GGUF,
    opened: Opened,
    members: Sequence[Device],
    options: Options,
    wanted: PlacementOptions,
    measure: Measure,
) -> Opened:
    found = list(_by_layers(gguf, opened.devices, options, wanted, measure))
    notes = opened.notes
    for count in group_sizes(len(members)):
        try:
            group = _joined(members[:count], measure)
            try:
                found += _by_group(gguf, group, options, wanted, measure)
            finally:
                group.part()
        except DeviceError as error:
            notes = (*notes, f"split_mode auto: a group of {count} is left out: {error}")
    if not found:  # what does not fit is told by the load
        return Opened(opened.devices, notes)
    best = best_of(found)
    notes = (*notes, said(best, found))
    if isinstance(best.devices[0], GroupDevice):
        return _grouped(Opened(opened.devices, notes), _joined(best.devices[0].members, measure))
    return _only(Opened(opened.devices, notes), best.devices)


def group_sizes(members: int) -> list[int]:
    """Sizes of the groups to try: powers of two, because most models' heads divide by them, and all members.
    The first members form a smaller group: backends list devices in the order in which they are reached.
    """
    return [*(1 << e for e in range(1, members.bit_length()) if 1 << e < members), members]


def _by_layers(
    gguf: GGUF, devices: Sequence[Device], options: Options, wanted: PlacementOptions, measure: Measure
) -> list[SplitCandidate]:
    """The first device alone, where the model fits it; else whole layers on all."""
    first = (devices[0], *(d for d in devices if not apart(d)))
    for some in (first, tuple(devices)):
        try:
            settled, _ = settle_step(gguf, some, options, wanted, measure)
        except DeviceError:  # it does not fit, as the options want it
            continue
        used = _used(settled)
        if some is first and used != {first[0].name}:
            continue
        names = [d.name for d in some if d.name in used]
        name = "layers" if len(names) > 1 else names[0]
        kept = some if some is first else tuple(d for d in some if d.name in used or not apart(d))
        return [SplitCandidate(name, kept, settled.predicted(some, measure), sum(map(apart, kept)))]
    return []


def _by_group(
    gguf: GGUF, group: GroupDevice, options: Options, wanted: PlacementOptions, measure: Measure
) -> list[SplitCandidate]:
    """The group, where the model fits it."""
    settled, _ = settle_step(gguf, [group], options, replace(wanted, devices=(group.name,)), measure)
    sizes, placed = sizes_of(settled.arch.build(), settled.arch.layers, [group]), Placement(group.name)
    if not group_fits(sizes.on(placed)[group.name], group, wanted):
        return []
    predicted = predict(placed, sizes, {group.name: measure(group)})
    count = len(group.members)
    return [SplitCandidate(f"tensor on {count}", (group,), predicted, count)]


def group_fits(nbytes: int, group: GroupDevice, wanted: PlacementOptions) -> bool:
    """Whether every member has room for its part of so many bytes of weights and states."""
    shares = group.shares or (1.0,) * len(group.members)
    parts = (ROOM * nbytes * share / sum(shares) for share in shares)
    free = (free_bytes(d, wanted) - driver_bytes(d) for d in group.members)
    return all(part <= room for part, room in zip(parts, free, strict=True))


def best_of(found: Sequence[SplitCandidate]) -> SplitCandidate:
    """The candidate with the least seconds. Fewer devices give way to more only where these gain, and none to
    one that is slower for a single answer.
    """
    best = found[0]
    for other in found[1:]:
        most = GAIN if other.apart > best.apart else 1.0
        shorter = other.predicted.seconds < most * best.predicted.seconds
        if shorter and other.predicted.decode <= best.predicted.decode:
            best = other
    return best


def said(best: SplitCandidate, found: Sequence[SplitCandidate]) -> str:
    """The note on the choice, with the predicted rates."""
    rates = "; ".join(f"{c.name} {c.predicted.tg:,.4g} and {c.predicted.pp:,.4g}" for c in found)
    why = (
        {
            1: "the model fits it, and a group is not predicted to be faster",
        }.get(best.apart, "it is predicted to be the fastest")
        if len(found) > 1
        else "nothing else fits"
    )
    return f"split_mode auto: {best.name}: {why} (t/s of an answer and of a prompt: {rates})"


def _used(settled: Settled) -> set[str]:
    """Devices that a placement names, the CPU of streamed weights among them."""
    placement = settled.placement
    labels = ("embed", "output", *(f"blk.{i}" for i in range(settled.arch.layers)))
    named = {placement.label(label) for label in labels}
    return named | set(placement.weights.values()) | set(placement.states.values())


def _grouped(opened: Opened, group: GroupDevice) -> Opened:
    """The group alone."""
    names = {d.name for d in group.members}
    for device in (d for d in opened.devices if d.name not in names):
        device.close()
    return Opened((group,), (*opened.notes, *group.notes))


def _only(opened: Opened, devices: Sequence[Device]) -> Opened:
    return Opened(used_of(opened.devices, {d.name for d in devices}), opened.notes)
