"""Plans of ranks as one plan: where the first rank has a segment on a group's member, the plan has one on the
group, with the segment of every member; a segment on another device is in it once.

The step block, the outputs and the collectives are the same for all ranks. What crosses to a group comes from
where the first rank has it, to every member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from satchel.runtime.compiler.verify import PlanError
from satchel.runtime.ops.op import OPS
from satchel.runtime.plan import DeviceTransfer, Plan, Segment


def joined(groups: Mapping[str, tuple[str, ...]], plans: Sequence[Plan]) -> Plan:
    """The plan of groups, whose members' names are given; raises PlanError where ranks could not run in
    step.
    """
    first = plans[0]
    about = " and ".join(groups)
    for rank, plan in enumerate(plans):
        for what in ("fields", "block_bytes"):
            if getattr(plan, what) != getattr(first, what):
                raise PlanError(f"{about}: member {rank} has another step block than the first")
        if len(plan.segments) != len(first.segments):
            raise PlanError(f"{about}: member {rank} has {len(plan.segments)} segments")
    stage = {member: name for name, members in groups.items() for member in members}
    _check_outputs(groups, stage, plans)
    segments = []
    for each in zip(*(plan.segments for plan in plans), strict=True):
        name = stage.get(each[0].device, "")
        segments.append(_on_group(name, groups[name], each) if name else each[0])
    # A device that several ranks have is the lowest one's.
    consts = {device: image for plan in reversed(plans) for device, image in plan.consts.items()}
    moved = tuple(dict.fromkeys(note for plan in plans for note in plan.moved))
    return replace(first, segments=tuple(segments), consts=consts, moved=moved)


def _on_group(group: str, names: Sequence[str], ranks: Sequence[Segment]) -> Segment:
    """The segments of ranks on the members of a group. Ranks beyond them have one of these members again."""
    members = tuple(ranks[: len(names)])
    for name, member in zip(names, members, strict=True):
        if member.device != name:
            raise PlanError(f"{group}: {name} has no part of a segment, {member.device} has one")
        if _meetings(member) != _meetings(members[0]):
            raise PlanError(f"{group}: {name} meets the others elsewhere than the first")
        if _arrivals(member) != _arrivals(members[0]):
            raise PlanError(f"{group}: other values come to {name} than to the first")
    transfers = tuple(map(_to_all, zip(*(member.transfers for member in members), strict=True)))
    return replace(members[0], device=group, transfers=transfers, members=members)


def _to_all(transfers: Sequence[DeviceTransfer]) -> DeviceTransfer:
    """The copy of a value to all members."""
    return replace(transfers[0], also=tuple((t.target, t.target_at) for t in transfers[1:]))


def _check_outputs(
    groups: Mapping[str, tuple[str, ...]], stage: Mapping[str, str], plans: Sequence[Plan]
) -> None:
    """The host reads an output of the first member, and may write it on each, at the same place."""
    for number, output in enumerate(plans[0].outputs):
        name = stage.get(output.device, "")
        for rank in range(len(groups[name]) if name else 0):
            other = plans[rank].outputs[number]
            place = (other.buffer, other.offset, other.type)
            if place != (output.buffer, output.offset, output.type):
                raise PlanError(f"{name}: an output of member {rank} lies at {place}")


def _meetings(segment: Segment) -> list[tuple[str, str, str]]:
    """The collectives of a segment, in order."""
    steps = (step for step in segment.steps if OPS[step.op].collective)
    return [(step.label, step.op, step.out) for step in steps]


def _arrivals(segment: Segment) -> list[tuple[int, int, int, int]]:
    """What crosses before a segment, as far as it is the same for all members."""
    return [(t.stride, t.rows, t.count, t.before) for t in segment.transfers]
