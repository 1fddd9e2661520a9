"""Constraints on random logits: finished answers validate, and truncated ones say so."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_vocab
from grammar_cases import SCHEMAS, unpack, write
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Kind, Tokenizer, build_tokenizer
from satchel.runtime.grammar import (
    AnyJson,
    Choice,
    Gbnf,
    Grammar,
    JsonSchema,
    Lark,
    Regex,
    Spec,
    ToolCallGrammar,
    ToolSchema,
    compile_grammar,
    compiled,
    only_check,
)

KINDS = ("gpt2", "llama", "gemma4")


def toy(kind: str) -> Tokenizer:
    return build_tokenizer(toy_vocab.KINDS[kind]())


TOKENIZERS = {kind: toy(kind) for kind in KINDS}
OTHERS: list[Spec] = [
    AnyJson(),
    AnyJson(anything=True, spaces=False),
    Regex(r"[a-f]{2,9}(-\d+)?|é+x"),
    Gbnf('root ::= "(" root ")" | [0-9]{1,3} ("," [a-z]*)?'),
    Gbnf('root ::= item{1,3}\nitem ::= [^x\\n] | item2\nitem2 ::= ("xx" | "日本") item2?'),
    Lark('start: e\ne: e "+" n | n\nn: /[0-9]{1,4}/'),
    Choice(["yes", "yes!", "no", "何"]),
    ToolCallGrammar(
        [ToolSchema("a"), ToolSchema("b.c", {"properties": {"n": {"type": "integer"}}, "required": ["n"]})]
    ),
    ToolCallGrammar([ToolSchema("a", {"additionalProperties": False})], "hermes", parallel=True),
]


def check_answers(tokenizer: Tokenizer, grammar: Grammar, seeds: range, limit: int = 80) -> int:
    """Writes answers; returns how many were finished."""
    count = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        text, finished, complete = write(tokenizer, grammar, rng, limit, (0, 4, 8, 16)[seed % 4])
        if finished:
            assert grammar.check(text) == ""
        elif not complete:
            assert grammar.check(text) != ""
        count += finished
    return count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_the_logits_the_answer_validates(kind: str, name: str) -> None:
    grammar = compile_grammar(TOKENIZERS[kind], JsonSchema(SCHEMAS[name]))
    assert check_answers(TOKENIZERS[kind], grammar, range(4)) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", OTHERS, ids=lambda spec: type(spec).__name__)
def test_other_forms_likewise(kind: str, spec: Spec) -> None:
    assert check_answers(TOKENIZERS[kind], compile_grammar(TOKENIZERS[kind], spec), range(4)) > 0


SCALARS = st.sampled_from(
    [
        {"type": "integer", "minimum": -3},
        {"type": "number", "maximum": 9.5},
        {"type": "string", "maxLength": 4},
        {"type": "string", "pattern": "^x[0-9]"},
        {"type": "boolean"},
        {"enum": [1, "two", None]},
        {"const": [1, {}]},
    ]
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(st.sampled_from(["a", "b", "ä/~", 'q"']), inner, max_size=3)
    lists = st.builds(
        lambda item, most: {"type": "array", "items": item, "maxItems": most}, inner, st.integers(0, 3)
    )
    pairs = st.lists(inner, min_size=1, max_size=3).map(
        lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    )
    return st.one_of(
        st.builds(_object, objects, st.booleans(), st.booleans()),
        lists,
        pairs,
        st.lists(inner, min_size=1, max_size=3).map(lambda items: {"anyOf": items}),
    )


def _object(properties: dict[str, Any], needed: bool, closed: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return (
        made
        | ({"required": list(properties)} if needed else {})
        | ({"additionalProperties": False} if closed else {})
    )


@given(st.recursive(SCALARS, containers, max_leaves=6), st.integers(0, 2**32))
def test_random_schemas_and_random_logits(schema: Any, seed: int) -> None:
    grammar = compile_grammar(TOKENIZERS["gpt2"], JsonSchema(schema))
    check_answers(TOKENIZERS["gpt2"], grammar, range(seed, seed + 2), 60)


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_are_never_allowed_and_end_tokens_only_at_an_end(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    count = tokenizer.vocab_size
    hidden = np.isin(tokenizer.vocab.types, (Kind.CONTROL, Kind.UNKNOWN, Kind.UNUSED))
    ends = np.zeros(count, bool)
    ends[list(tokenizer.eog)] = True
    constraint = compile_grammar(tokenizer, Regex(r"(?s).*")).constraint()
    bitmask = np.zeros(-(-count // 32), np.uint32)
    constraint.fill(bitmask)
    allowed = unpack(bitmask, count)
    assert (
        allowed[ends].all() and not allowed[hidden & ~ends].any() and allowed.sum() > 150
    )  # no text begins inside a character
    constraint = compile_grammar(tokenizer, Regex(r"(?s).+")).constraint()
    constraint.fill(bitmask)
    assert not unpack(bitmask, count)[ends | hidden].any()


def test_marker_tokens_are_written_as_tokens_in_tool_calls_alone() -> None:
    tokenizer = build_tokenizer(toy_vocab.byte_level({"tokens": _renamed("<tool>", "<tool_call>")}))
    marker = tokenizer.vocab.index["<tool_call>"]
    bitmask = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
    compile_grammar(tokenizer, ToolCallGrammar([ToolSchema("a")], "hermes")).constraint().fill(bitmask)
    assert np.flatnonzero(unpack(bitmask, tokenizer.vocab_size)).tolist() == [marker]
    compile_grammar(tokenizer, Regex("<tool_call>")).constraint().fill(bitmask)
    assert not unpack(bitmask, tokenizer.vocab_size)[marker]


def _renamed(old: str, new: str) -> list[str]:
    return [new if text == old else text for text in toy_vocab.byte_level()["tokenizer.ggml.tokens"]]


def test_a_mask_of_a_larger_vocabulary_is_zero_behind_the_tokens() -> None:
    tokenizer = TOKENIZERS["llama"]
    bitmask = np.full(100, 0xFFFFFFFF, np.uint32)
    compile_grammar(tokenizer, AnyJson()).constraint().fill(bitmask)
    count = tokenizer.vocab_size
    assert not unpack(bitmask, 3200)[count:].any() and unpack(bitmask, 3200)[:count].any()


@pytest.mark.parametrize(
    "bitmask",
    [
        np.zeros(2, np.uint32),
        np.zeros(100, np.int32),
        np.zeros((1, 100), np.uint32),
        np.zeros(200, np.uint32)[::2],
    ],
)
def test_a_wrong_mask_buffer_is_refused(bitmask: Any) -> None:
    with pytest.raises(RequestError, match="mask"):
        compile_grammar(TOKENIZERS["llama"], AnyJson()).constraint().fill(bitmask)


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_only_checks_has_the_same_masks(kind: str) -> None:
    """It omits llguidance's slices of the vocabulary, which take longest to build."""
    drawing, checking = toy(kind), toy(kind)
    only_check(checking)
    rng = np.random.default_rng(5)
    for spec in (JsonSchema(SCHEMAS["person"]), *OTHERS):
        a, b = (compile_grammar(one, spec).constraint() for one in (drawing, checking))
        bitmask = np.zeros((2, -(-drawing.vocab_size // 32)), np.uint32)
        for _ in range(30):
            a.fill(bitmask[0])
            b.fill(bitmask[1])
            assert np.array_equal(bitmask[0], bitmask[1])
            if a.finished:
                break
            token = int(rng.choice(np.flatnonzero(unpack(bitmask[0], drawing.vocab_size))))
            a.accept(token)
            b.accept(token)


def test_rollback_gives_the_masks_of_before() -> None:
    tokenizer = TOKENIZERS["gpt2"]
    grammar = compile_grammar(tokenizer, JsonSchema(SCHEMAS["person"]))
    constraint, rng = grammar.constraint(), np.random.default_rng(3)
    bitmask = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
    masks = []
    while not constraint.finished:
        constraint.fill(bitmask)
        masks.append(bitmask.copy())
        constraint.accept(int(rng.choice(np.flatnonzero(unpack(bitmask, tokenizer.vocab_size)))))
    for back in (1, 3, 5):
        constraint.rollback(back)
        assert not constraint.finished
        del masks[len(masks) - back + 1 :]
        constraint.fill(bitmask)
        assert np.array_equal(bitmask, masks.pop())
    with pytest.raises(RequestError, match="cannot roll back"):
        constraint.rollback(10**6)


def test_an_end_token_ends_and_is_taken_back() -> None:
    tokenizer = TOKENIZERS["gpt2"]
    end, letter = min(tokenizer.eog), tokenizer.vocab.index["a"]
    constraint = compile_grammar(tokenizer, Regex("a+")).constraint()
    with pytest.raises(RequestError, match="before the answer was complete"):
        constraint.accept(end)
    constraint.accept(letter)
    assert constraint.complete and not constraint.finished
    constraint.accept(end)
    assert constraint.finished
    constraint.rollback(1)
    assert constraint.complete and not constraint.finished
    constraint.rollback(1)
    assert not constraint.complete
    with pytest.raises(RequestError, match="not allowed"):
        constraint.accept(tokenizer.vocab.index["b"])


def test_constraints_of_one_grammar_do_not_meet() -> None:
    """Eight threads with one compiled grammar write the same as one."""
    tokenizer = TOKENIZERS["gpt2"]
    grammar = compile_grammar(tokenizer, JsonSchema(SCHEMAS["people"]))
    alone = [write(tokenizer, grammar, np.random.default_rng(i), 40, 4)[0] for i in range(8)]
    together = [""] * 8

    def work(i: int) -> None:
        together[i] = write(tokenizer, grammar, np.random.default_rng(i), 40, 4)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_h09_many_grammars_leave_a_bounded_cache() -> None:
    tokenizer = toy("gpt2")
    kept = compile_grammar(tokenizer, AnyJson())
    for i in range(compiled.MAX_GRAMMARS * 3):
        compile_grammar(tokenizer, JsonSchema({"const": i}))
        assert compile_grammar(tokenizer, AnyJson()) is kept
    cache = compiled._compilers[tokenizer]._kept
    assert len(cache) == compiled.MAX_GRAMMARS


def test_what_was_made_for_a_tokenizer_goes_with_it() -> None:
    tokenizer = toy("llama")
    compile_grammar(tokenizer, Regex("a+")).constraint()
    seen = weakref.ref(tokenizer)
    before = len(compiled._compilers)
    del tokenizer
    gc.collect()
    assert seen() is None and len(compiled._compilers) < before


def test_a_vocabulary_that_writes_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="WordPiece"):
        compile_grammar(toy("bert"), AnyJson())


VOCABS = ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")


@pytest.mark.parametrize("name", VOCABS)
def test_real_vocabularies(shared: Path, name: str) -> None:
    with open_gguf(shared / "vocabs" / f"ggml-vocab-{name}.gguf") as gguf:
        tokenizer = build_tokenizer(gguf.metadata)
    for schema in ("person", "tagged"):
        grammar = compile_grammar(tokenizer, JsonSchema(SCHEMAS[schema]))
        check_answers(tokenizer, grammar, range(2, 4), 40)
    assert check_answers(tokenizer, compile_grammar(tokenizer, Regex(r"\p{L}{3,5}é")), range(2)) > 0
