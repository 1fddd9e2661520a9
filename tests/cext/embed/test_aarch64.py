"""libsatchel for 64-bit Arm, under qemu: every kernel set gives the tokens that the engine gives on this
machine.

Arm's sets promise the same bits among each other. Against x86 they do not: sums of floats go by other lanes,
so logits differ in their last places, which no token of these models shows. `make arm` builds what this runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import embedded
import pytest
from built_families import EVERY_FAMILY, answer, family, ids_of, wanted
from embedded import ROOT, Driver
from installed import tool
from once import made_once

from satchel import Model
from satchel.runtime.device.libraries import find_backend, kernel_sets
from satchel.runtime.sampling import Sampling

SETS = ("neon", "dotprod", "i8mm")
LIBRARIES = "/usr/aarch64-linux-gnu"  # Debian's C library for Arm
SAMPLES = ((1, {}), (40, {}), (23, {"temperature": 0}))  # tokens of a prompt, options


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs the driver for Arm."""
    found = sorted(ROOT.glob("build/arm/**/libsatchel_cpu.so"))
    if not found:
        pytest.skip("the CPU backend for Arm was not built: make arm")
    compiler = tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    qemu = tool("qemu-aarch64", "qemu-user")

    def make(folder: Path) -> None:
        sources = [ROOT / "tests" / "cext" / "embed" / f"{name}.c" for name in ("driver", "templates")]
        program = embedded.compile_program(
            folder / "arm-driver", sources, compiled_by=compiler, backend=found[0]
        )
        script = folder / "driver"
        script.write_text(f"#!/bin/sh\nexec {qemu} -cpu max -L {LIBRARIES} '{program}'\n", encoding="utf-8")
        script.chmod(0o755)

    return made_once(tmp_path_factory, "embed-driver-arm", make) / "driver"


def best_fused() -> str:
    """A set of this machine that fuses multiply-add, as Arm's do; empty: its best one."""
    return (
        "avx2" if "avx2" in kernel_sets(Path(find_backend("cpu").path)) else os.environ.get("SATCHEL_CPU", "")
    )


@pytest.mark.parametrize("arch", EVERY_FAMILY)
def test_every_set_gives_the_engines_tokens(
    arch: str, emulated: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = family(tmp_path_factory, arch)
    found = {}
    for kernels in SETS:
        with Driver(emulated, kernels) as driver:
            assert driver.open(path, 96, 1)[3] == kernels
            found[kernels] = [answer(driver, ids_of(n, n), 12, options, n) for n, options in SAMPLES]
            driver.close()
    if best_fused():
        monkeypatch.setenv("SATCHEL_CPU", best_fused())
    with Model.load(path, context=96, slots=1, device="cpu", threads=1, deterministic=True) as model:
        right = [wanted(model.engine, ids_of(n, n), 12, Sampling(**o, seed=n)) for n, o in SAMPLES]
    assert found == dict.fromkeys(SETS, right)
