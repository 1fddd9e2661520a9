"""No circle in C: of headers that include each other, of sources that call each other, or of the CPU
backend's folders; and no entry of hal.h that nobody fills or calls. All is read from the sources, without a
compiler.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

Graph = Mapping[str, set[str]]
ROOT = Path(__file__).parent.parent
FILES = {
    p.relative_to(ROOT).as_posix()
    for p in (ROOT / "cext").rglob("*")
    if p.suffix in (".c", ".h", ".cu", ".cuh", ".cpp")
}
SOURCES = sorted(p for p in FILES if p.endswith(".c"))
NAME = re.compile(r"[A-Za-z_]\w*")
# A definition that other sources see, at the start of a line: a function with its body, or a variable.
DEFINED = re.compile(
    r"^(?!static|extern|typedef|#|\})[A-Za-z_][\w *]*[ *](\w+)(?:\([^;{]*\)\s*\{|[\[\] \w]*(?:=|;))", re.M
)
STATIC = re.compile(r"^static\b[\w *]*?[ *](\w+)\(", re.M)


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def code(path: str) -> str:
    """The text of a file without comments, strings, declarations and include lines."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text(path), flags=re.S)
    plain = re.sub(r'^\s*#\s*include.*|"(\\.|[^"\\\n])*"', '""', plain, flags=re.M)
    return re.sub(r"^(?:extern [^;{}]*|[A-Za-z_][\w *]*\([^;{}]*);", "", plain, flags=re.M)


def unit(path: str) -> tuple[str, str]:
    """The texts of a source, and of the headers that it and they include."""
    return code(path), "\n".join(code(p) for p in sorted(reached(included(), path)))


def defined(source: str) -> set[str]:
    """Names of functions and variables that a source defines for others; macros write those in capitals."""
    return {name for name in DEFINED.findall(source) if name != "main" and not name.isupper()}


def calls(units: Mapping[str, tuple[str, str]]) -> Graph:
    """Which sources each one needs: those that define a name which it or a header of it mentions, and which
    neither defines. units: by path, the source's text and its headers'.
    """
    owners = defaultdict(set)
    for path, (source, _) in units.items():
        for name in defined(source):
            owners[name].add(path)
    needs: dict[str, set[str]] = {}
    for path, texts in units.items():
        own = set().union(*(defined(t) | set(STATIC.findall(t)) for t in texts))
        names = set().union(*(NAME.findall(t) for t in texts))
        needs[path] = set().union(*(owners[n] for n in names - own if n in owners)) - {path}
    return needs


def includes(path: str) -> Iterator[str]:
    """The files of cext that a file includes by a quoted name: the one beside it, the one below cext/cpu, or
    all that are so called.
    """
    for name in re.findall(r'^\s*#\s*include "([^"]+)"', text(path), re.M):
        beside = (Path(path).parent / name).as_posix()
        found = [p for p in (beside, f"cext/cpu/{name}") if p in FILES]
        yield from found[:1] or [p for p in FILES if Path(p).name == name]


@cache
def included() -> Graph:
    return {p: set(includes(p)) for p in FILES}


def reached(graph: Graph, start: str) -> set[str]:
    """The nodes that a way of one edge or more leads to."""
    seen: set[str] = set()
    left = list(graph.get(start, ()))
    while left:
        if (node := left.pop()) not in seen:
            seen.add(node)
            left.extend(graph.get(node, ()))
    return seen


def circles(graph: Graph) -> list[set[str]]:
    """Sets of nodes that reach each other."""
    ends = {node: reached(graph, node) for node in graph}
    found = {frozenset(m for m in ends[n] if n in ends.get(m, ())) for n in graph if n in ends[n]}
    return [set(circle) for circle in sorted(found, key=sorted)]


def test_no_sources_call_each_other() -> None:
    assert circles(calls({p: unit(p) for p in SOURCES})) == []


def test_no_headers_include_each_other() -> None:
    assert circles(included()) == []


def test_no_folders_of_the_cpu_include_each_other() -> None:
    needs: dict[str, set[str]] = defaultdict(set)
    for path in (p for p in FILES if p.startswith("cext/cpu/") and p.count("/") > 2):
        folder = path.split("/")[2]
        found = (p.split("/") for p in includes(path) if p.startswith("cext/cpu/") and p.count("/") > 2)
        needs[folder] |= {parts[2] for parts in found} - {folder}
    assert len(needs) > 5
    assert circles(needs) == []


def test_a_circle_is_seen() -> None:
    sources = {
        "a.c": "static int own(void) {\n    return b();\n}\nint a(int x) {\n    return own();\n}\n",
        "b.c": "const int table[] = {1};\nint b(void) {\n    return c();\n}\n",
        "c.c": "int c(void) {\n    return a(1) + table[0];\n}\n",
        "d.c": "static int a(void) {\n    return 1;\n}\nint d(void) {\n    return a() + b();\n}\n",
    }
    units = {path: (source, "") for path, source in sources.items()} | {"e.c": ("", "static int e = d();\n")}
    needs = {"a.c": {"b.c"}, "b.c": {"c.c"}, "c.c": {"a.c", "b.c"}, "d.c": {"b.c"}, "e.c": {"d.c"}}
    assert calls(units) == needs
    assert circles(needs) == [{"a.c", "b.c", "c.c"}]


def entries() -> list[str]:
    """Functions of the struct hal_backend."""
    return re.findall(r"\(\*(\w+)\)\(", code("cext/include/hal.h").split("hal_backend;")[0])


def test_every_entry_of_the_contract_is_filled_and_called() -> None:
    filled = "".join(text(p) for p in SOURCES if p.endswith("backend.c"))
    called = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "runtime/device").glob("*.py"))
    assert len(entries()) > 20
    assert [n for n in entries() if not re.search(rf"\.{n} =", filled)] == []
    assert [n for n in entries() if not re.search(rf"table\.{n}\b", called)] == []
