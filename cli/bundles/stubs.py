"""Programs without a model, by target: where they are found, and what can be told of one from its bytes.

They come in a package of their own, satchel_stubs, a folder for each target. A checkout builds this machine's
with libsatchel.
"""

from __future__ import annotations

import importlib.util
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError
from satchel.runtime.aot.records import HAL_HASH

PACKAGE = "satchel_stubs"
PROGRAM = "satchel-program"
TARGETS = (
    "x86_64-linux",
    "aarch64-linux",
    "x86_64-windows",
    "aarch64-windows",
    "x86_64-macos",
    "aarch64-macos",
)
MARK = b"SATCHEL PROGRAM\0"  # in each program, before its HAL_ABI_HASH (cext/program/main.c)
MACHINES = {62: "x86_64", 183: "aarch64"}  # of ELF
PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
MACHO_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}


@dataclass(frozen=True)
class Stub:
    """A program without a model. target: its processor and system."""

    data: bytes
    target: str

    @property
    def system(self) -> str:
        return self.target.partition("-")[2]


def here() -> str:
    """The target of this machine."""
    machine, system = platform.machine().lower(), platform.system().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return f"{machine}-{'macos' if system == 'darwin' else system}"


def find_stub(target: str, given: Path | None) -> Stub:
    """The program for a target, from the package, or the one that is given. RequestError where there is
    none, or where it is no program of this version.
    """
    path = given or _packaged(target)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"--stub {path}: can't be read: {error.strerror}") from None
    found, at = target_of(data), data.find(MARK)
    if not found or at < 0:
        raise RequestError(
            f"{path}: expected a program for `satchel bundle`, got another file: give the {PROGRAM} that is "
            "installed with libsatchel, see docs/apps.md"
        )
    (version,) = struct.unpack_from("<Q", data, at + len(MARK))
    if version != HAL_HASH:
        raise RequestError(f"{path}: is of another version of Satchel: take the one of this version")
    return Stub(data, found)


def _packaged(target: str) -> Path:
    if target not in TARGETS:
        raise RequestError(f"--target: expected one of {', '.join(TARGETS)}, got {target}")
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        for suffix in ("", ".exe"):
            if (path := Path(place) / target / f"{PROGRAM}{suffix}").is_file():
                return path
    raise RequestError(
        f"--target {target}: its program is not installed: pip install 'satchel[bundle]', or name the "
        f"{PROGRAM} of an installed libsatchel by --stub"
    )


def target_of(data: bytes) -> str:
    """Processor and system of a program; empty for anything else."""
    if data[:6] == b"\x7fELF\x02\x01" and len(data) > 64:
        return _named(MACHINES, struct.unpack_from("<H", data, 18)[0], "linux")
    if data[:4] == b"\xcf\xfa\xed\xfe" and len(data) > 32:
        return _named(MACHO_MACHINES, struct.unpack_from("<I", data, 4)[0], "macos")
    if data[:2] == b"MZ" and len(data) > 64:
        (at,) = struct.unpack_from("<I", data, 60)
        if data[at : at + 4] == b"PE\0\0" and len(data) >= at + 176:
            return _named(PE_MACHINES, struct.unpack_from("<H", data, at + 4)[0], "windows")
    return ""


def _named(machines: dict[int, str], number: int, system: str) -> str:
    return f"{machines[number]}-{system}" if number in machines else ""
