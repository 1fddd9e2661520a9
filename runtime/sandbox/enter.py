"""Enters the sandbox from inside: enter() at the start of the process, close() after the model is loaded.

Invariant: what enter() and close() have taken away does not come back while the process lives.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satchel.runtime.sandbox import landlock, seccomp
from satchel.runtime.sandbox.calls import machine

PR_SET_NO_NEW_PRIVS = 38
OPEN_FILES = 512  # descriptors beside the policy's files: GPUs, pipes, modules during import
OWN = "/proc/self"
NOT_LINUX = "{} has neither Landlock nor seccomp"
NO_LANDLOCK = "files are not limited: Landlock is missing or off ({}; it needs Linux 5.13)"
NO_FILTER = "system calls are not limited: the kernel takes no seccomp filter ({})"
NO_TABLE = "system calls are not limited: there is no filter for {}"


@dataclass(slots=True)
class Sandbox:
    """The limits that hold in this process."""

    files: int = 0  # Landlock's version; 0: none
    calls: bool = False  # the seccomp filter is installed
    missing: tuple[str, ...] = ()  # what the system lacks, a clause each

    @property
    def text(self) -> str:
        """The limits in one line."""
        held = [f"Landlock {self.files}"] * bool(self.files) + ["seccomp"] * self.calls
        return ", ".join(held) or "none"

    @property
    def note(self) -> str:
        """A warning for the user; "" if the sandbox is complete."""
        if not self.missing:
            return ""
        whole = "only a part of the engine's sandbox holds" if self.files or self.calls else "no sandbox"
        return f"{whole}: {'; '.join(self.missing)} (docs/server.md, --no-sandbox silences this)"


_entered: Sandbox | None = None
_devices = False
_pinned: list[int] = []


def enter(policy: Mapping[str, Any] | None) -> None:
    """Limits the process to the files of a policy (see policy.py). None: no sandbox. The process must have
    one thread.
    """
    global _entered, _devices
    if policy is None:
        return
    _entered = Sandbox()
    if sys.platform != "linux":
        _lack(NOT_LINUX.format(sys.platform))
        return
    import resource

    _devices = bool(policy["devices"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = OPEN_FILES + len(policy["read"])
    most = most if files == resource.RLIM_INFINITY else min(files, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        _lack("the kernel keeps no process from new privileges (Linux 3.5)")
        return
    _limit_files(policy)


def _limit_files(policy: Mapping[str, Any]) -> None:
    if _entered is None:
        return
    threads = len(os.listdir(f"{OWN}/task"))  # noqa: PTH208 - the list, and no module for it
    if threads > 1:
        _lack(f"a start-up hook of Python's began {threads - 1} threads, which Landlock does not reach")
    # Landlock's rules refer to inodes, which /proc may drop unless they are held open.
    _pinned.extend(os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (OWN, f"{OWN}/task"))
    written = [*policy["keep"], *_compile_kernels()]
    if scratch := policy.get("scratch"):
        os.environ["TMPDIR"] = scratch
        written.append(scratch)
    grants = (
        (landlock.READ, [*policy["read"], OWN]),
        (landlock.DEVICE, policy["devices"]),
        (landlock.WRITE_FILE | landlock.READ_FILE, ["/dev/null"]),
        # NVIDIA's driver writes its threads' names there, and fails without.
        (landlock.READ | landlock.WRITE_FILE | landlock.TRUNCATE, [f"{OWN}/task"] * _devices),
        (landlock.KEEP, written),
    )
    try:
        _entered.files = landlock.restrict(grants, policy.get("ports", ()))
    except OSError as error:
        _lack(NO_LANDLOCK.format(_reason(error)))


def _compile_kernels() -> Sequence[str]:
    """Compiles the C kernels that a start-up hook has registered, because no compiler can start later; gives
    their folder.
    """
    registry = sys.modules.get("satchel.runtime.kernels.registry")
    if registry is None or not registry.registered():
        return ()
    from satchel.runtime.kernels.image import compile_ahead

    return compile_ahead(registry.registered())


def close(written: int = 0) -> Sandbox | None:
    """Limits the system calls of all threads; gives the limits that hold, or None without a sandbox. written:
    largest size of a file that the process writes, unless a GPU driver writes its own.
    """
    if _entered is None or sys.platform != "linux":
        return _entered
    if written and not _devices:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (written, written))
    if not machine():
        _lack(NO_TABLE.format(os.uname().machine))
        return _entered
    try:
        seccomp.install(seccomp.program(devices=_devices, files=bool(_entered.files)))
        _entered.calls = True
    except OSError as error:
        _lack(NO_FILTER.format(_reason(error)))
    return _entered


def lacking() -> str:
    """The note of a sandbox on this system, as far as it can be told from outside of one; "" if it would be
    complete.
    """
    found = Sandbox(files=1, calls=True)
    if sys.platform != "linux":
        found = Sandbox(missing=(NOT_LINUX.format(sys.platform),))
    else:
        try:
            landlock.version()
        except OSError as error:
            found.files, found.missing = 0, (NO_LANDLOCK.format(_reason(error)),)
        if not machine():
            found.calls, found.missing = False, (*found.missing, NO_TABLE.format(os.uname().machine))
        else:
            try:
                seccomp.check()
            except OSError as error:
                found.calls, found.missing = False, (*found.missing, NO_FILTER.format(_reason(error)))
    return found.note


def _lack(what: str) -> None:
    if _entered is None:
        return
    _entered.missing = (*_entered.missing, what)


def _reason(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))
