"""A group of devices as one device (tensor parallelism): each member has its part of the weights and of the
states and runs a plan of its own; they meet at the plans' collectives. A step of the group is one C call.

Memory belongs to the members. The group has execs, and ends before its members do.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from satchel import cext
from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.device import (
    LOST,
    Buffer,
    Device,
    Exec,
    Info,
    KernelOverride,
    error_text,
    no_overrides,
    plan_struct,
)
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.device.nccl import nccl_library
from satchel.runtime.plan import Segment

TIMEOUT = 10_000  # milliseconds that a member waits for the others at a collective
TIMEOUT_NAME = "SATCHEL_GROUP_TIMEOUT_MS"
NO_PEER_NAME = "SATCHEL_GROUP_NO_PEER"  # 1: members meet in host memory
NO_PEER, EXACT = 1, 2  # flags of hal_group_options
LINKS = ("host", "PCIe", "NVLink")  # by HAL_LINK_


class GroupInfo(NamedTuple):
    """A group, and what it did so far."""

    meetings: int  # collectives
    waited: tuple[float, ...]  # seconds that each member waited for others
    missing: str  # the member for which the group broke; "": it is whole
    link: str = LINKS[0]  # how the slowest pair of members reaches each other's memory
    unread: int = 0  # pairs that claim direct access and did not read back what was written
    library: str = ""  # the vendor's library of collectives in use


class GroupDevice(Device):
    """Open devices of one backend as one device. It owns them. Memory is made on the members."""

    def __init__(self, members: Sequence[Device], shares: Sequence[float] = ()) -> None:
        """shares: how much of the model each member gets; (): as much as the others."""
        self.members, self.shares = tuple(members), tuple(shares)
        self.backend = members[0].backend
        self.name = "+".join(member.name for member in members)
        self.profiled = any(member.profiled for member in members)
        self.deterministic = any(member.deterministic for member in members)
        if any(member.backend.path != self.backend.path for member in members):
            raise RequestError(f"device {self.name}: the members of a group are devices of one backend")
        table = self.backend.table
        if not table.join:
            raise DeviceError(
                f"device {self.name}: {self.backend.name} has no groups of devices (tensor parallelism): "
                "give whole layers to each, -sm layer"
            )
        self.overrides_of = no_overrides(self)
        self._execs: weakref.WeakSet[GroupExec] = weakref.WeakSet()
        handles = cext.ffi.new("hal_device *[]", [member.handle for member in members])
        asked = self._options()
        out = cext.ffi.new("hal_group **")
        self.backend.check(table.join(handles, len(members), asked, out), f"{self.name} cannot be joined")
        self.handle: Any = out[0]

    def _options(self) -> Any:
        """The hal_group_options; it keeps the library's path alive."""
        found = nccl_library()
        self._library = cext.ffi.new("char[]", os.fsencode(found)) if found is not None else cext.ffi.NULL
        asked = cext.ffi.new("hal_group_options *")
        asked.timeout_ms = int(os.environ.get(TIMEOUT_NAME, TIMEOUT))
        asked.flags = NO_PEER * (os.environ.get(NO_PEER_NAME) == "1") | EXACT * self.deterministic
        asked.library = self._library
        return asked

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the group."""
        unread, n = self.group_info().unread, len(self.members)
        if not unread:
            return ()
        lies = f"in {unread} of {n * (n - 1)} pairs of members, what one wrote to the other did not read back"
        return (f"{self.name}: {lies}: they meet in host memory, which is slower",)

    def check(self, code: int, what: str) -> None:
        """Raises DeviceError for a code other than 0; DeviceLost, of the member that is missing, if the group
        broke.
        """
        if code == LOST:
            missing = self.group_info().missing or self.name
            raise DeviceLost(missing, f"{what}: {self.name}: {error_text(self.backend.table)}")
        self.backend.check(code, f"{self.name}: {what}")

    def group_info(self) -> GroupInfo:
        raw = cext.ffi.new("hal_group_info *")
        self.backend.table.group_info(self.handle, raw)
        missing = self.members[raw.missing].name if raw.missing >= 0 else ""
        library = cext.ffi.string(raw.library).decode(errors="replace")
        waited = tuple(raw.waited[0 : len(self.members)])
        return GroupInfo(int(raw.meetings), waited, missing, LINKS[raw.link], int(raw.unread), library)

    def info(self) -> Info:
        """The first member's, with the memory of all, of which each can use as much as the smallest has."""
        found, count = [member.info() for member in self.members], len(self.members)
        return found[0]._replace(
            memory_total=count * min(info.memory_total for info in found),
            memory_free=count * min(info.memory_free for info in found),
            allocations=sum(info.allocations for info in found),
        )

    @property
    def can_wrap(self) -> bool:
        """A piece of a tensor by columns lies in no one stretch of the file."""
        return False

    @property
    def has_choices(self) -> bool:
        return False

    def measure(self, what: str, size: int = 0) -> float | None:
        """The sum over the members, one after another."""
        found = [member.measure(what, size) for member in self.members]
        known = [rate for rate in found if rate is not None]
        return sum(known) if len(known) == len(found) else None

    @property
    def measures(self) -> bool:
        return all(member.measures for member in self.members)

    def alloc(self, size: int, usage: int) -> Buffer:
        raise self._members_alone("memory is allocated")

    def wrap(self, memory: Any) -> Buffer:
        raise self._members_alone("memory is wrapped")

    def add_kernel(self, image: bytes, entry: str) -> int:
        raise self._members_alone("kernels are loaded")

    def refusal(self, segment: Segment) -> str:
        return self.members[0].refusal(segment)

    def compile(
        self, segment: Segment, buffers: Sequence[Buffer], overrides: Sequence[KernelOverride] | None = None
    ) -> Exec:
        raise self._members_alone("a plan of one device is compiled")

    def _members_alone(self, what: str) -> DeviceError:
        return DeviceError(f"{self.name}: {what} on the members of a group, one by one")

    def packed(self, format: int, stack: int, rows: int, columns: int) -> int:
        """As of a member, for a whole weight: the passes ask members about their pieces."""
        return self.members[0].packed(format, stack, rows, columns)

    def compile_group(self, segments: Sequence[Segment], buffers: Sequence[Sequence[Buffer]]) -> GroupExec:
        """One segment and its buffers for each member. None is made where one is refused."""
        made = []
        for segment, member in zip(segments, self.members, strict=True):
            step = next(i for i, b in enumerate(segment.buffers) if b.name == "step")
            made.append(plan_struct(segment, step, member.overrides_of(segment)))
        plans = cext.ffi.new("hal_plan *[]", [plan for plan, _ in made])
        lists = [cext.ffi.new("hal_buffer *[]", [b.handle for b in own]) for own in buffers]
        each = cext.ffi.new("hal_buffer **[]", lists)
        out = cext.ffi.new("hal_exec *[]", len(self.members))
        code = self.backend.table.compile_group(self.handle, plans, each, out)
        self.check(code, "the plan was refused")
        every = tuple(b for own in buffers for b in own)
        found = GroupExec(self, out, every, len(segments[0].steps))
        self._execs.add(found)
        return found

    def part(self) -> None:
        """Ends the group; its members go on as devices of their own."""
        if self.handle is None:
            return
        for exec in list(self._execs):
            exec.close()
        self.backend.table.part(self.handle)
        self.handle = None

    def close(self) -> None:
        self.part()
        for member in self.members:
            member.close()


class GroupExec:
    """A segment ready to run on all members. It keeps their buffers alive."""

    def __init__(self, group: GroupDevice, handles: Any, buffers: tuple[Buffer, ...], n_steps: int) -> None:
        self.device, self.handles, self.buffers, self.n_steps = group, handles, buffers, n_steps
        self._run = group.backend.table.run_group

    def run(self, block: Any, size: int) -> None:
        """block: the step block as a cffi pointer. Each member begins; none does if one cannot."""
        code = self._run(self.device.handle, self.handles, block, size)
        if code:
            self.device.check(code, "a step failed")

    def wait(self, timeout_ms: int = 0xFFFFFFFF) -> None:
        for handle in self.handles:
            self.device.check(self.device.backend.table.wait(handle, timeout_ms), "waiting for a step")

    def times(self) -> list[int]:
        """Nanoseconds of each of the first member's steps since compile_group(), as Exec.times(). Those of
        collectives contain the waits for other members.
        """
        table = self.device.backend.table
        if not (table.times and self.device.profiled):
            reason = "open it with profile" if table.times else "it cannot"
            raise DeviceError(f"{self.device.name} does not count the time of steps: {reason}")
        out = cext.ffi.new("uint64_t[]", self.n_steps)
        self.device.check(table.times(self.handles[0], out, self.n_steps), "times of the steps")
        return list(out)

    def close(self) -> None:
        if self.handles is not None:
            for handle in self.handles:
                self.device.backend.table.release(handle)
            self.handles, self.buffers = None, ()


def members_of(device: Device) -> tuple[Device, ...]:
    """The members of a group; a device that is none by itself."""
    return device.members if isinstance(device, GroupDevice) else (device,)
