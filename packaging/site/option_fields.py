"""Griffe: documents the fields of options and dataclasses, and lists what docstrings say of parameters.

Griffe reads the source and runs nothing. What `option_field` declares (runtime/option.py), text, range and
choices, is therefore asked of the program. A field of another dataclass is documented by the comment at the
end of its line, or on the lines above it. A line of a docstring that begins with a parameter's name and a
colon becomes an item of a list.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable
from typing import Any

import griffe

from satchel.runtime.option import options_of


class OptionFields(griffe.Extension):
    """The extension that mkdocs.yml names."""

    def on_class_members(self, *, node: ast.AST | griffe.ObjectNode, cls: griffe.Class, **_: Any) -> None:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    document(cls, statement, statement.target.id)
                elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                    refer(cls, statement.value)
        listed(cls, re.findall(r"^(\w+): ", cls.docstring.value, re.MULTILINE) if cls.docstring else ())

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        listed(func, [parameter.name for parameter in func.parameters])


def listed(thing: griffe.Object, names: Iterable[str]) -> None:
    """Makes lines `name: text` of a docstring items of a list."""
    found = "|".join(map(re.escape, names))
    if not thing.docstring or not found:
        return
    begins = re.compile(rf"({found}): ")
    lines: list[str] = []
    inside = False
    for line in thing.docstring.value.splitlines():
        begun = begins.match(line)
        if begun and not inside and lines and lines[-1]:
            lines.append("")  # a list begins after an empty line
        inside = bool(line) and (inside or bool(begun))
        lines.append(begins.sub(r"- `\1`: ", line, count=1) if begun else "  " * inside + line)
    thing.docstring.value = "\n".join(lines)


def document(cls: griffe.Class, field: ast.AnnAssign, name: str) -> None:
    """Gives the attribute of a field its docstring, unless it has one."""
    attribute = cls.members.get(name)
    if not isinstance(attribute, griffe.Attribute) or attribute.docstring:
        return
    call = field.value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "option_field":
        text = declared(cls, name)
        attribute.value = ast.unparse(call.args[0])
    else:
        text = comment(cls, field)
        text = text[:1].upper() + text[1:]
    if text:
        attribute.docstring = griffe.Docstring(text, parent=attribute)


def refer(cls: griffe.Class, call: ast.Call) -> None:
    """Documents `chat = _replying(Model.chat, ...)` of AsyncModel by a reference to the method."""
    method = ast.unparse(call.args[0]) if call.args else ""
    name = method.removeprefix("Model.")
    attribute = cls.members.get(name)
    if name != method and isinstance(attribute, griffe.Attribute):
        text = f"As [`{method}`][satchel.{method}], awaited."
        attribute.docstring = griffe.Docstring(text, parent=attribute)
        attribute.value = None


def declared(cls: griffe.Class, name: str) -> str:
    """The sentence of an option, with what it allows."""
    kind = getattr(importlib.import_module(cls.module.path), cls.name)
    option = options_of(kind).get(name)
    text = str(kind.__dataclass_fields__[name].metadata["doc"])
    if option and (option.choices or option.has_range):
        return f"{text.rstrip('.')}. Expected: {option.expected}."
    return text  # of a field that holds options, too


def comment(cls: griffe.Class, field: ast.AnnAssign) -> str:
    """The comment at the end of a field's last line, or that on the lines above the field."""
    lines = cls.lines_collection[cls.filepath]
    last = lines[(field.end_lineno or field.lineno) - 1]
    if found := re.search(r"  # (.*)$", last):
        return found[1]
    above: list[str] = []
    number = field.lineno - 2
    while number >= 0 and lines[number].strip().startswith("# "):
        above.insert(0, lines[number].strip().removeprefix("# "))
        number -= 1
    return " ".join(above)
