"""Forced calls in every family's format: the parser reads back everything that a model may write, as a call
that its tool's schema allows; and everything that templates write of calls can be written.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import toy_vocab

from satchel.errors import RequestError
from satchel.formats.chat import ChatParser, Collected, Style
from satchel.formats.chat.families.gemma import FORMS as GEMMA
from satchel.formats.chat.families.pythonic import FENCE, LINES, LISTS
from satchel.formats.chat.family import families
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.grammar import Grammar, ToolCallGrammar, ToolSchema, compile_grammar
from satchel.runtime.grammar.check import fits
from satchel.runtime.grammar.styles import STYLES
from satchel.runtime.grammar.texts import FORMATS, searched, slashed
from satchel.runtime.grammar.validate import Validator

MARKERS = (
    "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> </parameter> </function> ｜DSML｜"
    " <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|> <|tool_calls_section_begin|>"
    " <|tool_calls_section_end|>"
)
TEXT: dict[str, Any] = {"type": "string"}
DEEP: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "of": {"type": "array", "items": TEXT, "maxItems": 2}},
    "required": ["on"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": TEXT,
        "days": {"type": "integer", "minimum": -3, "maximum": 40},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "deep": DEEP,
        "unit": {"enum": ["km", "mi", 'a "b"']},
        "note": {"type": ["string", "null"]},
        "code": {"$ref": "#/$defs/code"},
    },
    "required": ["city", "days", "on"],
    "additionalProperties": False,
    "$defs": {"code": {"type": "string", "pattern": "^[0-9]{2}$"}},
}
TOOLS = (ToolSchema("weather", SCHEMA), ToolSchema("stop", {"type": "object", "additionalProperties": False}))
GIVEN: dict[str, Any] = {
    "city": "Zürich 'x' {a} [b]",
    "days": -2,
    "ratio": 1.5,
    "on": True,
    "deep": {"on": False, "of": ["a", 'b "c"']},
    "unit": 'a "b"',
    "note": "line one\n  line two ",
    "code": "07",
}
CALL_FORMATS = [(style, begin) for style, formats in STYLES.items() for begin in formats]
TAGGED = [
    ("qwen_xml", ""),
    ("glm", ""),
    ("hunyuan", ""),
    ("minicpm", ""),
    ("gemma", "<|tool_call>"),
    *(("dsml", begin) for begin in STYLES["dsml"]),
]


@cache
def vocabulary(kind: int = 0) -> Tokenizer:
    """Bytes, and the markers as tokens of this kind where one is given."""
    plain = toy_vocab.byte_level()
    if not kind:
        return build_tokenizer(plain)
    marks = MARKERS.split()
    tokens = [*plain["tokenizer.ggml.tokens"], *marks]
    types = np.array([*plain["tokenizer.ggml.token_type"], *[kind] * len(marks)], np.int32)
    return build_tokenizer(toy_vocab.byte_level({"tokens": tokens, "token_type": types}))


VOCABULARIES = {"as text": 0, "as tokens": toy_vocab.USER_DEFINED}


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=True, bos=False)


def accepted(tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    constraint = grammar.constraint()
    try:
        for token in ids_of(tokenizer, text):
            constraint.accept(token)
    except RequestError:
        return False
    return constraint.complete


def read(style: str, text: str, tools: tuple[ToolSchema, ...]) -> list[tuple[str, Any]]:
    if style == "json":
        return [(call["name"], call["arguments"]) for call in map(json.loads, text.split("\n"))]
    known = [{"name": tool.name, "parameters": tool.parameters} for tool in tools]
    parser = ChatParser(Style(family=style), tools=known)
    found = Collected().add_all([*parser.feed(text), *parser.finish()])
    assert not found.notes and not found.content.strip(), (found.notes, found.content, text)
    return [(call.name, json.loads(call.arguments)) for call in found.tool_calls]


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tags(given: dict[str, Any], before: str, between: str, after: str) -> str:
    return "".join(f"{before}{k}{between}{shown(v)}{after}" for k, v in given.items())


def told(given: dict[str, Any]) -> str:
    lead = '<｜DSML｜parameter name="'
    return "".join(
        f'{lead}{k}" string="{str(isinstance(v, str)).lower()}">{shown(v)}</｜DSML｜parameter>\n'
        for k, v in given.items()
    )


def written(style: str, begin: str, name: str, given: dict[str, Any]) -> str:
    """A call as the models of a family write it."""
    raw = json.dumps(given, ensure_ascii=False)
    call = f'{{"name": "{name}", "arguments": {raw}}}'
    if style == "listed":
        ends = {"<TOOLCALL>": "</TOOLCALL>", "<tool_calls>": "</tool_calls>"}
        if begin == "<|tools_prefix|>":
            return f'{begin}[{{"{name}": {raw}}}]<|tools_suffix|>'
        if begin in ("<|function_call|>", "<function_call>", "<longcat_tool_call>", "<|action_start|>"):
            format = STYLES[style][begin]
            return f"{format.open}{format.before.partition('{')[0]}{call}{format.after[1:]}"
        return f"{begin}[{call}]{ends.get(begin, '')}"
    if style == "dsml":
        prefix = "｜DSML｜" if "DSML" in begin else ""
        inner = told(given) if prefix else tags(given, '<parameter name="', '">', "</parameter>\n")
        close = begin.replace("<", "</", 1)
        return f'{begin}\n<{prefix}invoke name="{name}">\n{inner}</{prefix}invoke>\n{close}'
    if style == "pythonic":
        keys = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in given.items())
        if begin == FENCE:
            return f"<|tool_call_start|>\n{FENCE}\n{name}({keys})\n```\n<|tool_call_end|>"
        if end := LINES.get(begin, ""):
            return f"{begin}\n{name}({keys})\n{end}"
        return f"{begin}[{name}({keys})]{LISTS.get(begin, '')}"
    if style == "gemma":
        end, quote = GEMMA[begin]
        members = ",".join(
            f"{k}:{quote}{v}{quote}" if isinstance(v, str) else f"{k}:{shown(v)}" for k, v in given.items()
        )
        return f"{begin}call:{name}{{{members}}}{end}"
    if style == "qwen_xml":
        inner = tags(given, "<parameter=", ">\n", "\n</parameter>\n")
        tag = begin or "<tool_call>"
        return f"{tag}\n<function={name}>\n{inner}</function>\n{tag.replace('<', '</')}"
    if style == "deepseek":
        fenced = (
            f"function<｜tool▁sep｜>{name}\n```json\n{raw}\n```" if begin else f"{name}<｜tool▁sep｜>{raw}"
        )
        return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{fenced}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    if style == "mistral":
        return f"[TOOL_CALLS]{name}[ARGS]{raw}" if begin else f"[TOOL_CALLS][{call}]"
    return alone(style, name, given, raw, call)


def alone(style: str, name: str, given: dict[str, Any], raw: str, call: str) -> str:
    """A call of a family that has one format."""
    return {
        "functionary": f"{name}\n{raw}",
        "kimi": f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:3"
        f"<|tool_call_argument_begin|>{raw}<|tool_call_end|><|tool_calls_section_end|>",
        "glm": f"<tool_call>{name}\n"
        + tags(given, "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
        + "</tool_call>",
        "hunyuan": f"<tool_calls:opensource>\n<tool_call:opensource>{name}<tool_sep:opensource>\n"
        + tags(
            given,
            "<arg_key:opensource>",
            "</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
        )
        + "</tool_call:opensource>\n</tool_calls:opensource>",
        "minicpm": f'<function name="{name}">'
        + tags(given, '<param name="', '">', "</param>")
        + "</function>",
        "command_r_plus": f'Action: ```json\n[\n    {{\n        "tool_name": "{name}",\n'
        f'        "parameters": {raw}\n    }}\n]```',
        "gigachat": f"<|message_sep|>\n\nfunction call<|role_sep|>\n{call}",
        "solar": f"<|tool_calls|><|tool_call:begin|>call_0<|tool_call:name|>{name}<|tool_call:args|>{raw}"
        "<|tool_call:end|><|calls|>",
        "named": f"{name}\n{raw}",
    }[style]


NEW = [
    (s, b)
    for s, b in CALL_FORMATS
    if s
    in (
        "functionary",
        "kimi",
        "glm",
        "qwen_xml",
        "listed",
        "dsml",
        "pythonic",
        "gemma",
        "named",
        "mistral",
        "deepseek",
        "hunyuan",
        "minicpm",
        "command_r_plus",
        "gigachat",
        "solar",
    )
]


def test_every_family_can_be_forced() -> None:
    assert set(families()) <= set(STYLES)
    for name, formats in STYLES.items():
        begins = (*families()[name].begins, *families()[name].tells) if name in families() else ()
        assert all(begin in ("", *begins) for begin in formats)


@pytest.mark.parametrize("kind", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize(("style", "begin"), NEW)
def test_what_models_write_fits(style: str, begin: str, kind: int) -> None:
    tokenizer = vocabulary(kind)
    grammar = compile_grammar(tokenizer, ToolCallGrammar(TOOLS, style, begin=begin))
    required = {key: GIVEN[key] for key in SCHEMA["required"]}
    for name, given in [("weather", GIVEN), ("weather", required), ("stop", {})]:
        text = written(style, begin, name, given)
        assert read(style, text, TOOLS) == [(name, given)]
        assert accepted(tokenizer, grammar, text), text
        assert grammar.check(text) == ""


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("sub", {}),
    ("stop", {"a": 1}),
    ("weather", {}),
    ("weather", GIVEN | {"days": 41}),
    ("weather", GIVEN | {"days": "x"}),
    ("weather", GIVEN | {"days": 1.5}),
    ("weather", GIVEN | {"on": "yes"}),
    ("weather", GIVEN | {"unit": "m"}),
    ("weather", GIVEN | {"code": "123"}),
    ("weather", GIVEN | {"deep": {"of": []}}),
    ("weather", GIVEN | {"deep": {"on": 1}}),
    ("weather", GIVEN | {"deep": "x"}),
    ("weather", GIVEN | {"more": 1}),
]


@pytest.mark.parametrize(("style", "begin"), NEW)
def test_what_the_schema_forbids_does_not_fit(style: str, begin: str) -> None:
    tokenizer = vocabulary()
    grammar = compile_grammar(tokenizer, ToolCallGrammar(TOOLS, style, begin=begin))
    for name, given in WRONG:
        text = written(style, begin, name, given)
        assert not accepted(tokenizer, grammar, text), text
        assert grammar.check(text) != "", text
    assert not accepted(tokenizer, grammar, "It is sunny.") and grammar.check("It is sunny.") != ""


def walked(grammar: Grammar, tokenizer: Tokenizer, seed: int, most: int = 1500) -> str:
    """A random answer: at each step one of the allowed tokens, with the rarer closing tokens more likely."""
    rng, constraint, eog = random.Random(seed), grammar.constraint(), tokenizer.eog
    bitmask, said = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32), bytearray()
    closing = {i for i in range(len(tokenizer.vocab)) if tokenizer.token_bytes(i) in CLOSING}
    for at in range(most):
        constraint.fill(bitmask)
        allowed = np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")).tolist()
        ends = eog.intersection(allowed)
        if ends and (constraint.finished or rng.random() < 0.5):
            return said.decode()
        likely = [i for i in allowed if i in closing and i not in ends]
        token = rng.choice(likely if likely and rng.random() < min(0.9, 0.3 + at / 300) else
                           [i for i in allowed if i not in ends])  # fmt: skip
        constraint.accept(token)
        said += (
            tokenizer.text(token).encode()
            if tokenizer.token_bytes(token) == b""
            else tokenizer.token_bytes(token)
        )
    return ""


CLOSING = {b'"', b"}", b"]", b"\n", b"<", b"/", b">", b"p", b"a", b")", b"v", b"_"}


@pytest.mark.parametrize("kind", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize(("style", "begin"), NEW)
def test_random_answers_are_calls_of_the_tools(style: str, begin: str, kind: int) -> None:
    tokenizer = vocabulary(kind)
    grammar = compile_grammar(tokenizer, ToolCallGrammar(TOOLS, style, begin=begin))
    schemas = {tool.name: dict(tool.parameters) for tool in TOOLS}
    ended = 0
    for seed in range(6):
        text = walked(grammar, tokenizer, seed)
        if not text:
            continue
        ended += 1
        calls = read(style, text, TOOLS)
        assert len(calls) == 1, text
        assert Validator(schemas[calls[0][0]]).error(calls[0][1]) == "", text
        assert grammar.check(text) == "", text
    assert ended


@pytest.mark.parametrize(
    ("style", "begin"), [format for format in NEW if STYLES[format[0]][format[1]].several]
)
def test_several_calls(style: str, begin: str) -> None:
    tokenizer = vocabulary()
    tool = ToolSchema("f", {"type": "object", "properties": {"a": TEXT}, "required": ["a"]})
    grammar = compile_grammar(tokenizer, ToolCallGrammar([tool], style, True, begin))
    format = STYLES[style][begin]
    one = written(style, begin, "f", {"a": "x"})
    inner = one.removeprefix(format.open).removesuffix(format.close)
    both = format.open + inner + format.separator + inner + format.close
    assert accepted(tokenizer, grammar, both) and accepted(tokenizer, grammar, one)
    assert read(style, both, (tool,)) == [("f", {"a": "x"})] * 2 and grammar.check(both) == ""


VALUES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({}, ["x", 3, [1], None], []),
    ({"type": "string"}, ["", "3", "true", "{}", " a ", "</x>", "é\n\nü"], []),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc", "éé"], ["a", "abcd"]),
    ({"type": "string", "pattern": "a/b|c"}, ["xa/bx", "c"], ["ab"]),
    ({"type": "string", "pattern": "^a.c$"}, ["abc"], ["abcd", "xabc"]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "1999-12-31"], ["2024-13-01", "x"]),
    ({"const": 3}, [3], [4]),
    ({"enum": ["3", "x"]}, ["3", "x"], ["y"]),
    ({"enum": [1, None, "one"]}, [1, None, "one"], [2, "two"]),
    ({"type": "boolean"}, [True, False], ["yes", 1]),
    ({"type": "null"}, [None], ["x"]),
    ({"type": ["integer", "null"], "minimum": 3}, [3, None], [2, "x"]),
    ({"type": ["string", "integer"]}, ["abc", 12, -3], []),
    ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "object"}]}, ["abc", {"a": 1}], ["abcd", [1]]),
    ({"anyOf": [TEXT, {"type": "array", "items": {"type": "integer"}}]}, ["a", [1, 2]], [["x"]]),
    ({"anyOf": [{"type": "boolean"}, {"type": "integer"}]}, [True, 3], ["x", 1.5]),
    ({"type": "array", "items": {"properties": {"a": {"type": "number"}}}}, [[{"a": 1.5}], []], ["x"]),
    ({"properties": {"a": {"type": "integer"}}}, [{"a": 3}], [{"a": "x"}]),
]  # fmt: skip


@pytest.mark.parametrize(("style", "begin"), [*TAGGED, ("pythonic", "")])
@pytest.mark.parametrize(("schema", "right", "wrong"), VALUES, ids=[str(row[0]) for row in VALUES])
def test_values(style: str, begin: str, schema: dict[str, Any], right: list[Any], wrong: list[Any]) -> None:
    tokenizer = vocabulary()
    tool = ToolSchema("f", {"type": "object", "properties": {"a": schema, "b": TEXT}, "required": ["a"]})
    grammar = compile_grammar(tokenizer, ToolCallGrammar([tool], style, begin=begin))
    for value in right:
        text = written(style, begin, "f", {"a": value})
        assert accepted(tokenizer, grammar, text), text
        assert read(style, text, (tool,)) == [("f", {"a": value})] and grammar.check(text) == ""
    for value in wrong:
        text = written(style, begin, "f", {"a": value})
        assert not accepted(tokenizer, grammar, text), text


def test_a_value_cannot_hold_its_closing_tag() -> None:
    for style, begin in TAGGED:
        close = "</arg_value>" if style == "glm" else "</parameter>"
        close = "</｜DSML｜parameter>" if "DSML" in begin else close
        close = '<|"|>' if style == "gemma" else close
        close = {"hunyuan": "</arg_value:opensource>", "minicpm": "</param>"}.get(style, close)
        tool = ToolSchema("f", {"type": "object", "properties": {"a": TEXT}, "required": ["a"]})
        grammar = compile_grammar(vocabulary(), ToolCallGrammar([tool], style, begin=begin))
        assert not accepted(vocabulary(), grammar, written(style, begin, "f", {"a": f"x{close}y"}))


@pytest.mark.parametrize(("style", "begin"), [*TAGGED, ("pythonic", "")])
def test_arguments_without_names_in_the_schema(style: str, begin: str) -> None:
    tool = ToolSchema("f", {"type": "object"})
    grammar = compile_grammar(vocabulary(), ToolCallGrammar([tool], style, begin=begin))
    for given in ({}, {"a": "x"}, {"a": "x", "b": {"c": [1]}}):
        text = written(style, begin, "f", given)
        assert accepted(vocabulary(), grammar, text), text
        assert read(style, text, (tool,)) == [("f", given)]


def _tool(**schema: Any) -> ToolSchema:
    return ToolSchema("f", {"type": "object", **schema})


REFUSED: list[tuple[str, ToolSchema, str]] = [
    ("qwen_xml", _tool(properties={"a": {"enum": ["1", 1]}}), "#/properties/a"),
    ("glm", _tool(properties={"a": {"enum": ["x</arg_value>"]}}), "#/properties/a"),
    ("glm", _tool(properties={"a": {"enum": ["\nx"]}}), "#/properties/a"),
    ("glm", _tool(properties={"a<b": TEXT}), "#/properties/a<b"),
    ("qwen_xml", _tool(properties={"a": TEXT}, required=["b"], additionalProperties=False), "tool 'f'"),
    ("qwen_xml", _tool(properties={"a": {"anyOf": [TEXT, {"type": "integer", "minimum": 3}]}}), "one type"),
    ("qwen_xml", _tool(properties={"a": {"anyOf": [TEXT], "minLength": 3}}), "#/properties/a"),
    ("qwen_xml", _tool(anyOf=[{"properties": {"a": TEXT}}]), "#/anyOf"),
    ("pythonic", _tool(properties={"from": TEXT}), "#/properties/from"),
    ("pythonic", _tool(minProperties=0), "#/minProperties"),
    ("pythonic", ToolSchema("get-time", {"type": "object"}), "'get-time'"),
]  # fmt: skip


@pytest.mark.parametrize(("style", "tool", "place"), REFUSED, ids=[f"{r[0]} {r[2]}" for r in REFUSED])
def test_refused_with_its_place(style: str, tool: ToolSchema, place: str) -> None:
    with pytest.raises(RequestError) as error:
        compile_grammar(vocabulary(), ToolCallGrammar([tool], style))
    assert place in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_text_are_those_of_json(name: str) -> None:
    """Random texts of our pattern satisfy the format, as values in JSON must."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark(f"start: {slashed(FORMATS[name])}")
    examples = {
        "date-time": ["2024-02-29T23:59:59Z", "2024-01-01T00:00:00.5+01:00"],
        "date": ["2024-12-31"],
        "time": ["12:00:00Z"],
        "duration": ["P3D", "PT4H5M", "P1Y2M3DT4H", "P2W"],
        "email": ["a.b+c@example.org"],
        "hostname": ["example", "a-b.c"],
        "ipv4": ["0.0.0.0", "255.199.20.1"],
        "ipv6": ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2"],
        "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
        "uri": ["https://a.b:80/c/d?e=f#g", "mailto:a@b.c"],
    }[name]
    for text in examples:
        assert fits(grammar, text), text
        assert Validator({"type": "string", "format": name}).error(text) == "", text
    assert not fits(grammar, "") and not fits(grammar, "x y")


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [("a", "xax", "x"), ("^a", "ab", "ba"), ("a$", "ba", "ab"), ("^a$", "a", "aa"), (r"a\$", "xa$x", "a")],
)
def test_a_pattern_is_searched(pattern: str, right: str, wrong: str) -> None:
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark(f"start: {searched(pattern)}")
    assert fits(grammar, right) and not fits(grammar, wrong)
