"""The cache of clients' grammars is bounded by bytes (row A12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import SECONDS

pytest.importorskip("llguidance")

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.api import tokenized_options
from satchel.runtime.api.refusals import Busy
from satchel.runtime.grammar import compiled
from satchel.runtime.grammar.compiled import Compiler, compile_grammar
from satchel.runtime.grammar.spec import Choice, JsonSchema
from satchel.runtime.sampling.dry import find_breakers


@pytest.fixture
def tokenizer(bundled_model: Path) -> Iterator[Tokenizer]:
    with open_gguf(bundled_model) as gguf:
        yield build_tokenizer(gguf.metadata)


def schema(i: int, names: int = 20) -> JsonSchema:
    return JsonSchema({"type": "object", "properties": {f"p{i}_{j}": {"type": "null"} for j in range(names)}})


def kept(tokenizer: Tokenizer) -> Compiler:
    return compiled._compilers[tokenizer]


def test_a12_what_is_kept_is_bounded_by_its_bytes(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = compile_grammar(tokenizer, schema(0)).cost
    monkeypatch.setattr(compiled, "MAX_KEPT", 5 * one)
    for i in range(12):
        compile_grammar(tokenizer, schema(i))
        compiler = kept(tokenizer)
        assert compiler._size == sum(g.cost for g in compiler._kept.values()) <= 5 * one
    assert 3 <= len(kept(tokenizer)._kept) <= 5
    compile_grammar(tokenizer, schema(99, names=200))
    assert all(g.cost <= 2.5 * one for g in kept(tokenizer)._kept.values()), "one that fills it is not kept"
    assert all(len(key) == 64 for key in kept(tokenizer)._kept), "nor are the texts"


def test_the_cost_grows_with_the_text(tokenizer: Tokenizer) -> None:
    small, large = (compile_grammar(tokenizer, schema(0, names)).cost for names in (1, 300))
    assert large > 20 * small > 20 * compiled.LEAST


def test_a12_a_grammar_in_use_is_made_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is not cached: a reply and its constraint share it."""
    monkeypatch.setattr(compiled, "MAX_KEPT", 1)
    first = compile_grammar(tokenizer, schema(1))
    assert compile_grammar(tokenizer, schema(1)) is first
    assert not kept(tokenizer)._kept
    del first
    assert not kept(tokenizer)._live


def test_a12_grammars_that_were_given_up_are_bounded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.01)
    turns = compiled._turns
    for _ in range(compiled.COMPILING):
        assert turns.acquire(timeout=SECONDS)
    try:
        with pytest.raises(Busy, match="try again later"):
            compile_grammar(tokenizer, Choice(["never", "made"]))
    finally:
        for _ in range(compiled.COMPILING):
            turns.release()
    compile_grammar(tokenizer, Choice(["never", "made"]))


def test_a_text_that_is_too_large_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="at most 2,097,152 characters"):
        compile_grammar(tokenizer, JsonSchema({"const": "x" * 2_100_000}))


def test_a12_breakers_of_repetitions_are_bounded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tokenized_options.breakers_of(tokenizer, ("e",)).size
    assert one > 10
    monkeypatch.setattr(tokenized_options, "MOST_KEPT", 3 * one)
    for text in ("e", "ea", "eb", "ec", "ed", "a", "b"):
        tokenized_options.breakers_of(tokenizer, (text,))
        held = tokenized_options._kept[tokenizer]
        assert held._size == sum(b.size for b in held._kept.values()) <= 3 * one
    assert tokenized_options.breakers_of(tokenizer, ("e", "ef")) == tokenized_options.breakers_of(
        tokenizer, ("e", "ef")
    )


def test_many_breakers_take_one_look_at_each_token() -> None:
    """Each text was compared with the end of each token before: 1,024 texts, 150,000 tokens."""
    texts = [f"e{i}" for i in range(200)]
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    found = find_breakers(texts, 1000, lambda i: b"some" if i % 2 else b"one e7 ", encode)
    assert len(asked) == 200, "what follows is tokenized once"
    assert found.alone(0) and not found.alone(1)
    assert found.tails[1] == ((1,), (2,), (3,))
