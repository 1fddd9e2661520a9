"""Bindings: each language's examples continue a text and chat with the bundled model and print the Python
engine's greedy answers; an error has the library's words; the structs that bindings write out are those of
satchel.h.

Each is skipped where its language's tools are missing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import embedded
import installed
import pytest
from installed import PROMPT, ran, tool
from waiting import SECONDS

from satchel import Model
from satchel.runtime.children import interpreter

NAMES = ("complete", "chat")
LINES = ("Hello! Who are you?", 'Say "no" \\ \t and <|im_end|>.')  # of a conversation
BINDINGS = embedded.ROOT / "bindings"
EXAMPLES = embedded.ROOT / "examples" / "embed"
STRICT = ("-Wall", "-Wextra", "-Werror")

Command = list[str | Path]
Commands = dict[str, Command]  # by the example's name
Env = dict[str, str]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    embedded.compiler()
    return installed.prefix(tmp_path_factory)


def c_chat(prefix: Path, folder: Path) -> Command:
    """The chat in C, over the header of bindings/c."""
    flags = ["-std=c11", "-pedantic", *STRICT, f"-I{BINDINGS / 'c'}", *installed.library_flags(prefix)]
    command = [embedded.compiler(), EXAMPLES / "chat.c", *flags, "-o", folder / "chat"]
    ran(command, installed.environment(prefix))
    return [folder / "chat"]


def cplusplus(prefix: Path, env: Env, folder: Path) -> Commands:
    compiler = tool("g++", "g++")
    flags = ["-std=c++17", "-pedantic", *STRICT, *installed.library_flags(prefix)]
    for name in NAMES:
        ran([compiler, EXAMPLES / f"{name}.cpp", *flags, "-o", folder / name], env)
    return {name: [folder / name] for name in NAMES}


def rust(prefix: Path, env: Env, folder: Path) -> Commands:
    cargo = tool("cargo", "cargo")
    shutil.copytree(BINDINGS / "rust", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
    env["RUSTFLAGS"] = "-D warnings"
    ran([cargo, "build", "--offline", "--quiet", "--examples"], env, folder)
    return {name: [folder / "target" / "debug" / "examples" / name] for name in NAMES}


def go(prefix: Path, env: Env, folder: Path) -> Commands:
    compiler = tool("go", "golang-go")
    env |= {"GOCACHE": str(folder / "cache"), "GOPATH": str(folder / "path"), "GOTOOLCHAIN": "local"}
    ran([compiler, "build", "-o", folder, *(f"./{name}" for name in NAMES)], env, BINDINGS / "go")
    return {name: [folder / name] for name in NAMES}


def csharp(prefix: Path, env: Env, folder: Path) -> Commands:
    compiler, runtime = tool("mcs", "mono-mcs"), tool("mono", "mono-runtime")
    made: Commands = {}
    for name in NAMES:
        made[name] = [runtime, folder / f"{name}.exe"]
        sources = [BINDINGS / "csharp" / f"{stem}.cs" for stem in (name.title(), "Satchel")]
        ran([compiler, "-warnaserror", f"-out:{made[name][1]}", *sources], env)
    return made


def java(prefix: Path, env: Env, folder: Path) -> Commands:
    compiler, runtime = tool("javac", "default-jdk-headless"), tool("java", "default-jdk-headless")
    home = Path(compiler).resolve().parents[1] / "include"
    if not (home / "jni.h").exists():
        pytest.skip("no jni.h beside javac: apt-get install default-jdk-headless")
    includes = [f"-I{home}", f"-I{home / 'linux'}"]
    native = [embedded.compiler(), "-std=c11", *STRICT, "-shared", "-fPIC", *includes]
    native += [str(BINDINGS / "java" / "satchel_jni.c"), *installed.library_flags(prefix)]
    ran([*native, "-o", folder / "libsatchel_jni.so"], env)
    source = BINDINGS / "java"
    programs = [source / f"{name.title()}.java" for name in NAMES]
    ran([compiler, "-Xlint:all", "-Werror", "-d", folder, "-sourcepath", source, *programs], env)
    command: Command = [runtime, "-cp", folder, f"-Djava.library.path={folder}"]
    return {name: [*command, name.title()] for name in NAMES}


def node(prefix: Path, env: Env, folder: Path) -> Commands:
    runtime = tool("node", "nodejs")
    headers = Path(runtime).resolve().parents[1] / "include" / "node"
    if not (headers / "node_api.h").exists():
        pytest.skip("no node_api.h: apt-get install libnode-dev")
    flags = ["-std=c11", *STRICT, "-shared", "-fPIC", f"-I{headers}", *installed.library_flags(prefix)]
    target = folder / "satchel.node"
    ran([embedded.compiler(), BINDINGS / "node" / "satchel_node.c", *flags, "-o", target], env)
    env["SATCHEL_NODE"] = str(target)
    return {name: [runtime, BINDINGS / "node" / f"{name}.mjs"] for name in NAMES}


def python(prefix: Path, env: Env, folder: Path) -> Commands:
    env |= {"SATCHEL_LIBRARY": env["LD_LIBRARY_PATH"] + "/libsatchel.so", "PYTHONDONTWRITEBYTECODE": "1"}
    return {name: [sys.executable, "-I", "-c", RUN, BINDINGS / "python" / f"{name}.py"] for name in NAMES}


# An isolated interpreter, so that nothing but the standard library is there.
RUN = (
    "import os, runpy, sys; del sys.argv[0]; folder = os.path.dirname(sys.argv[0]); "
    "sys.path = [p for p in sys.path if 'site-packages' not in p] + [folder]; runpy.run_path(sys.argv[0])"
)
BUILDS = (cplusplus, rust, go, csharp, java, node, python)
SOURCES = (
    *(EXAMPLES / f"{name}.{language}" for name in NAMES for language in ("c", "cpp")),
    *(BINDINGS / "rust" / "examples" / f"{name}.rs" for name in NAMES),
    *(BINDINGS / "go" / name / "main.go" for name in NAMES),
    *(BINDINGS / "csharp" / f"{name.title()}.cs" for name in NAMES),
    *(BINDINGS / "java" / f"{name.title()}.java" for name in NAMES),
    *(BINDINGS / "node" / f"{name}.mjs" for name in NAMES),
    *(BINDINGS / "python" / f"{name}.py" for name in NAMES),
    *(BINDINGS / "swift" / f"{name.title()}.swift" for name in NAMES),
)


@pytest.fixture(scope="module", params=BUILDS, ids=lambda make: make.__name__)
def built(
    request: pytest.FixtureRequest, prefix: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Commands, Env]:
    """A language's examples, and the environment in which they run."""
    env = installed.environment(prefix)
    make: Callable[[Path, Env, Path], Commands] = request.param
    return make(prefix, env, tmp_path_factory.mktemp("built")), env


@pytest.fixture(scope="module")
def conversation(bundled_model: Path) -> str:
    """The engine's greedy answers to LINES, each with a line's end."""
    messages: list[Any] = []
    with Model.load(bundled_model, context=512, device="cpu") as model:
        for line in LINES:
            messages.append({"role": "user", "content": line})
            answer = model.chat(messages, temperature=0, max_tokens=installed.TOKENS).read()
            messages.append({"role": "assistant", "content": answer})
    return "".join(message["content"] + "\n" for message in messages[1::2])


def told(command: Command, env: Env) -> subprocess.CompletedProcess[str]:
    """What a chat says to LINES."""
    words = [str(word) for word in command]
    lines = "".join(f"{line}\n" for line in LINES)
    return subprocess.run(words, env=env, input=lines, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.model
def test_an_example_answers_as_the_engine(
    built: tuple[Commands, Env], bundled_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commands, env = built
    command = commands["complete"]
    app, answer = installed.bundled_app(tmp_path_factory, bundled_model)
    assert len(answer) > 100
    assert ran([*command, app, PROMPT], env) == answer
    failed = subprocess.run([*command, bundled_model, PROMPT], env=env, capture_output=True, text=True)
    assert failed.returncode != 0
    assert "holds no plan: run `satchel build" in failed.stderr


@pytest.mark.model
def test_a_chat_answers_as_the_engine(
    built: tuple[Commands, Env],
    conversation: str,
    bundled_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    commands, env = built
    app, _ = installed.bundled_app(tmp_path_factory, bundled_model)
    chats_as(commands["chat"], env, conversation, app, bundled_model)


@pytest.mark.model
def test_a_chat_in_c_answers_as_the_engine(
    prefix: Path,
    conversation: str,
    bundled_model: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    app, _ = installed.bundled_app(tmp_path_factory, bundled_model)
    env = installed.environment(prefix)
    chats_as(c_chat(prefix, tmp_path), env, conversation, app, bundled_model)


def chats_as(command: Command, env: Env, conversation: str, app: Path, unbuilt: Path) -> None:
    done = told([*command, app], env)
    assert (done.returncode, done.stdout) == (0, conversation), done.stderr
    # The options reach the library: it would start this program for a file without a plan.
    failed = told([*command, unbuilt, "/nothing/there"], env)
    assert failed.returncode != 0
    assert "/nothing/there: the worker process can't be started" in failed.stderr


@pytest.mark.model
@pytest.mark.skipif(sys.platform == "win32", reason="the library starts no worker process here")
def test_a_chat_by_a_worker_process(
    conversation: str, prefix: Path, bundled_model: Path, tmp_path: Path
) -> None:
    env = installed.environment(prefix)
    worker = tmp_path / "worker"
    run = shlex.join([*interpreter(), "-m", "satchel"])
    worker.write_text(f'#!/bin/sh\nexec {run} "$@"\n')
    worker.chmod(0o755)
    done = told([*python(prefix, env, tmp_path)["chat"], bundled_model, worker], env)
    assert (done.returncode, done.stdout) == (0, conversation), done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_example_is_short(source: Path) -> None:
    """Twenty lines of an app's own code: without empty ones, comments and lines of brackets alone."""
    lines = [line.strip() for line in source.read_text(encoding="utf-8").splitlines()]
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
CSHARP = {"Engine": "i32", "uint": "u32", "int": "i32", "long": "i64", "float": "f32", "IntPtr": "ptr"}
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
