"""Energy that devices have taken, in joules, where the machine counts it: NVML's counter of a GPU, RAPL's of
a processor's packages. A library is opened at the first call, a file is read as it stands; where neither can
be had, the reason is told, never a guess.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NVML, POWERCAP = "libnvidia-ml.so.1", Path("/sys/class/powercap")
MEASURED = (
    "package",
    "dram",
)  # zones of RAPL that add up; psys holds others, core and uncore lie within package


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts upwards in joules. read(): now; wraps: where it begins again at 0, 0: never."""

    name: str
    read: Callable[[], float]
    wraps: float = 0.0

    def since(self, before: float) -> float:
        """Joules since it stood so, if that was less than one round ago."""
        taken = self.read() - before
        return taken + self.wraps if taken < 0 else taken


@dataclass(frozen=True, slots=True)
class Counters:
    """What can be read, and why something can not."""

    counters: tuple[Counter, ...] = ()
    reasons: tuple[str, ...] = ()

    def read(self) -> tuple[float, ...]:
        return tuple(c.read() for c in self.counters)

    def since(self, before: Sequence[float]) -> float:
        """Joules of all of them since read() gave `before`."""
        return sum(c.since(b) for c, b in zip(self.counters, before, strict=True))


def counters_of(devices: Iterable[str], library: str = NVML, folder: Path = POWERCAP) -> Counters:
    """Counters of these devices, by their names ("cuda:1", "cpu"), and of the processor beside GPUs."""
    found: list[Counter] = []
    reasons: list[str] = []
    indices = [int(d.partition(":")[2] or 0) for d in devices if d.partition(":")[0] == "cuda"]
    if indices:
        _add(found, reasons, lambda: _gpus(indices, library))
    _add(found, reasons, lambda: _packages(folder))
    return Counters(tuple(found), tuple(reasons))


def _add(found: list[Counter], reasons: list[str], find: Callable[[], list[Counter]]) -> None:
    try:
        found += find()
    except OSError as error:
        reasons.append(str(error))


def _packages(folder: Path) -> list[Counter]:
    """RAPL's zones. OSError where there is none that may be read."""
    zones = {
        z: (z / "name").read_text().strip() for z in sorted(folder.glob("*rapl*")) if (z / "name").is_file()
    }
    wanted = {
        z: name for z, name in zones.items() if name.startswith(MEASURED) and (z / "energy_uj").exists()
    }
    if not wanted:
        raise OSError(f"RAPL: {folder} has no zone of a processor")
    return [_package(zone, name) for zone, name in wanted.items()]


def _package(zone: Path, name: str) -> Counter:
    path, limit = zone / "energy_uj", zone / "max_energy_range_uj"

    def read() -> float:
        return int(path.read_text()) / 1e6

    try:
        read()
        return Counter(name, read, int(limit.read_text()) / 1e6 if limit.exists() else 0.0)
    except PermissionError:
        raise OSError(f"RAPL: {path} may not be read: run as root, or let its group read it") from None
    except ValueError:
        raise OSError(f"RAPL: {path} or {limit.name} holds no number") from None


def _gpus(indices: Sequence[int], library: str) -> list[Counter]:
    """NVML's counters of CUDA's devices. OSError where the library or a counter is missing."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        raise OSError(f"NVML: {library} cannot be opened: it comes with NVIDIA's driver") from None
    _call(nvml, "nvmlInit_v2", "cannot be started")
    return [_gpu(nvml, index, os.environ) for index in indices]


def _gpu(nvml: ctypes.CDLL, index: int, environment: Mapping[str, str]) -> Counter:
    handle = ctypes.c_void_p()
    named = _name(index, environment)
    if named.isdigit():
        _call(
            nvml,
            "nvmlDeviceGetHandleByIndex_v2",
            f"has no device {named}",
            ctypes.c_uint(int(named)),
            ctypes.byref(handle),
        )
    else:
        _call(
            nvml, "nvmlDeviceGetHandleByUUID", f"has no device {named}", named.encode(), ctypes.byref(handle)
        )
    used = ctypes.c_ulonglong()

    def read() -> float:
        """NVML counts in millijoules."""
        _call(nvml, "nvmlDeviceGetTotalEnergyConsumption", "counts no energy", handle, ctypes.byref(used))
        return used.value / 1e3

    read()
    return Counter(f"cuda:{index}", read)


def _name(index: int, environment: Mapping[str, str]) -> str:
    """What NVML knows a CUDA device by: CUDA numbers those that its variable lets it see."""
    seen = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return seen[index] if index < len(seen) else str(index)


def _call(nvml: ctypes.CDLL, function: str, what: str, *arguments: object) -> None:
    found = getattr(nvml, function, None)
    code = found(*arguments) if found is not None else None
    if code != 0:
        raise OSError(f"NVML: it {what}: {'no ' + function if code is None else f'error {code}'}")
