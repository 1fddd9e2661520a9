"""Options for structured output: a grammar, a JSON schema, a regular expression, a choice of texts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.cli.options import read_text

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model
    from satchel.runtime.grammar import Spec


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """Structured output. At most one of them may be given."""

    grammar: Annotated[
        str | None, option("--grammar", metavar="GBNF", help="A GBNF grammar that the answer must match.")
    ] = None
    grammar_file: Annotated[
        Path | None,
        option("--grammar-file", metavar="FILE", help="A file with the grammar; *.lark is read as Lark."),
    ] = None
    json_schema: Annotated[
        str | None,
        option("-j", "--json-schema", metavar="SCHEMA", help="A JSON schema that the answer must satisfy."),
    ] = None
    json_schema_file: Annotated[
        Path | None,
        option("-jf", "--json-schema-file", "--schema", metavar="FILE", help="A file with the schema."),
    ] = None
    json_mode: Annotated[bool, option("--json-mode", help="The answer is a JSON object.")] = False
    regex: Annotated[
        str | None, option("--regex", metavar="PATTERN", help="The answer matches this, as a whole.")
    ] = None
    choice: Annotated[
        list[str] | None,
        option("--choice", metavar="TEXT", help="The answer is this, or another --choice."),
    ] = None

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) > 1:
            first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
            raise wrong(second, f"{first} is given already, and an answer takes one grammar")

    def _given(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) not in (None, False)]

    def spec(self) -> Spec | None:
        """The grammar of the options, read from its file where needed; None without one. RequestError for an
        invalid one.
        """
        if not self._given():
            return None
        from satchel.runtime.grammar.sources import check_spec as readable

        spec = self._read()
        readable(spec)
        return spec

    def _read(self) -> Spec:
        from satchel.runtime.grammar import AnyJson, Choice, Gbnf, JsonSchema, Lark, Regex

        if self.grammar_file is not None:
            text = read_text(self.grammar_file)
            return Lark(text) if self.grammar_file.suffix == ".lark" else Gbnf(text)
        if self.json_schema_file is not None:
            return JsonSchema(read_text(self.json_schema_file))
        if self.grammar is not None:
            return Gbnf(self.grammar)
        if self.json_schema is not None:
            return JsonSchema(self.json_schema)
        if self.regex is not None:
            return Regex(self.regex)
        if self.choice is not None:
            return Choice(tuple(self.choice))
        return AnyJson()


def check_spec(model: Model, spec: Spec) -> None:
    """Compiles the grammar into the cache. RequestError where this model's vocabulary cannot express it."""
    from satchel.runtime.grammar import compile_grammar

    compile_grammar(model.tokenizer, spec)
