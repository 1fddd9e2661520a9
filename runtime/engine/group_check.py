"""SATCHEL_GROUP_CHECK=1: after each step of a group, compares the whole values of its members, bit for bit,
and names the first op whose results differ. Plans then keep each whole value to the end of the step, in the
buffers KEPT, so steps are slow and take more memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from satchel.errors import DeviceError
from satchel.runtime.compiler.memory import KEPT
from satchel.runtime.device.device import Buffer
from satchel.runtime.graph import Array
from satchel.runtime.plan import Plan, Segment

NAME = "SATCHEL_GROUP_CHECK"


def checked() -> bool:
    """Whether groups are checked in this process."""
    return os.environ.get(NAME) == "1"


class KeptValue(NamedTuple):
    """Where a member keeps a step's result."""

    buffer: str
    offset: int
    stride: int  # bytes of a row
    rows: int  # unless counted gives them
    counted: int  # index into the step block's counts; -1: none


class GroupCheck:
    """The check of one plan."""

    def __init__(self, plan: Plan, buffers: Mapping[tuple[str, str], Buffer]) -> None:
        self._buffers = buffers
        self._segments = [(s.device, [(m.device, dict(_kept(m))) for m in s.members]) for s in plan.segments]

    def check(self, numbers: Iterable[int], counts: Array) -> None:
        """Raises DeviceError with the first op whose results differ between a group's members. numbers: of
        the segments that ran. counts: those of the step block.
        """
        for group, members in (self._segments[number] for number in numbers):
            images = {device: self._read(device, kept) for device, kept in members}
            (first, wanted), *others = members or (("", {}),)
            for key, value in wanted.items():
                size = value.stride * (value.rows if value.counted < 0 else int(counts[value.counted]))
                mine = images[first][value.buffer][value.offset : value.offset + size]
                for device, kept in others:
                    its = kept.get(key)
                    if its is not None and not np.array_equal(
                        mine, images[device][its.buffer][its.offset : its.offset + size]
                    ):
                        raise DeviceError(
                            f"{group}: {key[1]} of {key[0]} has other bits on {device} than on "
                            f"{first}; the values before it are the same"
                        )

    def _read(self, device: str, kept: Mapping[tuple[str, str, int], KeptValue]) -> dict[str, Array]:
        found = {}
        for name in {value.buffer for value in kept.values()}:
            buffer = self._buffers[device, name]
            found[name] = np.empty(buffer.size, np.uint8)
            buffer.read_into(0, found[name])
        return found


def _kept(segment: Segment) -> Iterator[tuple[tuple[str, str, int], KeptValue]]:
    """What a member keeps, by label, op and the number of such ops before it, in the order of steps."""
    seen: dict[tuple[str, str], int] = {}
    for step, row in zip(segment.steps, segment.step_table, strict=True):
        view = segment.view_table[row["view"]]
        name = segment.buffers[view["buffer"]].name
        at = (step.label, step.op)
        if name == KEPT:
            count = int(view["count"])
            yield (
                (*at, seen.get(at, 0)),
                KeptValue(name, int(view["offset"]), int(view["stride"]), int(view["shape"][0]), count),
            )
        seen[at] = seen.get(at, 0) + 1
