"""Bindings: each example continues a text with the bundled model and prints the Python engine's greedy
answer; an error has the library's words; the structs that bindings write out are those of satchel.h.

Each is skipped where its language's tools are missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import embedded
import installed
import pytest
from installed import PROMPT, ran, tool

BINDINGS = embedded.ROOT / "bindings"
EXAMPLES = embedded.ROOT / "examples" / "embed"
STRICT = ("-Wall", "-Wextra", "-Werror")

Command = list[str | Path]
Env = dict[str, str]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    embedded.compiler()
    return installed.prefix(tmp_path_factory)


def cplusplus(prefix: Path, env: Env, folder: Path) -> Command:
    compiler = tool("g++", "g++")
    flags = ["-std=c++17", "-pedantic", *STRICT, *installed.library_flags(prefix)]
    ran([compiler, EXAMPLES / "complete.cpp", *flags, "-o", folder / "complete"], env)
    return [folder / "complete"]


def rust(prefix: Path, env: Env, folder: Path) -> Command:
    cargo = tool("cargo", "cargo")
    shutil.copytree(BINDINGS / "rust", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
    env["RUSTFLAGS"] = "-D warnings"
    ran([cargo, "build", "--offline", "--quiet", "--example", "complete"], env, folder)
    return [folder / "target" / "debug" / "examples" / "complete"]


def go(prefix: Path, env: Env, folder: Path) -> Command:
    compiler = tool("go", "golang-go")
    env |= {"GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "path"), "GOTOOLCHAIN": "local"}
    ran([compiler, "build", "-o", folder / "complete", "./complete"], env, BINDINGS / "go")
    return [folder / "complete"]


def csharp(prefix: Path, env: Env, folder: Path) -> Command:
    compiler, runtime = tool("mcs", "mono-mcs"), tool("mono", "mono-runtime")
    sources = sorted((BINDINGS / "csharp").glob("*.cs"))
    ran([compiler, "-warnaserror", f"-out:{folder / 'Complete.exe'}", *sources], env)
    return [runtime, folder / "Complete.exe"]


def java(prefix: Path, env: Env, folder: Path) -> Command:
    compiler, runtime = tool("javac", "default-jdk-headless"), tool("java", "default-jdk-headless")
    home = Path(compiler).resolve().parents[1] / "include"
    if not (home / "jni.h").exists():
        pytest.skip("no jni.h beside javac: apt-get install default-jdk-headless")
    includes = [f"-I{home}", f"-I{home / 'linux'}"]
    native = [embedded.compiler(), "-std=c11", *STRICT, "-shared", "-fPIC", *includes]
    native += [str(BINDINGS / "java" / "satchel_jni.c"), *installed.library_flags(prefix)]
    ran([*native, "-o", folder / "libsatchel_jni.so"], env)
    source = BINDINGS / "java"
    ran(
        [compiler, "-Xlint:all", "-Werror", "-d", folder, "-sourcepath", source, source / "Complete.java"],
        env,
    )
    return [runtime, "-cp", folder, f"-Djava.library.path={folder}", "Complete"]


def node(prefix: Path, env: Env, folder: Path) -> Command:
    runtime = tool("node", "nodejs")
    headers = Path(runtime).resolve().parents[1] / "include" / "node"
    if not (headers / "node_api.h").exists():
        pytest.skip("no node_api.h: apt-get install libnode-dev")
    flags = ["-std=c11", *STRICT, "-shared", "-fPIC", f"-I{headers}", *installed.library_flags(prefix)]
    target = folder / "satchel.node"
    ran([embedded.compiler(), BINDINGS / "node" / "satchel_node.c", *flags, "-o", target], env)
    env["SATCHEL_NODE"] = str(target)
    return [runtime, BINDINGS / "node" / "complete.mjs"]


def python(prefix: Path, env: Env, folder: Path) -> Command:
    env |= {"SATCHEL_LIBRARY": env["LD_LIBRARY_PATH"] + "/libsatchel.so", "PYTHONDONTWRITEBYTECODE": "1"}
    return [sys.executable, "-I", "-c", RUN, BINDINGS / "python"]


# An isolated interpreter, so that nothing but the standard library is there.
RUN = (
    "import runpy, sys; sys.path = [p for p in sys.path if 'site-packages' not in p] + [sys.argv[1]]; "
    "del sys.argv[1]; runpy.run_path(sys.path[-1] + '/complete.py')"
)
BUILDS = (cplusplus, rust, go, csharp, java, node, python)
SOURCES = {
    "cplusplus": EXAMPLES / "complete.cpp",
    "rust": BINDINGS / "rust" / "examples" / "complete.rs",
    "go": BINDINGS / "go" / "complete" / "main.go",
    "csharp": BINDINGS / "csharp" / "Complete.cs",
    "java": BINDINGS / "java" / "Complete.java",
    "node": BINDINGS / "node" / "complete.mjs",
    "python": BINDINGS / "python" / "complete.py",
    "swift": BINDINGS / "swift" / "Complete.swift",
}


@pytest.mark.model
@pytest.mark.parametrize("make", BUILDS)
def test_an_example_answers_as_the_engine(
    make: Callable[[Path, Env, Path], Command],
    prefix: Path,
    bundled_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    env = installed.environment(prefix)
    command = make(prefix, env, tmp_path)
    app, answer = installed.bundled_app(tmp_path_factory, bundled_model)
    assert len(answer) > 100
    assert ran([*command, app, PROMPT], env) == answer
    failed = subprocess.run([*command, bundled_model, PROMPT], env=env, capture_output=True, text=True)
    assert failed.returncode != 0
    assert "holds no plan: run `satchel build" in failed.stderr


@pytest.mark.parametrize("name", SOURCES)
def test_an_example_is_short(name: str) -> None:
    """Twenty lines of an app's own code: without empty ones, comments and lines of brackets alone."""
    lines = [line.strip() for line in SOURCES[name].read_text(encoding="utf-8").splitlines()]
    code = [
        line for line in lines if re.search(r"\w", line) and not line.startswith(("//", "/*", "*", '"""'))
    ]
    assert len(code) <= 20, len(code)


def test_the_module_map_gives_the_header_to_swift(tmp_path: Path) -> None:
    clang = tool("clang", "clang")
    shutil.copy(BINDINGS / "swift" / "module.modulemap", tmp_path)
    shutil.copy(embedded.EMBED / "include" / "satchel.h", tmp_path)
    source = tmp_path / "use.m"
    source.write_text("@import Satchel;\nint main(void) { return satchel_level() == SATCHEL_LEVEL; }\n")
    cache = f"-fmodules-cache-path={tmp_path / 'cache'}"
    env = dict(os.environ)
    ran([clang, "-fmodules", cache, *STRICT, "-fsyntax-only", f"-I{tmp_path}", source], env)
    source.write_text("@import Satchel;\nint main(void) { return satchel_nothing(); }\n")
    command = [clang, "-fmodules", cache, *STRICT, "-fsyntax-only", f"-I{tmp_path}", str(source)]
    failed = subprocess.run(command, capture_output=True, text=True)
    assert "satchel_nothing" in failed.stderr


def fields(text: str, struct: str) -> list[str]:
    """The fields of a struct of satchel.h as their types' sizes in C: u32, i32, i64, f32, ptr."""
    body = re.search(r"typedef struct \{((?:(?!typedef struct)[^}])*)\} " + struct + ";", text)
    assert body is not None, struct
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.S)
    found = []
    for kind, names in re.findall(r"(uint32_t|int32_t|int64_t|float|const char)\b([^;]*);", code):
        for name in names.split(","):
            short = {"uint32_t": "u32", "int32_t": "i32", "int64_t": "i64", "float": "f32"}.get(kind)
            found.append("ptr" if "*" in name else str(short))
    return found


RUST = {"*const c_char": "ptr"}
CSHARP = {"uint": "u32", "int": "i32", "long": "i64", "float": "f32", "IntPtr": "ptr"}
CTYPES = {"c_uint32": "u32", "c_int32": "i32", "c_int64": "i64", "c_float": "f32", "c_char_p": "ptr"}


def rust_fields(struct: str) -> list[str]:
    text = (BINDINGS / "rust" / "src" / "ffi.rs").read_text()
    body = re.search(rf"pub struct {struct} \{{(.*?)\n\}}", text, re.S)
    return [RUST.get(k, k) for k in re.findall(r"pub \w+: (.*),", body[1] if body else "")]


def csharp_fields(struct: str) -> list[str]:
    text = (BINDINGS / "csharp" / "Satchel.cs").read_text()
    body = re.search(rf"struct {struct} \{{(.*?)(?:static|\n\}})", text, re.S)
    lines = re.findall(r"(?:internal|public) (\w+) ([\w, ]+);", body[1] if body else "")
    return [CSHARP[kind] for kind, names in lines for _ in names.split(",")]


def ctypes_fields(struct: str) -> list[str]:
    text = (BINDINGS / "python" / "satchel_ctypes.py").read_text()
    body = re.search(rf"class {struct}\(.*?_fields_ = \((.*?)\n\n", text, re.S)
    return [CTYPES.get(k, "ptr") for k in re.findall(r'"\w+", (\w+)', body[1] if body else "")]


@pytest.mark.parametrize(
    ("struct", "found"),
    [
        ("satchel_model_options", rust_fields("ModelOptions")),
        ("satchel_generate_options", rust_fields("GenerateOptions")),
        ("satchel_piece", rust_fields("Piece")),
        ("satchel_reply_report", rust_fields("ReplyReport")),
        ("satchel_model_options", csharp_fields("ModelOptions")),
        ("satchel_generate_options", csharp_fields("GenerateOptions")),
        ("satchel_piece", csharp_fields("NativePiece")),
        ("satchel_model_options", ctypes_fields("ModelOptions")),
        ("satchel_generate_options", ctypes_fields("GenerateOptions")),
        ("satchel_piece", ctypes_fields("Piece")),
    ],
)
def test_structs_are_the_beginning_of_the_headers(struct: str, found: list[str]) -> None:
    """The header may have more at the end, which the library fills with defaults."""
    wanted = fields((embedded.EMBED / "include" / "satchel.h").read_text(), struct)
    assert len(found) > 3
    assert found == wanted[: len(found)]
