"""What this machine and this Satchel are, for reports that a person sends to others: no name of a user or of
the machine, and no path of a file of theirs but Python's in doctor's own lines.
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from satchel.runtime.device.processors import cores

MISSING = "missing"


def version(package: str) -> str:
    """The installed version; MISSING where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def memory() -> tuple[int, int]:
    """(total, available) memory in bytes on Linux; zeros elsewhere."""
    rows = proc("meminfo")
    total, free = (int(rows.get(name, "0").split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    return total, free


def processor() -> str:
    """The processor's name, and how many of its cores this process may use."""
    name, count = proc("cpuinfo").get("model name", platform.machine()), cores()
    return f"{name}, {count} core{'s' if count > 1 else ''} for this process"


def system() -> str:
    """The operating system, its release, and the instruction set."""
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def proc(name: str) -> dict[str, str]:
    """A file of /proc as a mapping; empty without /proc."""
    path = Path("/proc", name)
    pairs = (line.partition(":") for line in path.read_text().splitlines()) if path.exists() else ()
    return {key.strip(): value.strip() for key, _, value in pairs}
