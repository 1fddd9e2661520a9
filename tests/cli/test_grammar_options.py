"""The options of structured output: the library's arguments, and usage errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from satchel.cli.grammars import GrammarOptions
from satchel.cli.usage import UsageError
from satchel.runtime.grammar import AnyJson, Choice, Gbnf, JsonSchema, Lark, Regex


def test_each_option_gives_its_spec(tmp_path: Path) -> None:
    (tmp_path / "a.gbnf").write_text('root ::= "a"\n')
    (tmp_path / "a.lark").write_text('start: "a"\n')
    (tmp_path / "a.json").write_text("{}\n")
    assert GrammarOptions().spec() is None
    assert GrammarOptions(grammar='root ::= "a"').spec() == Gbnf('root ::= "a"')
    assert GrammarOptions(grammar_file=tmp_path / "a.gbnf").spec() == Gbnf('root ::= "a"')
    assert GrammarOptions(grammar_file=tmp_path / "a.lark").spec() == Lark('start: "a"')
    assert GrammarOptions(json_schema="{}").spec() == JsonSchema("{}")
    assert GrammarOptions(json_schema_file=tmp_path / "a.json").spec() == JsonSchema("{}")
    assert GrammarOptions(json_mode=True).spec() == AnyJson()
    assert GrammarOptions(regex="a+").spec() == Regex("a+")
    assert GrammarOptions(choice=["a", "b"]).spec() == Choice(("a", "b"))


def test_two_forms_are_wrong_use() -> None:
    with pytest.raises(UsageError, match="--regex: --json-schema is given already"):
        GrammarOptions(json_schema="{}", regex="a")
