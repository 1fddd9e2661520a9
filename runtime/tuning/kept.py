"""The file that remembers tuning: a JSON object by device, which may hold anything and is checked when read.

A device is its name, its variant, its driver and the very library that serves it: where one of these changes,
nothing is used any more. SATCHEL_TUNING names another file; where it is empty, none is read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from satchel.errors import RequestError
from satchel.formats.gguf.atomic import replace_files, write_all
from satchel.runtime.device.device import Device

MOST = 1 << 22  # bytes of a file that is read
NAME = re.compile(r"[\w+]+(@[0-9]{1,3})?")
NVIDIA, MAPS = Path("/proc/driver/nvidia/version"), Path("/proc/self/maps")
LIBRARIES = {  # of a driver, that an open device has in this process
    "hip": ("libamdhip64", "libhsa-runtime64"),
    "sycl": ("libsycl", "libur_adapter", "libze_intel_gpu", "libigdrcl", "libintelocl"),
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was measured of a class of steps: the fastest kernel, the one that the device takes by itself, and
    microseconds of a step with each.
    """

    kernel: str
    own: str
    us: float
    own_us: float

    @property
    def changes(self) -> bool:
        return self.kernel != self.own


@dataclass(frozen=True, slots=True)
class DeviceTuning:
    """All that is remembered of a device. day: when it was last added to, as YYYY-MM-DD."""

    device: str
    day: str
    steps: Mapping[str, Tuned]

    @property
    def name(self) -> str:
        """A hash of the tuned kernels: determinism is promised for one hash."""
        chosen = sorted((k, t.kernel) for k, t in self.steps.items() if t.changes)
        return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:8] if chosen else "none"


def place() -> Path | None:
    """The file; None where nothing is to be remembered."""
    given = os.environ.get("SATCHEL_TUNING")
    if given is not None:
        return Path(given) if given else None
    from platformdirs import user_cache_path

    return user_cache_path("satchel") / "tuning.json"


def device_key(device: Device) -> str:
    """Names a device with its driver and library."""
    info = device.info()
    path = Path(device.backend.path)
    library = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    about = [device.backend.name, info.name, info.variant, driver_of(device.backend.name), library]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]


def driver_of(backend: str) -> str:
    """Tells one driver from another: NVIDIA's by its own words, others' by their libraries' files."""
    if backend == "cuda":
        return NVIDIA.read_text(encoding="utf-8") if NVIDIA.is_file() else ""
    names = LIBRARIES.get(backend, ())
    if not names or not MAPS.is_file():
        return ""
    mapped = {line.split(maxsplit=5)[5] for line in MAPS.read_text().splitlines() if "/" in line}
    files = sorted(path for path in mapped if Path(path).name.startswith(names) and Path(path).is_file())
    return " ".join(f"{path}:{(s := Path(path).stat()).st_size}:{s.st_mtime_ns}" for path in files)


def read() -> dict[str, DeviceTuning]:
    """What is remembered, by device. RequestError where the file is not what remember() writes."""
    path = place()
    if path is None or not path.is_file():
        return {}
    try:
        if path.stat().st_size > MOST:
            raise ValueError(f"it has more than {MOST:,} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): _device(value) for key, value in _object(found).items()}
    except (OSError, ValueError, RecursionError) as error:
        mend = "`satchel tune --forget` removes it"
        raise RequestError(f"{path}: no tuning can be read: {error}; {mend}") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object was expected")
    return value


def _device(value: Any) -> DeviceTuning:
    fields = _object(value)
    steps = {str(k): _tuned(_object(v)) for k, v in _object(fields.get("steps")).items()}
    return DeviceTuning(str(fields.get("device"))[:200], str(fields.get("day"))[:10], steps)


def _tuned(fields: Mapping[str, Any]) -> Tuned:
    names = [fields.get(n) for n in ("kernel", "own")]
    times = [fields.get(n) for n in ("us", "own_us")]
    if not all(isinstance(n, str) and len(n) < 128 and NAME.fullmatch(n) for n in names):
        raise ValueError(f"{names} are no names of kernels")
    if not all(isinstance(t, int | float) and 0 <= t < 1e12 for t in times):
        raise ValueError(f"{times} are no microseconds")
    return Tuned(str(names[0]), str(names[1]), *map(float, times))  # type: ignore[arg-type]


def tuned_for(device: Device) -> DeviceTuning | None:
    """What is remembered of a device."""
    path = place()
    if path is None or not path.is_file():
        return None
    return read().get(device_key(device))


def remember(device: Device, steps: Mapping[str, Tuned], day: str) -> DeviceTuning:
    """Adds to what is remembered of a device. RequestError where it cannot be written."""
    known, key = read(), device_key(device)
    before = known[key].steps if key in known else {}
    made = DeviceTuning(f"{device.backend.name}: {device.info().name}", day, {**before, **steps})
    _write(known | {key: made})
    return made


def forget() -> bool:
    """Removes the file; False where there was none."""
    path = place()
    if path is None or not path.exists():
        return False
    path.unlink()
    return True


def _write(known: Mapping[str, DeviceTuning]) -> None:
    """In one move."""
    path = place()
    if path is None:
        raise RequestError("SATCHEL_TUNING is empty: there is no file to remember the tuning in")
    rows = {
        key: {"device": d.device, "day": d.day, "steps": {k: asdict(t) for k, t in d.steps.items()}}
        for key, d in known.items()
    }
    text = json.dumps(rows, indent=1).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{path}: the tuning cannot be written: {error}") from None
    replace_files([(path, lambda file: write_all(file, text))])
