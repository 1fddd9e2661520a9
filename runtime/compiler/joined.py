"""Plans of a group's members as one plan, whose segments each have a segment for every member.

The step block, the outputs and the collectives are the same for all members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from satchel.runtime.compiler.verify import PlanError
from satchel.runtime.ops.op import OPS
from satchel.runtime.plan import Plan, Segment


def joined(group: str, plans: Sequence[Plan]) -> Plan:
    """The plan of a group; raises PlanError where its members could not run in step."""
    first = plans[0]
    for rank, plan in enumerate(plans):
        for what in ("fields", "block_bytes"):
            if getattr(plan, what) != getattr(first, what):
                raise PlanError(f"{group}: member {rank} has another step block than the first")
        places = [(o.buffer, o.offset, o.type) for o in plan.outputs]
        if places != [(o.buffer, o.offset, o.type) for o in first.outputs]:
            raise PlanError(f"{group}: the outputs of member {rank} lie at {places}")
        if [_meetings(s) for s in plan.segments] != [_meetings(s) for s in first.segments]:
            raise PlanError(f"{group}: member {rank} meets the others elsewhere than the first")
    segments = tuple(
        replace(members[0], device=group, members=members)
        for members in zip(*(plan.segments for plan in plans), strict=True)
    )
    consts = {device: image for plan in plans for device, image in plan.consts.items()}
    moved = tuple(note for plan in plans for note in plan.moved)
    return replace(first, segments=segments, consts=consts, moved=moved)


def _meetings(segment: Segment) -> list[tuple[str, str, str]]:
    """The collectives of a segment, in order."""
    steps = (step for step in segment.steps if OPS[step.op].collective)
    return [(step.label, step.op, step.out) for step in steps]
