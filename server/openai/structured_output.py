"""Structured output: the fields of OpenAI, llama-server and vLLM that give a grammar. A request takes one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from satchel.runtime.grammar.spec import AnyJson, Choice, Gbnf, JsonSchema, Regex, Spec, spec_of
from satchel.server.fields import Body
from satchel.server.problem import Problem

Schema = dict[str, Any] | bool


class SchemaFormat(Body):
    name: str = Field(default="", max_length=256)
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's response_format; json_object with a schema is llama-server's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: Schema | None = Field(default=None, alias="schema")

    def spec(self) -> Spec | None:
        if self.type == "text":
            return None
        if self.type == "json_object":
            return JsonSchema(self.schema_) if self.schema_ is not None else AnyJson()
        schema = self.json_schema.schema_ if self.json_schema else self.schema_
        if schema is None:
            where = "response_format.json_schema.schema"
            raise Problem("invalid", f"{where} is missing", where)
        return JsonSchema(schema)


class StructuredOutputsParams(Body):
    """vLLM's structured_outputs."""

    json_: Schema | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None

    def specs(self, prefix: str = "structured_outputs.") -> dict[str, Spec]:
        spaces = not self.disable_any_whitespace
        found: dict[str, Spec] = {}
        if self.json_ is not None:
            found[f"{prefix}json"] = JsonSchema(self.json_, spaces)
        if self.regex is not None:
            found[f"{prefix}regex"] = Regex(self.regex)
        if self.choice is not None:
            found[f"{prefix}choice"] = Choice(self.choice)
        if self.grammar is not None:
            found[f"{prefix}grammar"] = spec_of(self.grammar)
        if self.json_object:
            found[f"{prefix}json_object"] = AnyJson(spaces=spaces)
        return found


class StructuredOutputFields(Body):
    """Every field that asks for structured output."""

    response_format: ResponseFormat | None = None
    grammar: str | None = None
    json_schema: Schema | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def structured_output(self) -> tuple[str, Spec | None]:
        """The name of the field that was given, and its grammar; ("", None) without one. A Problem where
        there are two.
        """
        found: dict[str, Spec] = {}
        if self.response_format and (grammar := self.response_format.spec()):
            found["response_format"] = grammar
        if self.grammar:  # llama-server's "" is none
            found["grammar"] = Gbnf(self.grammar)
        if self.json_schema is not None:
            found["json_schema"] = JsonSchema(self.json_schema)
        if self.structured_outputs:
            found |= self.structured_outputs.specs()
        guided = StructuredOutputsParams.model_validate(
            {name: getattr(self, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
        )
        found |= guided.specs("guided_")
        if len(found) > 1:
            names = sorted(found)
            raise Problem(
                "invalid", f"{' and '.join(names)} were given: structured output takes one", names[0]
            )
        return next(iter(found.items()), ("", None))
