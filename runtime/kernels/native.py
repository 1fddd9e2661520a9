"""Kernels in C to a shared object, by the system's compiler, for devices that are this CPU."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from satchel.errors import DeviceError, RequestError
from satchel.runtime.children import find_program, run

FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-D_GNU_SOURCE", "-DPORT_OUTSIDE")
SECONDS = 120
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def compiled_folder() -> Path:
    """Folder of compiled kernels of this process; it is removed at exit."""
    made = tempfile.TemporaryDirectory(prefix="satchel-kernels-", ignore_cleanup_errors=True)
    _KEPT.append(made)
    return Path(made.name)


def compiler() -> list[str]:
    """The C compiler: CC, or cc. DeviceError where there is none."""
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if find_program(command[0]) is None:
        missing = f"a kernel in C needs a C compiler, and {command[0]!r} is not installed"
        raise DeviceError(f"{missing}: install gcc or set CC")
    return command


def compile_c(name: str, source: str, options: Sequence[str], include: Path) -> bytes:
    """The path of the shared object. RequestError with what the compiler said."""
    digest = hashlib.sha256("\0".join((source, *options)).encode()).hexdigest()[:16]
    text, made = compiled_folder() / f"{name}-{digest}.c", compiled_folder() / f"{name}-{digest}.so"
    if not made.exists():
        command = [*compiler(), *FLAGS, f"-I{include}", *options, "-o", str(made), str(text), "-lm"]
        try:
            text.write_text(source, encoding="utf-8")
            done = run(command, capture_output=True, text=True, timeout=SECONDS)
        except OSError as error:
            raise DeviceError(f"kernel {name}: {command[0]} cannot be started: {error.strerror}") from None
        if done.returncode:
            raise RequestError(f"kernel {name}: {command[0]} refused its source:\n{done.stderr.strip()}")
    return str(made).encode()
