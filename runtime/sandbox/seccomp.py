"""A seccomp filter as a BPF program, and its installation in all threads of the process.

The program checks the architecture first, then the number of the call. It sees argument values, never the
memory behind a pointer, so paths are left to Landlock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from satchel.runtime.sandbox.calls import (
    ALLOWED,
    ARCHITECTURES,
    JUDGED,
    REFUSED,
    REMOVING,
    call,
    machine,
    numbers,
)

LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
SET_FILTER, HAS_ACTION, ALL_THREADS = 1, 2, 1
X32 = 0x40000000  # numbers from here on are x86-64's x32 interface

O_WRITE, O_TMPFILE = 0o3, 0o20000000  # O_WRONLY | O_RDWR; a file without a name
O_MAKE = 0o100 | 0o1000 | O_TMPFILE  # O_CREAT | O_TRUNC
CLONE_THREAD = 0x100 | 0x10000  # CLONE_VM | CLONE_THREAD: a thread of this process
CLONE_SPACES = 0x7E020000 | 0x80  # CLONE_NEW*: namespaces of its own
TERMINAL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO*CLEX
TYPING = (0x5412, 0x541C, 0x540E, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCSETD: act on the terminal
OWNERS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: which process gets which signal
PRCTL = (1, 4, 22, 35, 0x59616D61)  # PR_SET_PDEATHSIG, _DUMPABLE, _SECCOMP, _MM, _PTRACER

Row = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def program(*, devices: bool, files: bool = False) -> bytes:
    """The filter of a loaded worker. devices: it has GPUs, whose drivers open devices for writing and control
    them. files: Landlock limits the files, so drivers may open theirs in any mode.
    """
    rows: list[Row] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine()]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (JUMP_FROM, 0, 1, X32),
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    refused = numbers(REFUSED) | ({} if files else numbers(REMOVING))
    for number in (numbers(ALLOWED) | (numbers(REMOVING) if files else {})).values():
        rows += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for name, number in numbers(JUDGED).items():
        judged = _judge(name, devices, files)
        rows += [(JUMP_EQUAL, 0, len(judged), number), *judged]
    for number in refused.values():
        rows += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    rows.append((RETURN, 0, 0, ERRNO | errno.ENOSYS))
    return b"".join(struct.pack("<HBBI", *row) for row in rows)


def answering(number: int, code: int) -> bytes:
    """A filter that fails one call with an error and allows all others: simulates a kernel without it, for
    tests.
    """
    rows: list[Row] = [(LOAD, 0, 0, NUMBER), (JUMP_EQUAL, 0, 1, number)]
    rows += [(RETURN, 0, 0, ERRNO | code), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("<HBBI", *row) for row in rows)


def _judge(name: str, devices: bool, files: bool) -> list[Row]:
    """Instructions that decide on one call; every path returns."""
    if name in ("open", "openat"):
        bits = (O_TMPFILE if files else O_MAKE) if devices else O_MAKE | O_WRITE
        return _without(1 if name == "open" else 2, bits)
    if name == "clone":
        mask = CLONE_THREAD | CLONE_SPACES
        return [_argument(0), (AND, 0, 0, mask), *_among((CLONE_THREAD,))]
    if name == "ioctl":
        return [_argument(1), *(_but(TYPING) if devices else _among(TERMINAL))]
    if name in ("fcntl", "prctl"):
        return [_argument(int(name == "fcntl")), *_but(OWNERS if name == "fcntl" else PRCTL)]
    if name in ("kill", "tgkill"):
        return [_argument(0), *_among((os.getpid(),))]
    if name == "prlimit64":
        return [_argument(0), *_among((0, os.getpid()))]
    return [_argument(int(name == "setpriority")), *_among((0,))]  # the calling thread only


def _argument(index: int) -> Row:
    """Loads the low half of an argument; the kernel reads the arguments checked here as int."""
    return LOAD, 0, 0, ARGUMENTS + 8 * index


def _without(index: int, bits: int) -> list[Row]:
    refuse = (RETURN, 0, 0, ERRNO | errno.EPERM)
    return [_argument(index), (JUMP_BITS, 0, 1, bits), refuse, (RETURN, 0, 0, ALLOW)]


def _among(values: Iterable[int]) -> list[Row]:
    rows = [row for v in values for row in ((JUMP_EQUAL, 0, 1, v), (RETURN, 0, 0, ALLOW))]
    return [*rows, (RETURN, 0, 0, ERRNO | errno.EPERM)]


def _but(values: Iterable[int]) -> list[Row]:
    rows = [row for v in values for row in ((JUMP_EQUAL, 0, 1, v), (RETURN, 0, 0, ERRNO | errno.EPERM))]
    return [*rows, (RETURN, 0, 0, ALLOW)]


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("rows", ctypes.c_char_p))


def check() -> None:
    """Raises OSError if the kernel has no seccomp filters."""
    call(numbers(REFUSED)["seccomp"], HAS_ACTION, 0, ctypes.byref(ctypes.c_uint32(ERRNO)))


def install(filter: bytes) -> None:
    """Installs a filter in all threads, irrevocably. The process must have set no_new_privs (see enter.py).
    Raises OSError if the kernel has no such filters, or a thread cannot take it.
    """
    given = _Program(len(filter) // 8, filter)
    stuck = call(numbers(REFUSED)["seccomp"], SET_FILTER, ALL_THREADS, ctypes.byref(given))
    if stuck:
        raise OSError(errno.EBUSY, f"thread {stuck} has another filter")
