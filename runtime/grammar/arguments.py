"""The arguments of a forced call as rules of Lark: JSON, tags around values, or NAME=VALUE.

Invariant: arguments that are no JSON object come in the order of the schema's properties, the required ones
always; none but those are written, unless the schema names none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Protocol

from satchel.errors import RequestError
from satchel.formats.chat.calls import NAME_MOST
from satchel.formats.chat.tagged import kinds_of, resolved
from satchel.runtime.grammar.compile_json import with_settings
from satchel.runtime.grammar.schema import step
from satchel.runtime.grammar.styles import JsonArguments, KeywordArguments, TagSyntax, ToolCallFormat
from satchel.runtime.grammar.texts import DEFINITIONS, SCALARS, TextGrammar, Value, literal

KNOWN = {"type", "properties", "required", "additionalProperties", *DEFINITIONS}
FREE = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"  # a name where the schema gives none


class LarkWriterProtocol(Protocol):
    """The part of tools.LarkWriter that arguments need."""

    def text(self, text: str) -> str: ...

    def pieces(self, text: str) -> list[str | int]: ...


@dataclass(frozen=True, slots=True)
class Arguments:
    """Adds the rules that it needs to `lines`, their names beginning with `prefix`. where: for errors."""

    writer: LarkWriterProtocol
    format: ToolCallFormat
    where: str
    prefix: str
    lines: list[str]

    def rule(self, name: str, schema: Mapping[str, Any]) -> str:
        """What stands for the arguments. RequestError for a schema that this format cannot enforce."""
        how = self.format.arguments
        if isinstance(how, JsonArguments):
            return f"%json {with_settings(schema)}"
        if isinstance(how, KeywordArguments) and not all(map(is_name, name.split("."))):
            raise RequestError(
                f"{self.where}: calls of this family are Python's: expected a name of Python's"
            )
        unknown = next((key for key in schema if key not in KNOWN), None)
        if unknown is not None:
            raise RequestError(
                f"{self.where} at {step('#', unknown)}: not supported for arguments as this family writes"
                " them: say it of the properties"
            )
        rest = schema.get("additionalProperties", True)
        properties = dict(schema.get("properties", {}))
        properties |= {key: rest for key in schema.get("required", ()) if key not in properties}
        if not properties:
            return self._free(schema, rest)
        required = frozenset(schema.get("required", ()))
        rules = [(self._named(i, key, value, schema), key in required) for i, (key, value) in
                 enumerate(properties.items())]  # fmt: skip
        return self._chain(rules, how.separator)

    def _add(self, name: str, rule: str) -> str:
        self.lines.append(f"{name}: {rule}")
        return name

    def _chain(self, rules: list[tuple[str, bool]], separator: str) -> str:
        """The arguments in order, those that are not required or not; `separator` between two that come."""
        sep = self.writer.text(separator)
        first, later = '""', '""'
        for i in range(len(rules) - 1, -1, -1):
            rule, required = rules[i]
            follows = f"{rule} {later}"
            if sep:
                first = self._add(f"{self.prefix}_f{i}", follows if required else f"{follows} | {first}")
            more = f"{sep} {follows}" if required else f"({sep} {rule})? {later}"
            later = self._add(f"{self.prefix}_l{i}", more)
        return first if sep else later

    def _free(self, schema: Mapping[str, Any], rest: Any) -> str:
        """Any arguments, where the schema names none."""
        if rest is False:
            return '""'
        rule = self._named(0, None, rest, schema)
        how = self.format.arguments
        if not isinstance(how, JsonArguments) and how.separator:
            return f"({rule} ({self.writer.text(how.separator)} {rule})*)?"
        return f"{rule}*"

    def _named(self, i: int, key: str | None, schema: Any, root: Mapping[str, Any]) -> str:
        """One argument; key None: a name of the answer's own."""
        where = f"{self.where} at {step('#/properties', '*' if key is None else key)}"
        how = self.format.arguments
        if isinstance(how, TagSyntax):
            return self._tagged(how, i, key, schema, root, where)
        if key is not None and not is_name(key):
            raise RequestError(f"{where}: calls of this family are Python's: expected a name of Python's")
        name = FREE if key is None else self.writer.text(key)
        return self._add(f"{self.prefix}_a{i}", f'{name} "=" {_keyword(schema, root)}')

    def _tagged(
        self, tags: TagSyntax, i: int, key: str | None, schema: Any, root: Mapping[str, Any], where: str
    ) -> str:
        if key is not None and not can_be_tagged(key, tags):
            raise RequestError(f"{where}: its name can't stand in a tag: use letters, digits and _")
        texts = TextGrammar(root, tags.close, tags.exact, bool(tags.text), where)
        value = texts.value(schema)
        text = self.writer.text
        name = FREE if key is None else text(key)
        parts = []
        if value.text:
            parts.append(f"{text(tags.text or tags.value)} {self._ended(i, value, tags)}")
        if value.json:
            parts.append(f"{text(tags.value)} %json {value.json} {text(tags.end)}")
        begun = f"{text(tags.key)} {name} ({' | '.join(parts)}) {text(tags.behind)}"
        return self._add(f"{self.prefix}_a{i}", begun)

    def _ended(self, i: int, value: Value, tags: TagSyntax) -> str:
        """A terminal for the text, its end included: so nothing else can be where it ends."""
        pieces = self.writer.pieces(tags.text_end or tags.end)
        count = next((at for at, piece in enumerate(pieces) if isinstance(piece, int)), len(pieces))
        terminal = f"{self.prefix.upper()}_V{i}"
        self._add(terminal, f"({value.text}) {shown(pieces[:count])}")
        return f"{terminal}{'' if count else '?'} {shown(pieces[count:])}"


def shown(pieces: Sequence[str | int]) -> str:
    """Texts and tokens in Lark."""
    return " ".join(literal(piece) if isinstance(piece, str) else f"<[{piece}]>" for piece in pieces)


def is_name(text: str) -> bool:
    return text.isascii() and text.isidentifier() and not iskeyword(text)


def can_be_tagged(key: str, tags: TagSyntax) -> bool:
    """Whether a name is read back from its tag."""
    plain = bool(key) and key == key.strip().strip('"') and len(key) < NAME_MOST and "\n" not in key
    if tags.separator:  # a name stands without a tag
        return is_name(key)
    return plain and not any(char in key for char in "<>")


def _keyword(schema: Any, root: Mapping[str, Any]) -> str:
    """A value in a call of Python's; booleans by themselves also as Python writes them."""
    if isinstance(schema, bool):
        return f"%json {with_settings(schema)}"
    meant = resolved(schema, root)
    if kinds_of(meant, root) == ("boolean",) and not {"enum", "const", "anyOf", "oneOf"} & {*meant}:
        return SCALARS["boolean"]
    shared = {key: root[key] for key in DEFINITIONS if key in root}
    return f"%json {with_settings(shared | dict(schema))}"
