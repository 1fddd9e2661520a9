"""clang's code for AMD's matrix units, inspected without a GPU: the matrix instruction is in the loop, no
register is spilled, and registers and local memory are within a group's limits.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hip_code import CEXT, CLANG, compiled, generated_headers, number

# processor: its instruction, and how many of it a wave needs for 64 numbers of its tile
UNITS = {
    "gfx90a": ("v_mfma_f32_32x32x8bf16_1k", 16),
    "gfx942": ("v_mfma_f32_32x32x8_bf16", 16),
    "gfx1100": ("v_wmma_f32_16x16x16_bf16", 16),
    "gfx1201": ("v_wmma_f32_16x16x16_bf16", 16),
}
NONE = ("gfx906", "gfx1030")
LOCAL_MOST = 64 << 10  # bytes of local memory of a group
REGISTERS = 256  # of a lane, for two waves or more at a time


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated_headers(tmp_path_factory.mktemp("generated"))


def assembly(arch: str, generated: Path) -> str:
    return compiled(arch, generated, CEXT / "hip" / "matrix.hip")


@pytest.mark.parametrize("arch", UNITS)
def test_the_unit_is_used_and_nothing_is_spilled(arch: str, generated: Path) -> None:
    text = assembly(arch, generated)
    name, count = UNITS[arch]
    assert len(re.findall(rf"^\s+{name} ", text, re.MULTILINE)) == count
    assert ".name:           matrix_linear" in text
    for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert number(text, key) == 0, key
    assert not re.search(r"^\s+(scratch_(load|store)|s_swappc)", text, re.MULTILINE)
    assert number(text, "vgpr_count") <= REGISTERS
    assert number(text, "group_segment_fixed_size") + local_bytes() <= LOCAL_MOST
    # operands and sums pass through local memory by its own instructions, and neighbours' numbers go together
    assert len(re.findall(r"^\s+ds_(read|load)_b(64|128) ", text, re.MULTILINE)) >= 4
    assert re.search(r"^\s+ds_(write|store)_b128 ", text, re.MULTILINE)


def local_bytes() -> int:
    """MATRIX_LOCAL as the compiler computes it from modes.h."""
    words = [str(CLANG), "-x", "c", "-fsyntax-only", f"-I{CEXT / 'kernels'}", "-"]
    source = (
        '#include "modes.h"\nstruct { char of[MATRIX_LOCAL]; } local;\n_Static_assert(sizeof local == 0, "");'
    )
    done = subprocess.run(words, input=source, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"evaluates to '(\d+) == 0'", done.stderr)
    assert found, done.stderr
    return int(found[1])


@pytest.mark.parametrize("arch", NONE)
def test_a_gpu_without_units_gets_no_kernel(arch: str, generated: Path) -> None:
    assert "matrix_linear" not in assembly(arch, generated)
