"""The hash by which a library of another version is refused covers hal.h's tables and the sampling stages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CEXT = Path(__file__).resolve().parents[2] / "cext"
SOURCES = ("include/hal.h", "kernels/sample_stages.k.h")


def abi_hash(folder: Path, replaced: str = "", by: str = "") -> str:
    """The hash that the build writes when a text of the sources is replaced; it occurs once."""
    texts = {name: (CEXT / name).read_text() for name in SOURCES}
    if replaced:
        assert sum(text.count(replaced) for text in texts.values()) == 1
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace(replaced, by) if replaced else text)
    made = [sys.executable, CEXT / "build_ffi.py", folder / "include" / "hal.h", CEXT / "quant"]
    subprocess.run([*made, folder / "_hal.py", folder / "out"], check=True)
    return re.findall(r"0x(\w{16})ull", (folder / "out" / "hal_abi.h").read_text())[0]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> str:
    return abi_hash(tmp_path_factory.mktemp("unchanged"))


@pytest.mark.parametrize(
    ("replaced", "by", "same"),
    [
        ("/* bytes; 0: the backend's default */", "/* bytes */", True),
        ("    float mirostat_mu; ", "    float mu; ", False),
        ("    X(top_k) ", "    X(some) ", False),
        ("    X(top_k) ", "    X(some) \\\n    X(top_k) ", False),
        ("if (threshold > 0.5f ||", "if (threshold >= 0.51f ||", True),
    ],
)
def test_the_abi_hash_covers_the_tables_and_the_list_of_stages(
    replaced: str, by: str, same: bool, unchanged: str, tmp_path: Path
) -> None:
    assert (abi_hash(tmp_path, replaced, by) == unchanged) is same
