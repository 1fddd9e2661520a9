"""libsatchel for 64-bit Arm, under qemu: every kernel set and number of threads gives the same tokens, and
float32 weights give those of the engine on this machine.

Arm's sets promise the same bits among each other. Against x86 they do not: sums of floats go by other lanes,
so logits differ in their last places. Where activations are rounded to 8 bits, one that lies between two
codes may then go the other way, which sampling shows; with float32 weights nothing is rounded so coarsely.
`make arm` builds what this runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import embedded
import pytest
from built_families import EVERY_FAMILY, answer, built, family, ids_of, wanted
from embedded import ROOT, Driver
from installed import tool
from once import made_once
from tiny_file import write_model

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
            tmp_path_factory, folder / "arm-driver", sources, compiled_by=compiler, backend=found[0]
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


def answers(emulated: Path, path: Path, kernels: str, threads: int) -> list[list[int]]:
    with Driver(emulated, kernels) as driver:
        assert driver.open(path, 96, 1, threads)[3] == kernels
        found = [answer(driver, ids_of(n, n), 12, options, n) for n, options in SAMPLES]
        driver.close()
    return found


@pytest.mark.parametrize("arch", EVERY_FAMILY)
def test_every_set_gives_the_same_tokens(
    arch: str, emulated: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = family(tmp_path_factory, arch)
    first, *others = (answers(emulated, path, *how) for how in ((SETS[0], 1), (SETS[1], 2), (SETS[2], 1)))
    assert len({token for tokens in first for token in tokens}) > 2
    assert others == [first, first]


@pytest.mark.parametrize("arch", ["qwen3", "mamba2"])
def test_float32_weights_give_the_engines_tokens(
    arch: str, emulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built(write_model(tmp_path / "m.gguf", arch, "f32"))
    found = answers(emulated, path, "neon", 1)
    if best_fused():
        monkeypatch.setenv("SATCHEL_CPU", best_fused())
    with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
        right = [wanted(model.engine, ids_of(n, n), 12, Sampling(**o, seed=n)) for n, o in SAMPLES]
    assert found == right
