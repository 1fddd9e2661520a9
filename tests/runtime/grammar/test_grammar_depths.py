"""Grammars that are deep, long, or chains of rules: read, or refused with an error (row A20)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance")

from satchel.errors import RequestError
from satchel.formats.chat.tagged import BRANCHES, branches, kinds_of
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import build_tokenizer
from satchel.runtime.grammar import compile_grammar
from satchel.runtime.grammar.ambiguity import is_catastrophic
from satchel.runtime.grammar.gbnf import read_gbnf
from satchel.runtime.grammar.regex import parse
from satchel.runtime.grammar.sources import check_spec
from satchel.runtime.grammar.spec import MAX_GRAMMAR, Choice, Gbnf, JsonSchema, Lark, Regex, Spec

RULES = 4999


def chain(head: str, sign: str, body: str, last: str) -> str:
    """RULES + 1 rules, each of which refers to the next."""
    names = [head, *(f"r{i}" for i in range(1, RULES + 1))]
    lines = [f"{name} {sign} {body} {after}" for name, after in pairwise(names)]
    return "\n".join([*lines, f"{names[-1]} {sign} {last}"])


def nested(open_: str, inner: str, close: str, depth: int = 99) -> str:
    return open_ * depth + inner + close * depth


def deep_schema(depth: int) -> Any:
    made: Any = {"type": "string"}
    for _ in range(depth):
        made = {"items": made}
    return made


READ: dict[str, Spec] = {
    "gbnf chain": Gbnf(chain("root", "::=", "", '"a"')),
    "gbnf chain with a way back": Gbnf(chain("root", "::=", '"x"', '"a" | "b" root')),
    "gbnf doubling": Gbnf(
        "\n".join(f"{f'r{i}' if i else 'root'} ::= r{i + 1} r{i + 1}" for i in range(60)) + '\nr60 ::= "a"'
    ),
    "gbnf groups": Gbnf("root ::= " + nested('("x" | "y" ', '"a"', ')* "z"')),
    "gbnf groups with a way back": Gbnf('root ::= "q" root? ' + nested('("x" | "y" ', '"a"', ')* "z"')),
    "lark chain": Lark(chain("start", ":", "", '"a"').replace(" :", ":")),
    "lark groups": Lark("start: " + nested('["x" | "y" ', '"a"', '] "z"')),
    "regex groups": Regex(nested("(?:x|y", "a", "|b)+z")),
    "schema": JsonSchema(deep_schema(58)),
}
REFUSED: dict[str, Spec] = {
    "gbnf groups": Gbnf("root ::= " + nested("(", '"a"', ")", 60_000)),
    "gbnf repetitions": Gbnf('root ::= "a"' + "*" * 60_000),
    "gbnf counts": Gbnf('root ::= "a"' + "{1,2}" * 10_000),
    "gbnf length": Gbnf('root ::= "' + "a" * MAX_GRAMMAR + '"'),
    "gbnf rules": Gbnf(chain("root", "::=", "", 'r6000\nr6000 ::= "a"\n r6001 ::= "a"')),
    "lark groups": Lark("start: " + nested("(", '"a"', ")", 60_000)),
    "lark repetitions": Lark('start: "a"' + "+" * 60_000),
    "lark length": Lark('start: "a"' + "\n" * MAX_GRAMMAR),
    "lark schema": Lark("start: %json " + '{"items":' * 40_000),
    "regex groups": Regex("(" * 60_000),
    "regex repetitions": Regex("a" + "*" * 60_000),
    "schema": JsonSchema(deep_schema(900)),
    "schema as text": JsonSchema('{"items":' * 50_000),
    "choices": Choice(["a" * 500] * 9_999),
}


def in_a_thread(work: Callable[[], None]) -> None:
    """Runs in a thread with its own stack, like the server's threads."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("name", READ)
def test_a20_deep_grammars_are_read(name: str) -> None:
    in_a_thread(lambda: check_spec(READ[name]))


@pytest.mark.parametrize("name", REFUSED)
def test_a20_deeper_ones_are_refused_in_words(name: str) -> None:
    with pytest.raises(RequestError):
        in_a_thread(lambda: check_spec(REFUSED[name]))


def test_a20_a_nearly_full_stack_is_refused_in_words() -> None:
    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            check_spec(READ["gbnf groups"])

    with pytest.raises(RequestError, match="nested too deeply"):
        in_a_thread(lambda: deeper(sys.getrecursionlimit() - 120))


def test_a_chain_is_written_out_as_one_expression() -> None:
    text = chain("root", "::=", "", '"a" [b-c]?')
    assert read_gbnf(text) == ("a(?:[b-c]){0,1}", True)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("(a+)+b", True),
        ("(a|a)*b", True),
        ("(a|ab|b)*c", True),
        ("(?:a|b)*abb", False),
        ("(a?b?)*", True),
        ("[a-z]+@[a-z]+", False),
        ("(a*b)*", False),
        ("a*a*", False),
    ],
)
def test_ambiguity_by_components(pattern: str, wanted: bool) -> None:
    assert is_catastrophic(parse(pattern)) is wanted


def test_branches_of_any_schema_are_bounded() -> None:
    """Those of tools that nobody must call are the client's as they came."""
    wide = {"anyOf": [{"type": "string"} for _ in range(100_000)]}
    assert len(list(branches(wide, {}))) < BRANCHES
    steps = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(50)}
    root = {"$defs": {**steps, "a50": {"type": "integer"}}}
    assert kinds_of({"$ref": "#/$defs/a0"}, root) == ("integer",)


def far(i: int) -> str:
    return f"#/$defs/g{i // 990}/$defs/a{i % 990}"


def chained(make: Callable[[str], Any], count: int) -> JsonSchema:
    """A schema of so many that lead to each other, by names in groups."""
    groups: dict[str, Any] = {}
    for i in range(count):
        group = groups.setdefault(f"g{i // 990}", {"$defs": {}})
        group["$defs"][f"a{i % 990}"] = make(far(i + 1)) if i + 1 < count else {"type": "string"}
    return JsonSchema({"$defs": groups, "$ref": far(0)})


CHAINS: dict[str, Spec] = {
    "references": chained(lambda to: {"$ref": to}, 4900),
    "items": chained(lambda to: {"items": {"$ref": to}}, 2400),
    "properties": chained(lambda to: {"properties": {"x": {"$ref": to}}}, 2400),
    "branches": chained(lambda to: {"anyOf": [{"$ref": to}, {"type": "integer"}]}, 1600),
    "gbnf": READ["gbnf chain with a way back"],
    "gbnf optional": Gbnf(chain("root", "::=", "", '"a"').replace("\n", "?\n")),
    "lark": Lark(chain("start", ":", "", '"a" | "b" start').replace(" :", ":")),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a20_chains_are_compiled_without_the_end_of_the_process(name: str, bundled_model: Path) -> None:
    """The compiler recurses: on an ordinary stack each of these was a segmentation fault."""
    with open_gguf(bundled_model) as gguf:
        tokenizer = build_tokenizer(gguf.metadata)
    try:
        grammar = compile_grammar(tokenizer, CHAINS[name])
    except RequestError:
        return
    grammar.check('"a"')
    bitmask = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
    grammar.constraint().fill(bitmask)
    assert bitmask.any()
