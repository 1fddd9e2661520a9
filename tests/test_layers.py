"""Rules of the code base that a machine can check: imports between packages, sizes, equal names, forbidden
texts.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from packages import PACKAGES

ROOT = Path(__file__).parent.parent
BELOW = {
    "errors": {"errors"},
    "quant": {"errors", "quant"},
    "formats": {"errors", "quant", "formats"},
    "runtime": {"errors", "quant", "formats", "runtime"},
    "store": {"errors", "quant", "formats", "store"},
    "server": {"errors", "quant", "formats", "runtime", "store", "server"},
    "cli": {"errors", "quant", "formats", "runtime", "store", "server", "cli"},
    "cext": {"cext"},
}
SEES_CEXT = {
    "runtime/device/device.py",
    "runtime/device/group.py",
    "runtime/device/libraries.py",
    "runtime/compiler/lower.py",
    "runtime/aot/records.py",
    "quant/native/library.py",
}
SEES_STORE = {"runtime/api/model_file.py"}
# What a model's file may import: the parts of layers, and no device, plan or engine.
MODEL_SEES = {"satchel.runtime.graph", "satchel.runtime.ops"}
MODEL_SEES |= {
    f"satchel.runtime.layers.{name}"
    for name in ("arch", "blocks", "latent", "indexer", "mixture", "recurrent", "delta")
}
MODEL_SEES |= {f"satchel.formats.convert.{name}" for name in ("mapping", "hybrid")}
MODEL_SEES |= {f"satchel.runtime.models.{p.stem}" for p in (ROOT / "runtime/models").glob("*.py")}
FUNCTION_LINES = 60


def files(*suffixes: str, folders: tuple[str, ...] = (*PACKAGES, "tests", "bench")) -> list[str]:
    """Files of these folders by path from the root, without generated ones."""
    found = (p.relative_to(ROOT) for folder in folders for p in (ROOT / folder).rglob("*"))
    kept = (p.as_posix() for p in found if p.suffix in suffixes and "__pycache__" not in p.parts)
    return sorted(p for p in kept if p != "cext/_hal.py")


PYTHON, C = files(".py"), files(".c", ".h")


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


LOOKED_AT = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HOLDING = ("body", "orelse", "finalbody", "handlers", "cases")  # fields of a statement that hold others
Kind = TypeVar("Kind", bound=ast.AST)


@cache
def parsed(source: str) -> tuple[str | None, list[ast.AST]]:
    """A source's docstring, and its statements of the kinds that a rule looks at. It is walked once for all
    rules, and expressions are not: they hold no statement.
    """
    tree = ast.parse(source)
    found, waiting = list[ast.AST](), list[ast.AST]([tree])
    for node in waiting:  # grows meanwhile
        if isinstance(node, LOOKED_AT):
            found.append(node)
        for name in HOLDING:
            waiting.extend(getattr(node, name, ()))
    return ast.get_docstring(tree), found


def nodes(source: str, *kinds: type[Kind]) -> list[Kind]:
    return [node for node in parsed(source)[1] if isinstance(node, kinds)]


def offenders(paths: list[str], rule: Callable[[str, str], list[str]]) -> dict[str, list[str]]:
    """The rule's findings, by file."""
    return {path: wrong for path in paths if (wrong := rule(path, text(path)))}


def imported(source: str) -> Iterator[str]:
    """Modules that a source imports, also inside functions."""
    for node in nodes(source, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            # `from satchel import cext` and `from satchel.runtime import ops` name modules.
            names = [f"{module}.{a.name}" for a in node.names]
            yield from sorted({n if module == "satchel" or is_module(n) else module for n in names})


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split(".")[1:])
    return name.startswith("satchel.") and (path.is_dir() or path.with_suffix(".py").is_file())


def wrong_imports(path: str, source: str) -> list[str]:
    """Imports of the package's own modules that the rules forbid for this file."""
    own = [m for m in imported(source) if m.split(".")[0] == "satchel"]
    package = path.split("/")[0]
    if path == "runtime/package.py":  # becomes satchel/__init__.py, above every package
        return []
    if path == "runtime/graph.py":
        return own
    if path.startswith("runtime/models/"):
        return [m for m in own if m not in MODEL_SEES]
    allowed = BELOW[package] | ({"cext"} if path in SEES_CEXT else set())
    allowed |= {"store"} if path in SEES_STORE else set()
    return [m for m in own if m.split(".")[1] not in allowed]


def test_imports_flow_downwards() -> None:
    assert offenders([p for p in PYTHON if p.split("/")[0] in PACKAGES], wrong_imports) == {}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("quant/formats/q8_0.py", "from satchel.formats.gguf import open_gguf"),
        ("formats/a.py", "import satchel.runtime.ops"),
        ("runtime/weights/weights.py", "from satchel import cext"),
        ("runtime/kv.py", "def f():\n    from satchel.cli import main"),
        ("runtime/api/model.py", "from satchel.store.resolve import model_path"),
        ("runtime/graph.py", "from satchel.quant import FORMATS"),
        ("runtime/models/llama.py", "from satchel.runtime.device.device import Device"),
        ("runtime/models/llama.py", "from satchel.runtime import device"),
        ("cext/__init__.py", "from satchel.quant import FORMATS"),
    ],
)
def test_a_wrong_import_is_seen(path: str, source: str) -> None:
    assert len(wrong_imports(path, source)) > 0


def module_name(path: str) -> str:
    return ".".join(("satchel", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


def imports_by_module() -> dict[str, set[str]]:
    """The package's modules, and what each imports of them: at its top, in functions, for types alone."""
    paths = [p for p in PYTHON if p.split("/")[0] in PACKAGES]
    modules = {module_name(p) for p in paths}
    return {module_name(p): set(imported(text(p))) & modules - {module_name(p)} for p in paths}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each imports each other one, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, waiting = set[str](), [start]
        while waiting:
            new = imports[waiting.pop()] - found
            found |= new
            waiting += new
        reached[start] = found
    groups = ({b for b in reached[a] if a in reached[b]} for a in imports if a in reached[a])
    return [list(group) for group in sorted({tuple(sorted(group)) for group in groups})]


def test_no_modules_import_each_other() -> None:
    assert circles(imports_by_module()) == []


def test_a_circle_is_seen() -> None:
    imports = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": set[str](), "e": {"f"}, "f": {"e", "a"}}
    assert circles(imports) == [["a", "b", "c"], ["e", "f"]]


@pytest.mark.parametrize(
    "source",
    [
        "from satchel.quant import FORMATS",
        "def f():\n    import satchel.quant",
        "if TYPE_CHECKING:\n    from satchel import quant",
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str) -> None:
    assert list(imported(source)) == ["satchel.quant"]


def test_tests_stand_in_the_rooms_of_what_they_test() -> None:
    tests = [Path(p).relative_to("tests") for p in PYTHON if re.match(r"tests/.*/test_\w+\.py", p)]
    rooms = {p.parent for p in tests if p.parts[0] in PACKAGES}
    assert [r.as_posix() for r in rooms if not (ROOT / r).is_dir()] == []
    assert [p.as_posix() for p in tests if p.parent.as_posix() in ("runtime", "quant")] == []


def shared_names(paths: list[str]) -> dict[str, list[str]]:
    """Files by the name of a class that several of them define."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for name in {n.name for n in nodes(text(path), ast.ClassDef)}:
            found.setdefault(name, []).append(path)
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_classes_share_a_name() -> None:
    assert shared_names([p for p in PYTHON if p.split("/")[0] in PACKAGES]) == {}


def test_a_shared_name_is_seen() -> None:
    both = ["runtime/adapters/lora.py", "tests/test_layers.py"]
    assert shared_names(both) == {"Adapter": both}


class Adapter:
    """Has the name of a class of runtime/adapters/lora.py."""


def long_functions(path: str, source: str) -> list[str]:
    """Names of functions over the limit: Python's by the syntax tree, C's by braces."""
    if path.endswith(".py"):
        functions = nodes(source, ast.FunctionDef, ast.AsyncFunctionDef)
        spans = [(f.name, f.lineno, f.end_lineno or f.lineno) for f in functions]
    else:
        spans = list(c_functions(source))
    return [name for name, first, last in spans if last - first + 1 > FUNCTION_LINES]


def c_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """(head, first line, last line) of each brace block at file level whose head holds a parenthesis."""
    source = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), source, flags=re.S)
    source = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: "\n" * m[0].count("\n"), source, flags=re.M)
    source = re.sub(r'"(\\.|[^"\\\n])*"|\'(\\.|[^\'\\\n])+\'|//[^\n]*', "", source)
    depth, first, head, since = 0, 0, "", 1
    for number, line in enumerate(source.splitlines(), 1):
        for part in re.findall(r"[{};]|[^{};]+", line):
            if part == "{":
                if depth == 0:
                    first = since
                depth += 1
            elif part == "}":
                depth -= 1
                if depth == 0:
                    if "(" in head:
                        yield head.strip(), first, number
                    head, since = "", number + 1
            elif depth == 0:
                blank = not head.strip()
                head, since = ("", number + 1) if part == ";" else (head + part, number if blank else since)


def test_functions_are_short() -> None:
    assert offenders([*PYTHON, *C], long_functions) == {}


@pytest.mark.parametrize("lines", [FUNCTION_LINES, FUNCTION_LINES + 1])
def test_a_long_function_is_seen(lines: int) -> None:
    python = "def f():\n" + "    pass\n" * (lines - 1)
    c = "#define X 1\nint a = 1;\nstatic void f(int x) {\n" + '  g("}");\n' * (lines - 2) + "}\n"
    expected = int(lines > FUNCTION_LINES)
    assert (len(long_functions("a.py", python)), len(long_functions("a.c", c))) == (expected, expected)


def test_files_say_what_they_are() -> None:
    assert [p for p in PYTHON if not parsed(text(p))[0]] == []
    assert [p for p in C if not text(p).lstrip().startswith("/*")] == []


def test_every_format_has_both_sides() -> None:
    from satchel.quant import FORMATS

    headers = {Path(p).stem for p in C if p.startswith("cext/quant/")} - {"half"}
    assert headers == set(FORMATS)


def ops_by_name(path: str, source: str) -> list[str]:
    """Look-ups of the ops table by a literal name, where `ops.name` would be visible to tools."""
    if "OPS" not in source:
        return []
    subscripts = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Subscript))
    tables = (n for n in subscripts if ast.unparse(n.value).split(".")[-1] == "OPS")
    return [str(n.slice.value) for n in tables if isinstance(n.slice, ast.Constant)]


def test_ops_are_called_not_looked_up() -> None:
    assert offenders(PYTHON, ops_by_name) == {}


def test_an_op_that_is_looked_up_is_seen() -> None:
    source = 'OPS["add"](x, y)\nops.OPS["mul"].define(x, y)\nOPS[node.op](x)\nops.add(x, y)\n'
    assert ops_by_name("runtime/a.py", source) == ["add", "mul"]


def test_ops_are_those_of_the_header() -> None:
    from satchel.runtime.ops import OPS

    enum = re.search(r"enum \{([^}]*HAL_N_OPS[^}]*)\}", text("cext/include/hal.h"))
    assert enum
    names = {n.lower() for n in re.findall(r"HAL_OP_(\w+)", enum[1])}
    assert names == {name for name, op in OPS.items() if not op.view}


# Concatenated, so that this file does not match.
SPLIT = (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"))
LATER = re.compile("|".join(rf"\b{a}{b}\b" for a, b in SPLIT))
MACHINE = re.compile("|".join(rf"(?<![\w.])/{name}/" for name in ("work", "root", "home", "tmp")))


def test_nothing_is_left_for_later_and_no_machine_is_named() -> None:
    texts = [*PYTHON, *C, *files(".md", ".txt", ".toml", folders=(*PACKAGES, "docs", "models"))]
    assert offenders(texts, lambda _, source: LATER.findall(source)) == {}
    assert offenders(texts, lambda _, source: MACHINE.findall(source)) == {}


def test_what_is_left_for_later_is_seen() -> None:
    assert LATER.search("# " + "TO" + "DO: more")
    assert MACHINE.search("open('/" + "work/x')")
    assert not MACHINE.search("https://example.org/home/x, a/work/b")
