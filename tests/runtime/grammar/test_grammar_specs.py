"""Regular expressions, GBNF, Lark, choices and tool calls: what they accept, and what is refused (H06, H08,
H10).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
import toy_vocab

from satchel.errors import RequestError
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.grammar import (
    AnyJson,
    Choice,
    Gbnf,
    JsonSchema,
    Lark,
    Regex,
    Spec,
    ToolCallGrammar,
    ToolSchema,
    compile_grammar,
)
from satchel.runtime.grammar.ambiguity import is_catastrophic
from satchel.runtime.grammar.gbnf import read_gbnf
from satchel.runtime.grammar.regex import parse

JSON_GBNF = r"""
root   ::= object  # as in llama.cpp's collection
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value
    ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,4})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
WEATHER = ToolSchema(
    "get_weather",
    {"properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)
ADD = ToolSchema("add", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(toy_vocab.byte_level())


REFUSED: list[tuple[str, Spec, str]] = [
    ("H06 60,000 brackets in a regex", Regex("(" * 60_000), "column"),
    ("H06 60,000 brackets in GBNF", Gbnf("root ::= " + "(" * 60_000), "column"),
    ("H06 60,000 brackets in Lark", Lark("start: " + "(" * 60_000), "column"),
    ("H06 left recursion", Gbnf('root ::= root "a" | "b"'), "left recursion"),
    ("H06 hidden left recursion", Gbnf('root ::= x root "a" | "b"\nx ::= "c"?'), "left recursion"),
    ("H06 count in a regex", Regex("a{1,1000000000}"), "column 2"),
    ("H06 count in GBNF", Gbnf('root ::= "a"{1,1000000000}'), "column 13"),
    ("H06 count over the limit in GBNF", Gbnf('root ::= ("a"{1,500}){1,500}'), "limit"),
    ("H06 count in Lark", Lark('start: "a"{1,1000000}'), "limit"),
    ("H06 empty rule in GBNF", Gbnf("root ::= "), "empty"),
    ("H06 empty rule in Lark", Lark("start: "), "empty"),
    ("H06 undefined rule in GBNF", Gbnf("root ::= nope"), "'nope'"),
    ("H06 undefined rule in Lark", Lark("start: nope"), "'nope'"),
    ("H06 open class in a regex", Regex("ab[^"), "column 3"),
    ("H06 property without a name", Regex(r"a\p{"), "column 2"),
    ("H08 exponential regex of letters", Regex(r"(\p{L}+)+$"), "exponentially"),
    ("H06 open class in GBNF", Gbnf("root ::= [^"), "column 10"),
    ("H06 open class in Lark", Lark("start: /[^/"), "without"),
    ("H06 cycle in GBNF", Gbnf("root ::= a\na ::= b\nb ::= a"), "never ends"),
    ("H06 cycle in Lark", Lark("start: a\na: b\nb: a"), "never ends"),
    ("H06 no base", Lark('start: "a" b\nb: "x" b'), "never ends"),
    ("H08 exponential regex", Regex("(a+)+$"), "exponentially"),
    ("H08 million states", Regex("(a{1,1000}){1,1000}"), "limit"),
    ("H08 powers", Regex("(((a{1,100}){1,100}){1,100}){1,100}"), "limit"),
    ("H08 exponential regex in Lark", Lark("start: /(x|x)*y/"), "exponentially"),
    ("back-reference", Regex(r"(a)\1"), "back-reference"),
    ("look-ahead", Regex("(?!a)b"), "look-around"),
    ("word border", Regex(r"a\b"), "anchor"),
    ("possessive", Regex("a++"), "second repetition"),
    ("counts in the wrong order", Regex("a{3,2}"), "order"),
    ("nothing to repeat", Regex("*a"), "column 1"),
    ("bracket too many", Regex("a)"), "column 2"),
    ("class in a class", Regex("[[a]]"), "column 2"),
    ("range in the wrong order", Regex("[z-a]"), "order"),
    ("half an escape", Regex("a\\"), "column 2"),
    ("empty regex", Regex(""), "empty"),
    ("a long regex", Regex("a" * 10**5), "characters"),
    ("no root", Gbnf('x ::= "a"'), "'root'"),
    ("rule twice", Gbnf('root ::= "a"\nroot ::= "b"'), "twice"),
    ("a token by name in GBNF", Gbnf("root ::= <think>"), "tokens by name"),
    ("an unknown escape", Gbnf('root ::= "\\q"'), "line 1, column 11"),
    ("no rule", Gbnf("hello"), "expected a rule"),
    ("a token by name", Lark("start: <|im_end|>"), "not supported"),
    ("a token by number", Lark("start: <[1]>"), "not supported"),
    ("settings", Lark('%llguidance {"no_forcing": true}\nstart: /a/'), "not supported"),
    ("a nested grammar", Lark("start: @x"), "not supported"),
    ("an unknown attribute", Lark("start[max_tokens=5]: /.*/"), "max_tokens"),
    ("a schema in Lark", Lark('start: %json {"items": {"foo": 1}}'), "#/items/foo"),
    ("H10 no tool", ToolCallGrammar([]), "1 to"),
    ("H10 10,000 tools", ToolCallGrammar([ToolSchema(f"t{i}") for i in range(10**4)]), "10,000"),
    ("H10 a quote in a name", ToolCallGrammar([ToolSchema('a"b')]), "#/0/name"),
    ("H10 a name twice", ToolCallGrammar([ADD, ADD]), "#/1/name"),
    ("H10 parameters a list", ToolCallGrammar([ToolSchema("a", [])]), "#/0/parameters"),  # type: ignore[arg-type]
    ("H10 parameters of a string", ToolCallGrammar([ToolSchema("a", {"type": "string"})]), "#/0/parameters"),
    ("H10 parameters unsupported", ToolCallGrammar([ToolSchema("a", {"not": {}})]), "#/not"),
    ("an unknown style", ToolCallGrammar([ADD], "nope"), "hermes"),
]


@pytest.mark.parametrize(("spec", "place"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_with_its_place(tokenizer: Tokenizer, spec: Spec, place: str) -> None:
    with pytest.raises(RequestError) as error:
        compile_grammar(tokenizer, spec)
    assert place in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("options", [[], "yes", [""], [1], ["x"] * 20_000])
def test_wrong_choices(options: Any) -> None:
    with pytest.raises(RequestError, match="choice"):
        Choice(options)


FITS: list[tuple[Spec, tuple[str, ...], tuple[str, ...]]] = [
    (Regex(r"a|ab"), ("a", "ab"), ("", "b", "abb")),
    (Regex(r"^\d{3}-[a-f]+$"), ("123-abc",), ("123-", "12-a", "123-g")),
    (Regex(r"x/y\.(?:z|\n)?"), ("x/y.", "x/y.z", "x/y.\n"), ("x/yz",)),
    (Regex(r"[\]\-^]+[^\W\d]"), ("]-^a",), ("]-1", "a")),
    (Gbnf('root ::= [a-z]* "abc"'), ("abc", "ababc", "zabcabc"), ("ab", "abcd")),
    (Gbnf('root ::= "(" root ")" | [0-9]+'), ("7", "((42))"), ("(7", "()", "7)")),
    (Gbnf('root ::= ("a" |\n  "b")+ # or\n  | "c"{2,3}'), ("abba", "cc", "ccc"), ("c", "ac", "cccc")),
    (Gbnf('root ::= x y\nx ::= "é"?\ny ::= [^a-z\\n] .'), ("é1x", "1\n"), ("ax", "é")),
    (Gbnf(JSON_GBNF), ('{"a":[1,2.5e3,"x\\n", null]}', "{}"), ("[1]", '{"a":}', '{"a":1')),
    (Lark('start: e\ne: e "+" n | n\nn: /[0-9]+/'), ("1", "1+22+3"), ("1+", "+1")),
    (Lark('start: (a | "b")+ [ "c" ]\na: "x".."z" -> foo\n  | "q"i'), ("xb", "Qc"), ("c", "xa")),
    (Lark("start: INT\n%import common.INT"), ("12",), ("x",)),
    (Lark('start: "v=" %json {"type": "integer"}'), ("v=3",), ("v=", "v=x")),
    (Choice(["yes", "yes, sir(!)", "né\n"]), ("yes", "yes, sir(!)", "né\n"), ("no", "yes,")),
    (AnyJson(), ("{}", '{"a": [1, {"b": null}]}'), ("[]", "3", "{")),
    (AnyJson(anything=True), ("3", '"x"', "[]"), ("[", "x")),
    (JsonSchema({"type": "array", "items": {"type": "integer"}}, spaces=False), ("[1,2]",), ("[1,", "[a]")),
    (
        ToolCallGrammar([ADD, WEATHER]),
        ('{"name": "add", "arguments": {"a": 3}}',),
        ('{"name": "add", "arguments": {}}',),
    ),
    (
        ToolCallGrammar([ADD, WEATHER], "hermes", parallel=True),
        (
            '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>\n<tool_call>\n'
            '{"name": "get_weather", "arguments": {"city": "X"}}\n</tool_call>',
        ),
        ('<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>',),
    ),
    (
        ToolCallGrammar([ADD], "mistral"),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 3}}]',),
        ("[TOOL_CALLS][]",),
    ),
    (
        ToolCallGrammar([ADD], "deepseek"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
            '{"a": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        ("add",),
    ),
    (
        ToolCallGrammar([ADD], "harmony"),
        ('<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 3}',),
        ("{}",),
    ),
    (
        ToolCallGrammar([ADD], "llama3", True),
        ('{"name": "add", "parameters": {"a": 3}}; {"name": "add", "parameters": {"a": 4}}',),
        ('{"name": "add"}',),
    ),
    (
        ToolCallGrammar([ADD], "function_tag"),
        ('<function=add>{"a": 3}</function>',),
        ("<function=add></function>",),
    ),
    (
        ToolCallGrammar([ADD], "command_r"),
        ('<|START_ACTION|>[{"tool_name": "add", "parameters": {"a": 3}}]<|END_ACTION|>',),
        ("[]",),
    ),
]


NUMBER_A = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
SPACED: list[Spec] = [
    JsonSchema(NUMBER_A),
    AnyJson(),
    AnyJson(anything=True),
    Lark("start: %json " + json.dumps(NUMBER_A)),
]
BLANKS = ("", " ", "\n", "\n" + " " * 24, "\n\t\t")
ENDLESS = ("  ", "\t", "\n\n", " \n", "\n" + " " * 25, "\r\n")


@pytest.mark.parametrize("spec", SPACED, ids=["object", "json object", "any json", "lark"])
@pytest.mark.parametrize("place", range(1, 5))
def test_white_space_between_tokens_of_json_is_bounded(tokenizer: Tokenizer, spec: Spec, place: int) -> None:
    """A space, or a line break and an indent: otherwise a model may go on with white space."""
    tokens = ("{", '"a"', ":", "1", "}")
    grammar = compile_grammar(tokenizer, spec)
    for blank in (*BLANKS, *ENDLESS):
        text = "".join((*tokens[:place], blank, *tokens[place:]))
        assert accepts(tokenizer, grammar.constraint(), text) == (blank in BLANKS), repr(text)


@pytest.mark.parametrize(("spec", "right", "wrong"), FITS, ids=[type(row[0]).__name__ for row in FITS])
def test_masks_and_check_agree(
    tokenizer: Tokenizer, spec: Spec, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    grammar = compile_grammar(tokenizer, spec)
    for text in right:
        assert accepts(tokenizer, grammar.constraint(), text) and grammar.check(text) == ""
    for text in wrong:
        assert not accepts(tokenizer, grammar.constraint(), text) and grammar.check(text) != ""


def accepts(tokenizer: Tokenizer, constraint: Any, text: str) -> bool:
    """Whether the constraint accepts the text byte by byte and may end there."""
    try:
        for byte in text.encode():
            constraint.accept(next(i for i in range(256) if tokenizer.token_bytes(i) == bytes([byte])))
    except RequestError:
        return False
    return bool(constraint.complete)


CATASTROPHIC = [
    "(a+)+",
    "(a|a)*b",
    "(a*)*",
    "(a*b*)*",
    r"(\w+\s?)*",
    "([0-9]{1,10})+",
    "(a|ab|b)*",
    "(a?b?)*",
    "(x+x+)+y",
    r"([a-z])+.)+[A-Z]".replace(")+.)", "+.)"),
    "(a{1,5})+",
    r"(.|\d)*x",
    r"(\s*a\s*)*",
]
HARMLESS = [
    "([a-z]+,)*[a-z]+",
    r"(\w+\s)*",
    "([0-9]{2})+",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
    "(.*)(.*)x",
    r"(?:\d{3}-)*\d{4}",
    r"([a-zA-Z0-9_]+\.)*[a-z]{2,63}",
    "(a|b|c)*(d|e)*f{3,5}",
    "((ab)*c)*",
    "a{1,5000}",
    "(?:[^,]*,){5}",
    r"\\(n|t)*",
    r"(\p{Lu}+,)*",
]


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_exponential_patterns_are_seen(pattern: str) -> None:
    assert is_catastrophic(parse(pattern))


@pytest.mark.parametrize("pattern", HARMLESS)
def test_other_patterns_are_not_blamed(pattern: str) -> None:
    assert not is_catastrophic(parse(pattern))


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a"\nx ' + "#" * 200_000,
        'root ::= "a" ' + "# # " * 50_000,
        "#" * 100_000 + "\nroot ::= ",
        'root ::= "a" (' + "\n#" * 50_000,
    ],
)
def test_comments_of_gbnf_are_read_once(text: str) -> None:
    """A comment that is cut into comments in every way would be tried for ever: none of these ends then."""
    with suppress(RequestError):
        read_gbnf(text)
