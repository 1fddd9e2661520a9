"""split_mode auto: whether a model runs on one device, on several with whole layers each, on a group that
divides each layer, or, where it fits no such group, on a pipeline of groups with the CPU behind them. The
least predicted seconds win, and a note says what was chosen and why.

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
from satchel.runtime.device.group import GroupDevice, members_of
from satchel.runtime.net.device import NetDevice
from satchel.runtime.placement.devices import Opened, apart, driver_bytes, free_bytes, open_for, used_of
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import Prediction, Speed, predict
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
    groups = [device for device in devices if isinstance(device, GroupDevice)]
    if groups:
        return Opened(devices, (*opened.notes, *(note for group in groups for note in group.notes)))
    members = members_among(devices)
    if wanted.mode == "none" and not wanted.devices:
        return _only(opened, (devices[0], *(d for d in devices[1:] if not apart(d))))
    if wanted.mode == "tensor" and len(members) > 1:
        group = GroupDevice(members, wanted.member_split)
        return _only(opened, (group, *(d for d in devices if not apart(d))))
    if wanted.mode == "tensor" and not wanted.lost:
        raise DeviceError(
            "split_mode is 'tensor': a group takes two GPUs or more of a backend that has groups, and the "
            f"devices are {', '.join(d.name for d in devices)}: take split_mode='layer'"
        )
    given = wanted.split or wanted.rules or wanted.layers not in (None, -1)
    asked = given or options.moving_weights()
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
    notes, alone = opened.notes, bool(found) and found[0].apart == 1
    for count in group_sizes(len(members)):
        groups: list[GroupDevice] = []
        try:
            groups.append(_joined(members[:count], measure))
            here = _by_group(gguf, groups[0], options, wanted, measure)
            if not here and not alone:
                groups += (_joined(some, measure) for some in _further(members, count))
                here = _by_pipeline(gguf, opened.devices, groups, options, wanted, measure)
            found += here
        except DeviceError as error:
            notes = (*notes, f"split_mode auto: a group of {count} is left out: {error}")
        finally:
            for group in groups:
                group.part()
    if not found:  # what does not fit is told by the load
        return Opened(opened.devices, notes)
    best = best_of(found)
    return _taken(Opened(opened.devices, (*notes, said(best, found))), best.devices, measure)


def _further(members: Sequence[Device], count: int) -> list[Sequence[Device]]:
    """The members of further groups of so many, behind the first one."""
    return [members[i : i + count] for i in range(count, len(members) - count + 1, count)]


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
    if sizes.on(placed)[group.name] > free_bytes(group, wanted) - driver_bytes(group):
        return []
    predicted = predict(placed, sizes, {group.name: measure(group)})
    count = len(group.members)
    return [SplitCandidate(f"tensor on {count}", (group,), predicted, count)]


def _by_pipeline(
    gguf: GGUF,
    devices: Sequence[Device],
    groups: Sequence[GroupDevice],
    options: Options,
    wanted: PlacementOptions,
    measure: Measure,
) -> list[SplitCandidate]:
    """Whole layers on groups of as many members each, and on the devices that are in none."""
    members = {d.name: d for group in groups for d in group.members}
    stages = (*groups, *(d for d in devices if d.name not in members))
    alike = _one_kind(tuple(members.values()))

    def speed(device: Device) -> Speed:
        return measure(groups[0] if alike and isinstance(device, GroupDevice) else device)

    names = tuple(d.name for d in stages if apart(d) or d.name in wanted.devices)
    named = replace(wanted, devices=names) if wanted.devices else wanted
    settled, _ = settle_step(gguf, stages, options, named, speed)
    used = _used(settled)
    kept = tuple(d for d in stages if d.name in used or not apart(d))
    parts = [d for d in kept if d.name in used]
    tensor = sum(isinstance(d, GroupDevice) for d in parts)
    if not tensor:
        return []
    name = f"{f'{tensor} times ' * (tensor > 1)}tensor on {len(groups[0].members)}"
    name = " and ".join([name, *(d.name for d in parts if not isinstance(d, GroupDevice))])
    count = sum(len(members_of(d)) for d in kept if apart(d))
    return [SplitCandidate(name, kept, settled.predicted(stages, speed), count)]


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


def _only(opened: Opened, devices: Sequence[Device]) -> Opened:
    """These of the opened devices, or groups of some; the others are closed."""
    used_of(opened.devices, {member.name for device in devices for member in members_of(device)})
    notes = (note for d in devices if isinstance(d, GroupDevice) for note in d.notes)
    return Opened(tuple(devices), (*opened.notes, *notes))


def _taken(opened: Opened, devices: Sequence[Device], measure: Measure) -> Opened:
    """The devices of a candidate, whose groups are joined again."""
    again = (_joined(d.members, measure) if isinstance(d, GroupDevice) else d for d in devices)
    return _only(opened, tuple(again))
