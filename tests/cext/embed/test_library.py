"""libsatchel as CMake builds it (SATCHEL_EMBED): it exports the functions of satchel.h alone, and programs
link with either form of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import embedded
import pytest
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

HEADER = embedded.EMBED / "include" / "satchel.h"
DECLARED = set(re.findall(r"^SATCHEL_API .*?\b(satchel_\w+)\(", HEADER.read_text(), re.M))


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where `make test` built the library."""
    found = [p for p in sorted(embedded.ROOT.glob("build/py3-*/embed")) if (p / "libsatchel.so").exists()]
    if not found:
        pytest.skip("libsatchel was not built: make .venv/ready-to-test")
    return found[0]


def test_the_map_and_the_header_name_the_same_functions() -> None:
    named = set(re.findall(r"^        (satchel_\w+);", (embedded.EMBED / "exports.map").read_text(), re.M))
    assert named == DECLARED
    assert len(named) > 10


def test_exports_are_those_of_the_header(folder: Path) -> None:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "libsatchel.so"], capture_output=True, text=True
    )
    if told.returncode:
        pytest.skip(f"no nm for this library: {told.stderr}")
    assert set(re.findall(r" T (\w+)@@SATCHEL_1", told.stdout)) == DECLARED
    assert " T hal_backend_entry" not in told.stdout


def test_names_of_the_static_library(folder: Path, tmp_path: Path) -> None:
    """It defines the header's functions alone, so a program may have functions of any other name."""
    if sys.platform != "linux" or not shutil.which("objcopy"):
        pytest.skip("names are made local with objcopy, for ELF")
    told = subprocess.run(
        ["nm", "-g", "--defined-only", folder / "libsatchel.a"], capture_output=True, text=True, check=True
    )
    assert set(re.findall(r" [A-Z] (\w+)$", told.stdout, re.M)) == DECLARED
    source = tmp_path / "program.c"
    source.write_text(
        '#include "satchel.h"\nint trie_free = 7, answer_end, hal_fail, words_read;\n'
        "int main(void) { satchel_close(0); return trie_free != 7 || satchel_open(0, 0, 0) == 0; }\n"
    )
    made = [embedded.compiler(), "-std=c11", f"-I{HEADER.parent}", source, folder / "libsatchel.a"]
    subprocess.run([*made, "-o", tmp_path / "program", "-lpthread", "-lm", "-ldl"], check=True)
    assert subprocess.run([tmp_path / "program"]).returncode == 0


@pytest.mark.parametrize("form", ["shared", "static"])
def test_programs_link_with_it(form: str, folder: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with open_gguf(path) as gguf:
        build(gguf, tmp_path / "app.gguf")
    library = {
        "shared": [f"-L{folder}", "-lsatchel", f"-Wl,-rpath,{folder}"],
        "static": [str(folder / "libsatchel.a"), "-lpthread", "-lm", "-ldl"],
    }[form]
    source = embedded.ROOT / "examples" / "embed" / "complete.c"
    made = [embedded.compiler(), "-std=c11", "-pedantic", *embedded.WARNINGS, f"-I{HEADER.parent}", source]
    subprocess.run([*made, "-o", tmp_path / "program", *library], check=True)
    done = subprocess.run([tmp_path / "program", tmp_path / "app.gguf", "hello"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    (tmp_path / "program.cc").write_text(
        '#include "satchel.h"\nint main() { return satchel_level() == 0; }\n'
    )
    checked = [embedded.compiler(), "-std=c++17", "-pedantic", "-Wall", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [*checked, f"-I{HEADER.parent}", tmp_path / "program.cc"], capture_output=True, text=True
    )
    if "cc1plus" in done.stderr:
        pytest.skip("the compiler has no C++")
    assert (done.returncode, done.stderr) == (0, "")
