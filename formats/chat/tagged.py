"""Parses tool calls whose arguments are tags: a value is text, and the tool's schema gives its type.

The values become one JSON object, in their order.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from satchel.formats.chat.calls import NAME_MOST
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.walker import Walker

_PYTHON = {"True": "true", "False": "false", "None": "null"}
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
    "null": (type(None),),
}  # fmt: skip
NESTING = 32
BRANCHES = 5000  # branches of a schema that are searched; the limit of structured output
LITERAL_MOST = 1 << 16  # characters of a value that is parsed as a Python literal
# Python string literals, matched in linear time.
_STRING = re.compile(r"(['\"])(?:(?!\1)[^\\]|\\.)*(?:\1|\\?\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tags:
    """The literal parts of <function=NAME> <parameter=KEY> VALUE </parameter> </function> in one format."""

    name_end: str
    parameter: str
    key_end: tuple[str, ...]
    parameter_close: str
    close: str


def tagged(reader: AnswerReader, tags: Tags) -> Steps[None]:
    """Reads one call after the opening of its name."""
    name, found = yield from reader.text_until(tags.name_end, most=NAME_MOST)
    if found is None:
        raise Malformed("it is not complete")
    name = name.strip().strip('"')
    yield reader.begin(name)
    members = Members(reader, name)
    while True:
        marker = yield from reader.at(tags.parameter, tags.close)
        if marker == tags.close:
            break
        if marker is None:
            raise Malformed(f"{tags.parameter} or {tags.close} was expected")
        yield from _parameter(reader, tags, members)
    yield reader.arguments(members.end())
    yield reader.end()


def _parameter(reader: AnswerReader, tags: Tags, members: Members) -> Steps[None]:
    key, found = yield from reader.text_until(*tags.key_end, most=NAME_MOST)
    text, closed = yield from reader.text_until(tags.parameter_close)
    if found is None or closed is None:
        raise Malformed("it is not complete")
    yield reader.arguments(members.add(key.strip().strip('"'), text, found))


class Members:
    """Builds the arguments' object: each `add` returns the JSON text that it appends."""

    def __init__(self, reader: AnswerReader, name: str) -> None:
        self._root = reader.tools.get(name, {})
        schema = self._root.get("properties")
        self._schema: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        self._keys: set[str] = set()

    def add(self, key: str, text: str, ending: str = "") -> str:
        """Appends a member. ending: the text after the key, where string="true" gives the type."""
        text = text.removeprefix("\n").removesuffix("\n")
        return self.put(key, as_json(text, ("string",) if 'string="true"' in ending else self.kinds(key)))

    def put(self, key: str, value: str) -> str:
        """Appends a member. value: JSON text."""
        if key in self._keys:
            raise Malformed(f"the argument {key[:40]!r} came twice")
        lead = ", " if self._keys else "{"
        self._keys.add(key)
        return f"{lead}{_dumped(key)}: {value}"

    def kinds(self, key: str) -> tuple[str, ...]:
        """The types that the tool's schema allows here."""
        return kinds_of(self._of(key), self._root)

    def _of(self, key: str) -> Any:
        return self._schema.get(key, self._root.get("additionalProperties"))

    def end(self) -> str:
        return "}" if self._keys else "{}"


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Resolves a schema's $ref into `root`; {} for a dangling reference."""
    for _ in range(NESTING):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        found: Any = root
        for part in schema["$ref"].removeprefix("#").split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = found
    return {}


def kinds_of(schema: Any, root: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The types that a schema allows; () where it doesn't say. root: the schema that its $refs refer to."""
    found: dict[str, None] = {}
    for one in branches(schema, root or {}):
        kinds = one.get("type")
        if isinstance(kinds, str):
            found[kinds] = None
        elif isinstance(kinds, list):
            found |= dict.fromkeys(kind for kind in kinds if isinstance(kind, str))
        elif isinstance(one.get("enum"), list) and all(isinstance(v, str) for v in one["enum"]):
            found["string"] = None
    return tuple(found)


def branches(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The alternatives of a schema (`anyOf`, `oneOf`, nested), each once. At most BRANCHES are visited."""
    waiting, seen = [schema], set[int]()  # the next one last
    looked = 0
    while waiting and (looked := looked + 1) <= BRANCHES:
        one = resolved(waiting.pop(), root)
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        several = one.get("anyOf", one.get("oneOf"))
        if "type" not in one and "enum" not in one and isinstance(several, list):
            waiting += reversed(several[:BRANCHES])
        else:
            yield one


def as_json(text: str, kinds: tuple[str, ...]) -> str:
    """The text as a JSON value of one of these types (of any type for ()); a JSON string where
    it is not one.
    """
    if kinds == ("string",):
        return _dumped(text)
    raw = text.strip()
    raw = _PYTHON.get(raw, raw)
    walker = Walker()
    end = walker.feed(raw)
    walker.close()
    if walker.error or end != len(raw):
        return _dumped(text) if not kinds or "string" in kinds else _literal(raw, text)
    if kinds and not any(_is(raw, kind) for kind in kinds if kind != "string"):
        return _dumped(text) if "string" in kinds else raw
    return raw


def _literal(raw: str, text: str) -> str:
    """The JSON of a list or object in Python syntax; the text as a JSON string where it is not one."""
    try:
        value = ast.literal_eval(raw) if raw[:1] in ("[", "{") and len(raw) <= LITERAL_MOST else None
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if value else _dumped(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return _dumped(text)


def _is(raw: str, kind: str) -> bool:
    value = json.loads(raw) if raw[0] not in "{[" else ([] if raw[0] == "[" else {})
    wanted = _TYPES.get(kind, (object,))
    return isinstance(value, wanted) and (not isinstance(value, bool) or kind == "boolean")


def _dumped(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The literal parts of <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ... </tool_call> in one
    format.
    """

    key: str
    key_end: str
    value: str
    value_end: str
    end: str

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.key, self.key_end, self.value, self.value_end, self.end)


def paired(reader: AnswerReader, pairs: Pairs, members: Members, marker: str | None) -> Steps[None]:
    """Reads the arguments of a call up to its end. marker: `key` or `end`, already taken."""
    while marker == pairs.key:
        key, closed = yield from reader.text_until(pairs.key_end, most=NAME_MOST)
        if closed is None or (yield from reader.at(pairs.value)) is None:
            raise Malformed(f"{pairs.value} was expected")
        text, closed = yield from reader.text_until(pairs.value_end)
        if closed is None:
            raise Malformed("it is not complete")
        yield reader.arguments(members.add(key.strip(), text))
        marker = yield from reader.at(pairs.key, pairs.end)
    if marker is None:
        raise Malformed(f"{pairs.end} was expected")
    yield reader.arguments(members.end())
    yield reader.end()


def pythonic(reader: AnswerReader, begun: str = "", most: int = 1 << 20) -> Steps[str]:
    """Reads the text of one Python expression in brackets, or of a call, without evaluating it.

    begun: an opening bracket that was already taken.
    """
    if not (yield from reader.skip()):
        raise Malformed("it is not complete")
    taken, depth, quote, escaped = [begun], len(begun), "", False
    while (yield from reader.more()):
        char = reader.take(1)
        taken.append(char)
        if quote:
            quote, escaped = ("" if char == quote and not escaped else quote), char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        if depth > NESTING or len(taken) > most:
            raise Malformed(f"it nests deeper than {NESTING} or has more than {most:,} characters")
        if char in ")]}" and not quote and depth <= 0:
            return "".join(taken)
    raise Malformed("it is not complete")


def python_calls(text: str) -> list[tuple[str, str]]:
    """(name, arguments as JSON) of f(a=1), m.f(a=1) or a list of calls. Malformed for anything else."""
    try:
        tree = ast.parse(_STRING.sub(_escaped, text.strip()), mode="eval").body
        found = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_python_call(node) for node in found]
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError, KeyError) as error:
        raise Malformed(f"it is no list of calls: {str(error)[:80]}") from None


def python_listed(reader: AnswerReader, begun: str = "", known: bool = False) -> Steps[None]:
    """Reads one or a list of Python calls. known: each must name a given tool, otherwise the text is content.
    begun: as in `pythonic`.
    """
    try:
        found = python_calls((yield from pythonic(reader, begun)))
    except Malformed as error:
        raise Malformed("" if known else error.note) from None
    if not found or (known and any(name not in reader.tools for name, _ in found)):
        raise Malformed("" if known else "the list of calls is empty")
    for name, arguments in found:
        yield reader.begin(name)
        yield reader.arguments(arguments)
        yield reader.end()


def _escaped(found: re.Match[str]) -> str:
    """A string literal with its raw newlines escaped: templates write them unescaped."""
    return found[0].replace("\r", "\\r").replace("\n", "\\n")


class _Json(ast.NodeTransformer):
    """Accepts JSON's true, false and null as Python's True, False and None."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant({"true": True, "false": False, "null": None}[node.id])


def _python_call(node: ast.expr) -> tuple[str, str]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and len(node.args) == 1:
        node = node.args[0]  # Gemma writes print(call(...))
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        raise ValueError("calls with named arguments were expected")
    values = {keyword.arg: ast.literal_eval(_Json().visit(keyword.value)) for keyword in node.keywords}
    return ast.unparse(node.func), json.dumps(values, ensure_ascii=False, allow_nan=False)
