"""clang's code for products of packed weights on AMD's processors, inspected without a GPU: bytes are
multiplied by the processor's own instructions, weights come in words of 16 bytes, and nothing is spilled.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hip_code import compiled, generated_headers, number

# processor: its product of four bytes, and its load of 16 bytes
PROCESSORS = {
    "gfx906": ("v_dot4_i32_i8", "global_load_dwordx4"),
    "gfx942": ("v_dot4c?_i32_i8(?:_e32)?", "global_load_dwordx4"),
    "gfx1030": ("v_dot4c?_i32_i8(?:_e32)?", "global_load_dwordx4"),
    "gfx1100": ("v_dot4_i32_iu8", "global_load_b128"),
    "gfx1201": ("v_dot4_i32_iu8", "global_load_b128"),
}
FORMATS, STRETCHES, COLUMNS, DOTS = 10, 8, 4, 16  # products of four bytes in a stretch of a column
WORDS = 9 + 11 + 13 + 17 + 9 + 11 + 9 + 8 + 8 + 16  # of 16 bytes of a row of a chunk, of all formats
REGISTERS = 168  # of a lane, for three waves at a time where there are 512 of each of 64 lanes
SOURCE = '#include "packed_linear.k.h"\n'


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated_headers(tmp_path_factory.mktemp("generated"))


@pytest.mark.parametrize(
    "arch",
    [pytest.param(a, marks=() if a in ("gfx942", "gfx1100") else pytest.mark.nightly) for a in PROCESSORS],
)
def test_bytes_are_multiplied_by_the_processor(arch: str, generated: Path, tmp_path: Path) -> None:
    source = tmp_path / "packed.hip"
    source.write_text(SOURCE)
    text = compiled(arch, generated, source)
    dot, load = PROCESSORS[arch]
    assert len(re.findall(rf"^\s+({dot}) ", text, re.MULTILINE)) == FORMATS * STRETCHES * COLUMNS * DOTS
    assert len(re.findall(rf"^\s+{load} ", text, re.MULTILINE)) >= WORDS
    for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert number(text, key) == 0, key
    assert not re.search(r"^\s+(scratch_(load|store)|s_swappc)", text, re.MULTILINE)
    assert number(text, "vgpr_count") <= REGISTERS
