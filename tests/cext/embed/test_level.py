"""Level 1 of satchel.h is frozen: what a program was compiled against stays, and a program that was compiled
once runs with today's library.

`level1/` holds the level's header; `abi.json`: its functions, numbers, and each field's place, which
`PYTHONPATH=tests/support python tests/cext/embed/test_level.py > abi.json` writes; `program.c`, and
`program.x86_64`, which is kept as it was made from it, for what a compiler does is part of the promise:

    gcc -std=c11 -Os -s -fno-asynchronous-unwind-tables -Wl,--build-id=none,-z,noseparate-code \
        -I level1 level1/program.c -o level1/program.x86_64 build/py3-*/embed/libsatchel.so

None of these files ever changes. A level 2 gets a folder of its own.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import embedded
import pytest
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

LEVEL = Path(__file__).parent / "level1"
HEADER = embedded.EMBED / "include" / "satchel.h"
# Sizes of pointers, and the flags by which gcc lays structs out so: 32 as WebAssembly and Arm do.
LAYOUTS = {"64": ("-m64",), "32": ("-m32", "-malign-double")}
BINARY = LEVEL / "program.x86_64"


def plain(header: Path) -> str:
    """The header without comments and lines of the preprocessor."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
    return re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.M)


def functions(header: Path) -> dict[str, str]:
    """Prototypes by name, in one line each."""
    found = re.findall(r"SATCHEL_API ([^;]+);", plain(header))
    lines = [re.sub(r"\s*\*\s*", " *", " ".join(words.split())).replace("* *", "**") for words in found]
    return {re.search(r"(satchel_\w+)\(", line)[1]: line for line in lines}  # type: ignore[index]


def constants(header: Path) -> list[str]:
    bodies = re.findall(r"\benum\s*\{([^}]*)\}", plain(header))
    return [part.split("=")[0].strip() for body in bodies for part in body.split(",") if part.strip()]


def structs(header: Path) -> dict[str, list[str]]:
    """Names of fields by struct."""
    found = re.findall(r"typedef struct \{([^}]*)\}\s*(satchel_\w+);", plain(header))
    return {name: re.findall(r"(\w+)(?:\[\d+\])?\s*(?=[,;])", body) for body, name in found}


def values(header: Path, expressions: list[str], flags: tuple[str, ...]) -> list[int]:
    """What a compiler makes of expressions of the header."""
    rows = "".join(f"    {one},\n" for one in expressions)
    source = f'#include <stddef.h>\n#include "{header}"\nconst int table[] = {{\n{rows}}};\n'
    options = ["-std=c11", "-ffreestanding", "-S", "-x", "c", "-", "-o", "-", *flags]
    done = subprocess.run([embedded.compiler(), *options], input=source, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the compiler has no {' '.join(flags)}: {done.stderr[:200]}")
    told = done.stdout[done.stdout.index("table:") :]
    found = [
        int(number) if kind == "long" else 0
        for kind, numbers in re.findall(r"\.(long|zero)\s+(-?\d+)", told)
        for number in ([numbers] if kind == "long" else ["0"] * (int(numbers) // 4))
    ]
    assert len(found) == len(expressions), told
    return found


def described(header: Path) -> dict[str, Any]:
    """What level of a header's programs rely on: the content of abi.json."""
    names, fields = constants(header), structs(header)
    layouts: dict[str, Any] = {}
    for bits, flags in LAYOUTS.items():
        places = [(struct, field) for struct, own in fields.items() for field in own]
        asked = [f"sizeof({struct})" for struct in fields]
        for struct, field in places:
            asked += [f"offsetof({struct}, {field})", f"sizeof((({struct} *)0)->{field})"]
        found = values(header, asked, flags)
        sizes, rest = found[: len(fields)], found[len(fields) :]
        made: dict[str, Any] = {name: {"": size} for name, size in zip(fields, sizes, strict=True)}
        for (struct, field), at in zip(places, range(0, len(rest), 2), strict=True):
            made[struct][field] = rest[at : at + 2]
        layouts[bits] = made
    numbers = dict(zip(names, values(header, names, LAYOUTS["64"]), strict=True))
    return {"functions": functions(header), "constants": numbers, "layouts": layouts}


def skip_elsewhere() -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the layouts are asked of a compiler for x86")


def lacking(today: dict[str, Any], frozen: dict[str, Any]) -> list[str]:
    """What of a frozen level a header has not."""
    wrong = []
    for kind in ("functions", "constants"):
        wrong += [name for name, told in frozen[kind].items() if today[kind].get(name) != told]
    for bits, known in frozen["layouts"].items():
        for struct, fields in known.items():
            now = today["layouts"][bits].get(struct, {})
            wrong += [f"{struct} ({bits})"] if now.get("", 0) < fields[""] else []
            wrong += [f"{struct}.{f} ({bits})" for f, at in fields.items() if f and now.get(f) != at]
    return wrong


def test_todays_header_has_all_of_level_1() -> None:
    skip_elsewhere()
    frozen = json.loads((LEVEL / "abi.json").read_text())
    assert described(LEVEL / "satchel.h") == frozen  # the frozen header is the one that was frozen
    assert lacking(described(HEADER), frozen) == []
    assert len(frozen["functions"]) > 30 and len(frozen["layouts"]["64"]) > 6


def test_a_change_is_found(tmp_path: Path) -> None:
    skip_elsewhere()
    frozen = json.loads((LEVEL / "abi.json").read_text())
    for before, after, what in (
        ("SATCHEL_E_LONG = -7", "SATCHEL_E_LONG = -17", "SATCHEL_E_LONG"),
        ("int32_t top_k;", "int64_t top_k;", "satchel_generate_options.top_k (64)"),
        ("satchel_close(satchel_model *)", "satchel_close(const satchel_model *)", "satchel_close"),
        ("int32_t thinking_begin, zero;", "int32_t thinking_begin;", "satchel_generate_options.zero (32)"),
    ):
        text = (LEVEL / "satchel.h").read_text()
        assert text.count(before) == 1
        (tmp_path / "satchel.h").write_text(text.replace(before, after))
        assert what in lacking(described(tmp_path / "satchel.h"), frozen)


def test_the_map_names_level_1_under_its_node() -> None:
    text = (embedded.EMBED / "exports.map").read_text()
    node = re.search(r"SATCHEL_1 \{(.*?)\}", text, re.S)
    assert node is not None
    assert set(re.findall(r"\b(satchel_\w+);", node[1])) == {*functions(LEVEL / "satchel.h")}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("level")
    with open_gguf(write_model(folder / "m.gguf", "qwen3")) as gguf:
        build(gguf, folder / "app.gguf")
    return folder / "app.gguf"


def ran(program: Path, app: Path, folder: Path, **env: str) -> list[str]:
    command = [str(program), str(app), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=env or None)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def library() -> Path:
    """The folder where `make test` built the library."""
    found = [p for p in sorted(embedded.ROOT.glob("build/py3-*/embed")) if (p / "libsatchel.so.1").exists()]
    if not found:
        pytest.skip("libsatchel was not built: make .venv/ready-to-test")
    return found[0]


def compiled(header: Path, library: Path, target: Path) -> Path:
    """The program, compiled against a header and linked with today's library."""
    flags = [
        "-std=c11",
        *embedded.WARNINGS,
        f"-I{header.parent}",
        str(LEVEL / "program.c"),
        "-o",
        str(target),
    ]
    link = [f"-L{library}", "-lsatchel", f"-Wl,-rpath,{library}"]
    done = subprocess.run([embedded.compiler(), *flags, *link], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def test_a_program_compiled_against_level_1(app: Path, library: Path, tmp_path: Path) -> None:
    lines = ran(compiled(LEVEL / "satchel.h", library, tmp_path / "frozen"), app, tmp_path)
    assert lines == ran(compiled(HEADER, library, tmp_path / "today"), app, tmp_path)
    assert lines[0] == "level 1"
    assert "facts 64 2 288 1 0 0" in lines
    assert sum(line.startswith("reply ") for line in lines) == 5
    failed = {line.split(" -")[0] for line in lines if re.match(r"[\w ]+ -\d", line)}
    assert failed == {
        "open nothing", "open_memory", "embed", "grammar_named", "grammar_text", "load", "chat_render nothing"
    }  # fmt: skip


def test_the_program_that_was_kept(app: Path, library: Path, tmp_path: Path) -> None:
    if platform.machine() not in ("x86_64", "AMD64") or platform.libc_ver()[0] != "glibc":
        pytest.skip("the program is for Linux on x86-64 with glibc")
    kept = ran(BINARY, app, tmp_path, LD_LIBRARY_PATH=str(library))
    assert kept == ran(compiled(HEADER, library, tmp_path / "today"), app, tmp_path)


if __name__ == "__main__":
    json.dump(described(LEVEL / "satchel.h"), sys.stdout, indent=1, sort_keys=True)
    print()
