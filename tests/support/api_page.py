"""Generates docs/api.md: the signatures and docstrings of all that `satchel` exports, and of what its calls
return.

`python tests/support/api_page.py` writes the page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import satchel
from satchel.runtime import kernels
from satchel.runtime.option import Option, options_of

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
SECTIONS = {
    "Models": ("Model", "AsyncModel"),
    "Answers": ("Reply", "ChatReply", "AsyncReply", "AsyncChatReply"),
    "Options": ("Options", "GenerateOptions", "Sampling"),
    "Structured output": (
        *("JsonSchema", "AnyJson", "Regex", "Gbnf", "Lark", "Choice", "ToolCallGrammar", "ToolSchema"),
    ),
    "Errors": ("SatchelError", "ModelError", "RequestError", "DeviceError"),
}
HEAD = """# API reference

<!-- `python tests/support/api_page.py` writes this page; a test keeps it current. -->

All names of `satchel`, from their docstrings; [the library's guide](library.md) shows them at work. Token ids
are numbers of the vocabulary, times are in seconds, log-probabilities are natural logarithms, sizes in memory
are in bytes, and arrays are numpy's, of the shape in parentheses. A wrong argument raises `RequestError`, a
model file that cannot be used `ModelError`, and a backend that fails `DeviceError`; `SatchelError` is the
base of the three.
"""
# Public to Satchel's own packages: a program has no use for them.
INNER = {"adapter_scales", "answer_chat", "chat_prompt", "check_ids", "key", "placement_options"}
INNER |= {"pulse", "served", "service", "style", "submit", "taken", "to", "with_usage"}


class Annotation(str):
    """An annotation in a signature, which inspect would put into quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def signature(name: str, function: Callable[..., Any]) -> str:
    """`name(parameters) -> result` without self and cls."""
    found = inspect.signature(function)
    listed = [
        p if p.annotation is p.empty else p.replace(annotation=Annotation(p.annotation))
        for p in found.parameters.values()
        if p.name not in ("self", "cls")
    ]
    result = found.return_annotation
    back = result if result in (found.empty, "None") else Annotation(result)
    return f"{name}{found.replace(parameters=listed, return_annotation=back)}".removesuffix(" -> 'None'")


def prose(text: str, names: Iterable[str]) -> Iterator[str]:
    """A docstring as Markdown: a line that begins with one of the names and a colon is an item of a list."""
    begins = re.compile(rf"({'|'.join(map(re.escape, names)) or '(?!)'}): ")
    for line in text.splitlines():
        yield begins.sub(r"- `\1`: ", line, count=1) if begins.match(line) else line


def page_class(kind: type) -> bool:
    return any(kind.__name__ in names for names in SECTIONS.values())


def members(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class, by name, without those of a base that is on the page."""
    bases = [b for b in kind.__mro__ if b.__module__.startswith("satchel.")]
    above = {name for b in bases[1:] if page_class(b) for name in vars(b)}
    found: dict[str, Any] = {}
    for base in bases:
        if base is not kind and page_class(base):
            break
        for name, value in vars(base).items():
            called = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
            hidden = name.startswith("_") or name in INNER
            if called and not hidden and not (name in above and undocumented(value)):
                found.setdefault(name, value)
    return found


def undocumented(member: Any) -> bool:
    return not function_of(member).__doc__


def function_of(member: Any) -> Callable[..., Any]:
    """The function of a method or property."""
    found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    assert callable(found)
    return found


def described(owner: str, name: str, member: Any) -> Iterator[str]:
    """A method or property."""
    function = function_of(member)
    yield f"#### {owner}.{name}\n"
    original = inspect.unwrap(function)
    if original is not function:  # AsyncModel's methods of Model
        yield f"As [Model.{name}](#model{name}), awaited.\n"
        return
    if isinstance(member, property):
        yield f"`{owner}.{name}: {function.__annotations__['return']}`\n"
    else:
        begins = "await " if inspect.iscoroutinefunction(function) else ""
        yield f"`{begins}{signature(f'{owner}.{name}', function)}`\n"
    yield from prose(inspect.cleandoc(function.__doc__ or ""), inspect.signature(function).parameters)
    yield ""


@cache
def comments(kind: type) -> dict[str, str]:
    """The comment at each field of a dataclass: at the end of its line, or on the lines above it."""
    lines = [""]
    for base in (b for b in kind.__mro__ if is_dataclass(b)):
        lines += inspect.getsource(base).splitlines()
    found: dict[str, str] = {}
    above: list[str] = []
    for line in lines:
        words = line.strip()
        if field := re.match(r"(\w+): .*?(?:  # (.*))?$", words):
            found.setdefault(field[1], field[2] or " ".join(above))
        above = [*above, words.removeprefix("# ")] if words.startswith("# ") else []
    return found


def field_line(field: Field[Any], comment: str, option: Option | None) -> str:
    """A field with its type, default and meaning."""
    text = option.doc if option else comment[:1].upper() + comment[1:]
    if option and (option.choices or option.has_range):
        text = f"{text.rstrip('.')}. Expected: {option.expected}."
    default = "" if field.default is MISSING else f" = {field.default!r}"
    return f"- `{field.name}: {field.type}{default}`" + (f": {text}" if text else "")


def of_class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    bases = [b.__name__ for b in kind.__bases__ if page_class(b)]
    data = is_dataclass(kind)
    options = options_of(kind) if data else {}
    text = inspect.cleandoc(kind.__doc__ or "")
    if bases:
        yield f"Base: `{bases[0]}`.\n"
    if options:
        text = text.rpartition("\n\n")[0] or text  # the options are listed below
    yield from prose(text, () if data else re.findall(r"^(\w+): ", text, re.M))
    yield ""
    if data:
        notes = comments(kind)
        listed = [f for f in fields(kind) if not f.name.startswith("_") and f.init]
        for one in listed:
            own = options.get(one.name) if one.metadata else None
            yield field_line(one, notes.get(one.name, ""), own)
        yield ""
    for member, value in members(kind).items():
        yield from described(name, member, value)


def exported() -> Iterator[tuple[str, type]]:
    return ((name, getattr(satchel, name)) for names in SECTIONS.values() for name in names)


def results() -> list[type]:
    """The dataclasses of Satchel that the classes on the page return or hold, by name."""
    found: set[type] = set()
    queue = [kind for _, kind in exported()]
    while queue:
        for hint in hints(queue.pop()):
            for kind in parts(hint):
                if isinstance(kind, type) and is_dataclass(kind) and not (page_class(kind) or kind in found):
                    found.add(kind)
                    queue.append(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def hints(kind: type) -> Iterator[Any]:
    """The types of a class's results and fields."""
    for member in members(kind).values():
        yield get_type_hints(inspect.unwrap(function_of(member))).get("return")
    if is_dataclass(kind):
        yield from get_type_hints(kind).values()


def parts(hint: Any) -> Iterator[Any]:
    """A type and those that it is made of."""
    yield hint
    for inner in get_args(hint):
        yield from parts(inner)


def of_kernels() -> Iterator[str]:
    yield "## Custom kernels: satchel.kernels\n"
    yield inspect.cleandoc(kernels.__doc__ or "") + "\n"
    for name in kernels.__all__:
        value = getattr(kernels, name)
        if inspect.isclass(value):
            yield from of_class(f"kernels.{name}", value)
        elif inspect.isfunction(value):
            yield f"### kernels.{name}\n"
            yield f"`{signature(f'kernels.{name}', value)}`\n"
            yield from prose(inspect.cleandoc(value.__doc__ or ""), inspect.signature(value).parameters)
            yield ""


def page() -> str:
    lines = [HEAD]
    for section, names in SECTIONS.items():
        lines.append(f"## {section}\n")
        for name in names:
            lines += of_class(name, getattr(satchel, name))
    lines.append("## What calls return and options hold\n")
    for kind in results():
        lines += of_class(kind.__name__, kind)
    lines += of_kernels()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
