"""The CUDA backend from prebuilt images, without nvcc and without a GPU: its library is built by the C
compiler alone, and its host code calls a mock of NVIDIA's driver (driver.c), which reads what it gets to
load: real machine code and PTX.

Needs images of the present sources in build/gpu-images, which take half an hour:
`python packaging/gpu_images.py build/gpu-images cuda`.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_file
from once import made_once

ROOT = Path(__file__).parents[2]
CEXT = ROOT / "cext"
FOLDER = ROOT / "build" / "gpu-images"
IMAGES = runpy.run_path(str(ROOT / "packaging" / "gpu_images.py"))
PTX = "PTX of compute_75, compiled by the driver"
USED = {75: "sm_75", 80: "sm_80", 86: "sm_80", 89: "sm_80", 90: "sm_90a", 100: "sm_100", 103: "sm_100"}
USED |= {120: "sm_120", 121: "sm_120", 110: PTX}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library and the mock."""
    if not shutil.which("gcc") or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("cuda: the test's own driver needs gcc, on x86_64 or aarch64")
    try:
        IMAGES["check"](FOLDER, "cuda")
    except IMAGES["ImageError"] as error:
        pytest.skip(f"cuda: {error}")
    return made_once(tmp_path_factory, "cuda", build)


def build(folder: Path) -> None:
    defined = [*IMAGES["cmake_options"](FOLDER, ["cuda"]), "SATCHEL_HIP=OFF", "SATCHEL_SYCL=OFF"]
    defined += ["SATCHEL_SETS=scalar", "SATCHEL_STRICT=ON", f"Python_EXECUTABLE={sys.executable}"]
    options = [f"-D{one}" for one in defined]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["cmake", "-S", ROOT, "-B", folder / "b", *options], **quiet)  # type: ignore[call-overload]
    subprocess.run(["cmake", "--build", folder / "b", "--target", "satchel_cuda"], **quiet)  # type: ignore[call-overload]
    places = [f"-I{CEXT / p}" for p in ("dry", "gpu", "include", "host", "kernels", "quant")]
    places.append(f"-I{folder / 'b' / 'cext' / 'include'}")  # what CMake has made
    sources = [Path(__file__).with_name("driver.c"), CEXT / "dry" / "driver.c"]
    out = folder / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", *places, *sources, "-o", out], check=True
    )


def run(built: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    folders = {"SATCHEL_BACKENDS": str(built / "b" / "cext" / "cuda"), "LD_LIBRARY_PATH": str(built)}
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **folders, **more},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


MAIN = "from satchel.cli.main import main; main()"
CARDS = """
import json, os, sys
from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import find_backend
found = {}
for arch in map(int, sys.argv[2:]):
    os.environ["CUDA_TEST_ARCH"] = str(arch)
    with Model.load(sys.argv[1], device="cuda", threads=1) as model:
        model.logits([3, 1])
        found[arch] = model.devices[0].info().image
print(json.dumps(found))
"""


@pytest.mark.nightly
def test_each_card_gets_code_that_its_driver_takes_and_all_kernels_of_a_model(
    built: Path, tmp_path: Path
) -> None:
    model = tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")
    done = run(built, "-c", CARDS, str(model), *map(str, USED))
    assert done.returncode == 0, done.stderr[-3000:]
    assert {int(k): v for k, v in json.loads(done.stdout).items()} == USED
    assert "PTX 8.0 of sm_75" in done.stderr  # CUDA 12.0 and its drivers know it


@pytest.mark.nightly
def test_doctor_names_the_image_and_what_mends_its_absence(built: Path) -> None:
    def said(**more: str) -> dict[str, str]:
        checks = json.loads(run(built, "-c", MAIN, "doctor", "--json", **more).stdout)["checks"]
        return next(c for c in checks if c["kind"] == "backend" and c["name"] == "cuda")

    # The mock computes nothing, so the numbers are wrong; what it found is told before.
    old = said(CUDA_TEST_DRIVER="11080")
    assert "knows CUDA 11.8, and these kernels need CUDA 12.0" in old["text"]
    assert old["mend"].startswith("install NVIDIA's driver 525 or newer")
    assert said(CUDA_TEST_ARCH="70")["mend"].startswith("--device cpu: ")
