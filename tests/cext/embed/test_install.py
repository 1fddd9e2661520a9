"""An installed libsatchel: programs are compiled against the prefix by pkg-config and by CMake's
find_package, in C and C++, and what satchel.hpp promises.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import embedded
import installed
import pytest
from installed import ran
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

EXAMPLES = embedded.ROOT / "examples" / "embed"
WARNINGS = ("-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror")

PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES C)
find_package(satchel {version} REQUIRED)
add_executable(shared "{source}")
target_link_libraries(shared satchel::satchel)
add_executable(static "{source}")
target_link_libraries(static satchel::satchel_static)
"""

# Owners move, errors have the library's words, an answer is read once and tells its report.
PROGRAM = """
#include <cstdio>
#include <type_traits>
#include "satchel.hpp"

template <typename Owner> constexpr bool moves() {
    return !std::is_copy_constructible_v<Owner> && std::is_move_constructible_v<Owner>;
}
static_assert(moves<satchel::Model>() && moves<satchel::Reply>());

static satchel::Reply begin(satchel::Model &model) {
    satchel::GenerateOptions options;
    options.max_tokens = 5;
    options.flags = SATCHEL_IGNORE_END;
    options.seed = 3;
    return model.generate("hello", options);
}

int main(int, char **argv) {
    try {
        satchel::Model none("/nothing/there.gguf");
    } catch (const satchel::Error &error) {
        std::printf("%d %s\\n", error.code(), error.what());
    }
    satchel::ModelOptions options;
    options.context = 90;
    satchel::Model first(argv[1], options), model(std::move(first));
    std::printf("context %d\\n", model.facts().context);
    auto ids = model.tokenize("hello");
    std::printf("%s\\n", model.detokenize(ids).c_str());
    {
        satchel::Reply reply = begin(model);
        int count = 0;
        for (const satchel::Piece &piece : reply) {
            count += piece.token >= 0;
            if (count == 2)
                break;
        }
        try {
            model.generate("a second one, which has no slot");
        } catch (const satchel::Error &error) {
            std::printf("%d\\n", error.code());
        }
        std::string rest = reply.read();
        std::printf("tokens %d\\n", int(reply.report().tokens));
    }
    const std::string once = begin(model).read(), again = begin(model).read();
    std::printf("%d\\n", once == again);
}
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    embedded.compiler()
    return installed.prefix(tmp_path_factory)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    with open_gguf(write_model(folder / "m.gguf")) as gguf:
        build(gguf, folder / "app.gguf")
    return folder / "app.gguf"


def test_the_library_has_a_soname(prefix: Path) -> None:
    (library,) = prefix.glob("lib*/**/libsatchel.so")
    told = ran([installed.tool("readelf", "binutils"), "-d", library], installed.environment(prefix))
    assert re.findall(r"\(SONAME\).*\[(.+)\]", told) == ["libsatchel.so.1"]
    # libc alone: no library of the compiler's, and none of C++.
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\.so", told))
    assert needed <= {"libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64", "libpthread", "libdl"}


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_a_project_of_cmake_finds_it(kind: str, prefix: Path, app: Path, tmp_path: Path) -> None:
    version = re.search(r'^version = "(\d+\.\d+)', (embedded.ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    text = PROJECT.format(version=version[1], source=EXAMPLES / "complete.c")
    (tmp_path / "CMakeLists.txt").write_text(text)
    cmake, env = installed.cmake(), installed.environment(prefix)
    del env["LD_LIBRARY_PATH"]  # CMake writes the path of a library into a program of the build folder
    ran([cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"], env)
    ran([cmake, "--build", tmp_path / "build", "--target", kind], env)
    ran([tmp_path / "build" / kind, app, "hello"], env)


def test_another_version_is_not_found(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(version="99.0", source=EXAMPLES / "complete.c"))
    build, found = str(tmp_path / "build"), f"-DCMAKE_PREFIX_PATH={prefix}"
    command = [installed.cmake(), "-S", str(tmp_path), "-B", build, found]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "version: 0." in done.stderr


def test_cpp_owners_errors_and_pieces(prefix: Path, app: Path, tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(PROGRAM)
    flags, env = installed.library_flags(prefix), installed.environment(prefix)
    compiled = [installed.tool("g++", "g++"), *WARNINGS, "-g1", str(tmp_path / "program.cpp"), *flags]
    ran([*compiled, "-o", str(tmp_path / "program")], env)
    lines = ran([tmp_path / "program", app], env).splitlines()
    assert lines[0].startswith("-2 /nothing/there.gguf: can't be read: No such file")
    assert lines[1:] == ["context 90", "hello", "-6", "tokens 5", "1"]
