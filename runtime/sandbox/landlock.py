"""Landlock: Linux's file access control that a process sets for itself. What is not granted cannot be opened.

Limits apply to the calling thread and to threads that it starts, so they are set while it is the only one.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable, Mapping

from satchel.runtime.sandbox.calls import LANDLOCK, call

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_REG, MAKE_DIR = 1 << 4, 1 << 5, 1 << 8, 1 << 7
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
DEVICE = READ | WRITE_FILE | IOCTL_DEV
KEEP = READ | WRITE_FILE | MAKE_REG | MAKE_DIR | REMOVE_FILE | REMOVE_DIR | TRUNCATE
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # rights that apply to files
# By the interface version that introduced them: the bit above the highest right.
RIGHTS = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 5: 1 << 16}
NETWORK, SCOPES = 3, 3  # TCP's bind and connect (4); abstract Unix sockets and signals of others (6)
VERSION = 1  # flag: tells the version
PATH, PORT = 1, 2  # types of rules
CONNECT = 2  # right of a port


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("rights", ctypes.c_uint64), ("port", ctypes.c_uint64))


def version() -> int:
    """The interface version of the kernel. Raises OSError if Landlock is missing or off."""
    return call(LANDLOCK[0], None, 0, VERSION)


def restrict(grants: Iterable[tuple[int, Iterable[str]]], ports: Iterable[int] = ()) -> int:
    """Limits this thread to these rights on these files, and on everything below these folders. Missing paths
    are skipped. ports: those of other hosts that it may connect to. Gives the interface version; raises
    OSError if the kernel refuses.
    """
    known = version()
    handled = max(top for since, top in RIGHTS.items() if since <= known) - 1
    rules = _Ruleset(handled, NETWORK if known >= 4 else 0, SCOPES if known >= 6 else 0)
    ruleset = call(LANDLOCK[0], ctypes.byref(rules), ctypes.sizeof(rules), 0)
    try:
        for path, rights in _merged(grants).items():
            _grant(ruleset, path, rights & handled)
        for port in ports if rules.network else ():
            call(LANDLOCK[1], ruleset, PORT, ctypes.byref(_Port(CONNECT, port)), 0)
        call(LANDLOCK[2], ruleset, 0)
    finally:
        os.close(ruleset)
    return known


def _merged(grants: Iterable[tuple[int, Iterable[str]]]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for rights, paths in grants:
        for path in paths:
            found[path] = found.get(path, 0) | rights
    return found


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= OF_FILES
        if rights:
            rule = _Beneath(rights, handle)
            call(LANDLOCK[1], ruleset, PATH, ctypes.byref(rule), 0)
    finally:
        os.close(handle)
