"""Energy is that of the readable counters; where there are none, the reason is reported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from satchel.runtime.device.energy import Counter, counters_of

FAKE = """
#include <stdlib.h>
#include <string.h>
static unsigned long long used[2] = {1000, 5000};
int nvmlInit_v2(void) { return getenv("FAKE_NVML_BROKEN") ? 9 : 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) { *out = used + i; return i < 2 ? 0 : 2; }
int nvmlDeviceGetHandleByUUID(const char *id, void **out) {
    *out = used + 1;
    return strcmp(id, "GPU-two") ? 6 : 0;
}
#ifndef OLD
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *out) {
    *out = *(unsigned long long *)d += 500;
    return 0;
}
#endif
"""


def built(folder: Path, *flags: str) -> str:
    """A library that counts half a joule more at every look."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is here to build a library that stands for NVML")
    (folder / "fake.c").write_text(FAKE)
    library = folder / f"libfake{len(flags)}.so"
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", library, folder / "fake.c"], check=True)
    return str(library)


def zone(folder: Path, name: str, joules: float, wraps: float = 100.0, label: str = "") -> Path:
    made = folder / (label or f"intel-rapl:{name}")
    made.mkdir(parents=True)
    (made / "name").write_text(name + "\n")
    (made / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
    (made / "max_energy_range_uj").write_text(f"{wraps * 1e6:.0f}\n")
    return made


def test_packages_and_memory_add_up_and_what_lies_within_does_not(tmp_path: Path) -> None:
    zones = [zone(tmp_path, name, 10) for name in ("package-0", "package-1", "dram", "core", "psys")]
    (tmp_path / "intel-rapl").mkdir()  # the driver's own folder has no name
    found = counters_of(["cpu"], folder=tmp_path)
    assert sorted(c.name for c in found.counters) == ["dram", "package-0", "package-1"] and not found.reasons
    before = found.read()
    for made, now in zip(zones, (12, 3, 10.5, 99, 99), strict=True):  # package-1 began again at 100 J
        (made / "energy_uj").write_text(f"{now * 1e6:.0f}")
    assert found.since(before) == pytest.approx(2 + 93 + 0.5)


def test_gpus_are_those_that_cuda_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, none = built(tmp_path), tmp_path / "none"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = counters_of(["cuda", "cpu", "cuda:1"], library, none)
    assert [c.name for c in found.counters] == ["cuda:0", "cuda:1"]
    assert found.reasons == (f"RAPL: {none} has no zone of a processor",)
    assert found.since(found.read()) == pytest.approx(1.0)
    for seen, first in (("1", 5), ("GPU-two", 5), ("0,1", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        (counter,) = counters_of(["cuda"], library, none).counters
        assert int(counter.read()) // 5 == first // 5


@pytest.mark.parametrize(
    ("devices", "variable", "flags", "reason"),
    [
        (["cuda:7"], "", (), "NVML: it has no device 7: error 2"),
        (["cuda"], "GPU-none", (), "NVML: it has no device GPU-none: error 6"),
        (["cuda"], "", ("-DOLD",), "counts no energy: no nvmlDeviceGetTotalEnergyConsumption"),
        (["cuda"], "broken", (), "NVML: it cannot be started: error 9"),
        (["cuda"], "absent", (), "cannot be opened"),
    ],
)
def test_what_cannot_be_read_says_why(
    devices: list[str],
    variable: str,
    flags: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = "libnothing-of-that-name.so" if variable == "absent" else built(tmp_path, *flags)
    if variable == "broken":
        # The library reads C's environment, which os.environ writes through.
        monkeypatch.setenv("FAKE_NVML_BROKEN", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable if variable.startswith("GPU") else "")
    found = counters_of(devices, library, tmp_path / "none")
    assert found.counters == () and reason in found.reasons[0] and len(found.reasons) == 2


@pytest.mark.parametrize(("text", "reason"), [("many", "holds no number"), (None, "has no zone")])
def test_zones_that_hold_nothing(text: str | None, reason: str, tmp_path: Path) -> None:
    made = zone(tmp_path, "package-0", 1)
    if text is None:
        (made / "energy_uj").unlink()
    else:
        (made / "energy_uj").write_text(text)
    (found,) = counters_of([], folder=tmp_path).reasons
    assert reason in found


def test_a_zone_that_root_alone_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, read = zone(tmp_path, "package-0", 1) / "energy_uj", Path.read_text

    def refuse(path: Path) -> str:
        if path == counted:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    (found,) = counters_of(["cpu"], folder=tmp_path).reasons
    assert "may not be read: run as root" in found


def test_a_counter_that_never_wraps() -> None:
    assert Counter("x", lambda: 4.0).since(1.5) == 2.5
    assert Counter("x", lambda: 1.0, wraps=10.0).since(9.5) == 1.5
