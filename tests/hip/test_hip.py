"""The HIP backend without AMD hardware: its host code calls a mock of AMD's driver (driver.c), which runs the
kernels on the emulated GPU with waves of 64 lanes; code objects are checked when they are loaded.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_file
from devices import skip_without
from once import made_once

from satchel.runtime.device.libraries import libraries

ROOT = Path(__file__).parents[2]
CEXT = ROOT / "cext"
LEAST = 50  # tests of ops and models that must have run
PLACES = ("emulated", "gpu", "hip", "kernels", "include", "quant")
GENERATED = sorted((CEXT.parent / "build").glob("py3-*/cext/include"))  # by CMake as it configures


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled mock."""
    if not any(f.name == "hip" for f in libraries()):
        pytest.skip("hip: its library was not built: it needs clang++-18 or newer, and lld")
    if not shutil.which("gcc") or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("hip: the test's own driver needs gcc, on x86_64 or aarch64")
    if not GENERATED:
        pytest.skip("hip: the headers that the build makes are not in build/: make test")
    return made_once(tmp_path_factory, "hip", make_driver) / "libamdhip64.so"


def make_driver(folder: Path) -> None:
    out = folder / "libamdhip64.so"
    sources = [CEXT / "emulated" / f"{name}.c" for name in ("driver", "fibers", "kernels", "matrix_mfma")]
    flags = [
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-DPORT_EMULATED",
        "-DWAVE=64",
        "-DMATRIX_KERNEL=matrix_linear",
        "-ffp-contract=off",
    ]
    flags += [
        "-fno-strict-aliasing",
        "-Wno-unused-function",
        *(f"-I{CEXT / p}" for p in PLACES),
        f"-I{GENERATED[-1]}",
    ]
    here = Path(__file__).with_name("driver.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O2", *flags, here, *sources, "-lm", "-lpthread", "-o", out], check=True
    )


def run(driver: Path | str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python process of its own: a process opens a driver only once."""
    env = {**os.environ, "SATCHEL_HIP_DRIVER": str(driver), **more}
    return subprocess.run(
        [sys.executable, *words], env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize("every", ["6", pytest.param("1", marks=pytest.mark.nightly)])
def test_ops_and_models_through_the_names_of_hip(every: str, driver: Path) -> None:
    """every: one case of an op in so many."""
    tests = ("cext/test_gpu_kernels.py", "cext/test_matrix_units.py", "gpu/test_gpu_models.py")
    tests = (*tests, "cext/test_packed_kernels.py", "runtime/compiler/test_fused_steps.py")
    chosen = "test_op_equals or test_an_index or norms_of_heads or matrix_units or packed_kernels or one_step"
    chosen = f"hip and ({chosen} or portable_products or five_steps)"
    done = run(
        driver,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        chosen,
        *(f"tests/{t}" for t in tests),
        EVERY_CASE=every,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found and int(found[1]) >= LEAST


OPEN = """
from satchel.runtime.device.libraries import find_backend
with find_backend("hip").open() as device:
    assert device.name == 'hip'
"""


def test_an_unknown_gpu_gets_its_kernels_at_run_time(driver: Path) -> None:
    assert run(driver, "-c", OPEN, HIP_TEST_ARCH="gfx950").returncode == 0
    said = run(driver, "-c", OPEN, HIP_TEST_ARCH="gfx000").stderr
    assert "no kernels were built for this device" in said and "hipRTC gave error 1: what" in said


SEVERAL = """
import sys
sys.path.insert(0, "tests/support")
from pathlib import Path
import numpy as np, tiny_file
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.api.model import Model
from satchel.runtime.tuning.kept import driver_of
path, ids = tiny_file.write_model(Path(sys.argv[1]) / "m.gguf", "llama", "q8_0"), [3, 1]
with Model.load(path, device="cpu", threads=1) as model:
    wanted = model.logits(ids)
for device, split in (("hip,cpu", "2,1"), ("emulated,hip,cpu", "1,1,1")):
    with Model.load(path, device=device, tensor_split=split, threads=1) as model:
        off = np.square(model.logits(ids) - wanted).sum() / np.square(wanted).sum()
        used = {s.device for s in model.engine.program(2, 2, "logits").plan.segments}
        assert used == set(device.split(",")) and off < 1e-3, (used, off)
assert "libamdhip64" in driver_of("hip")
import os
os.environ["SATCHEL_EMULATED_LOSE"] = "20"
with Model.load(path, device="hip", threads=1) as model:
    try:
        model.logits(ids)
    except DeviceLost as error:
        assert str(error).startswith("device hip was lost"), error
    else:
        raise SystemExit("it was not lost")
    assert model.logits(ids).tobytes() == wanted.tobytes() and [d.name for d in model.devices] == ["cpu"]
"""


def test_beside_other_devices_and_without_it_when_it_is_lost(driver: Path, tmp_path: Path) -> None:
    skip_without("emulated")
    done = run(driver, "-c", SEVERAL, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]


def test_its_kernels_are_tuned(driver: Path, tmp_path: Path) -> None:
    """Steps with several portable kernels: `satchel tune` selects one."""
    model = tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")
    asked = ["tune", "-m", str(model), "--device", "hip", "--tokens", "1", "--depth", "0", "--repeats", "1"]
    done = run(
        driver,
        "-c",
        "from satchel.cli.main import main; main()",
        *asked,
        SATCHEL_TUNING=str(tmp_path / "tuning.json"),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kept = (tmp_path / "tuning.json").is_file()
    assert ("kinds of steps" in done.stderr) == kept and ("nothing to tune" in done.stderr) != kept


def test_a_broken_driver_is_left_out_and_said(tmp_path: Path) -> None:
    if not any(f.name == "hip" for f in libraries()) or not shutil.which("gcc"):
        pytest.skip("hip: its library was not built, or there is no gcc")
    broken = tmp_path / "libamdhip64.so"
    (tmp_path / "old.c").write_text("int hipInit(unsigned f) { return f ? 1 : 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "old.c", "-o", broken], check=True)
    code = (
        "from satchel.runtime.api.options import Options\n"
        "from satchel.runtime.placement.devices import open_for\n"
        "with open_for(Options()) as opened: print([d.name for d in opened.devices], *opened.notes)"
    )
    said = run(broken, "-c", code).stdout
    assert (
        said.startswith("['cpu'] device hip is left out: hip cannot run on this machine: ")
        and "too old" in said
    )
    assert "left out" not in run("/nowhere/libamdhip64.so", "-c", code).stdout


def test_a_driver_that_is_missing_is_named() -> None:
    if not any(f.name == "hip" for f in libraries()):
        pytest.skip("hip: its library was not built")
    said = run("/nowhere/libamdhip64.so", "-c", OPEN).stderr
    assert "/nowhere/libamdhip64.so cannot be opened: the driver is not installed" in said


def test_a_bundle_says_where_each_code_object_lies() -> None:
    bundle = runpy.run_path(str(CEXT / "hip" / "bundle.py"))["bundle"]
    parts = [("hipv4-amdgcn-amd-amdhsa--gfx942", b"one" * 2000), ("hipv4-amdgcn-amd-amdhsa--gfx1100", b"two")]
    made = bundle(parts)
    assert made[:24] == b"__CLANG_OFFLOAD_BUNDLE__" and struct.unpack_from("<Q", made, 24) == (3,)
    at, found = 32, []
    for _ in range(3):
        start, size, length = struct.unpack_from("<QQQ", made, at)
        name = made[at + 24 : at + 24 + length].decode()
        assert size == 0 or start % 4096 == 0
        found.append((name, made[start : start + size]))
        at += 24 + length
    assert found[1:] == parts and found[0][1] == b"" and found[0][0].startswith("host-")
