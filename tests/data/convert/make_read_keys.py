"""Writes read_keys.json beside this file: which keys of its configuration the code of each class that is
converted reads, as transformers' sources have it. Nothing of them is run.

Run from the repository's root with transformers installed: python tests/data/convert/make_read_keys.py
"""

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from satchel.runtime.weights.sources import mappings

HERE = Path(__file__).parent
CONFIGS = ("config", "self.config", "text_config", "self.text_config")


def named(tree: ast.Module) -> dict[str, ast.AST]:
    """Classes and functions of a module."""
    return {n.name: n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def reached(start: str, known: dict[str, ast.AST]) -> Iterator[ast.AST]:
    """What a class uses of its module, and what that uses."""
    waiting, seen = [start], {start}
    while waiting:
        node = known[waiting.pop()]
        yield node
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in known} - seen
        seen |= used
        waiting += used


def keys_of(node: ast.AST) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute) and ast.unparse(n.value) in CONFIGS:
            yield n.attr
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "getattr" and len(n.args) > 1:
            of, key = n.args[:2]
            if ast.unparse(of) in CONFIGS and isinstance(key, ast.Constant):
                yield str(key.value)


def main() -> None:
    found = {}
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.submodule_search_locations
    wanted = {name for mapping in mappings() for name in mapping.classes}
    for path in sorted(Path(spec.submodule_search_locations[0]).glob("models/*/modeling_*.py")):
        text = path.read_text()
        if not any(f"class {name}(" in text for name in wanted):
            continue
        known = named(ast.parse(text))
        for name in wanted & known.keys():
            keys = {key for node in reached(name, known) for key in keys_of(node)}
            found[name] = sorted(key for key in keys if not key.startswith("_"))
    (HERE / "read_keys.json").write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    print(len(found), "of", len(wanted), "classes;", *sorted(wanted - found.keys()))


if __name__ == "__main__":
    main()
