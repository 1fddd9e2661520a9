"""Special tokens are split off as the definition says, in one pass whatever their number (row A17)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.formats.tokenizer import splitting
from satchel.formats.tokenizer.splitting import Cutter, Special, by_definition, overlap

LETTERS = st.sampled_from("ab<\n")
TOKENS = st.sets(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=7)
TEXTS = st.text(LETTERS | st.just("x"), min_size=1, max_size=40)


def specials(texts: set[str] | list[str]) -> list[Special]:
    found = (Special(i, text, True) for i, text in enumerate(sorted(texts)))
    return sorted(found, key=lambda special: -len(special.text.encode()))


@given(TOKENS, TEXTS)
def test_a17_the_pieces_are_those_of_the_definition(texts: set[str], text: str) -> None:
    assert Cutter(specials(texts)).cut(text) == by_definition(text, specials(texts))


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a17_a_token_may_lie_across_two_windows(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "WINDOW", window)
    draw = random.Random(5)
    for _ in range(300):
        texts = {"".join(draw.choices("ab<", k=draw.randint(1, 4))) for _ in range(5)}
        text = "".join(draw.choices("ab<x", k=30))
        assert Cutter(specials(texts)).cut(text) == by_definition(text, specials(texts))


def test_white_space_that_a_token_swallows() -> None:
    found = [Special(1, "<m>", True, True, True), Special(0, " ", True)]
    assert Cutter(found).cut("a <m> b c") == by_definition("a <m> b c", found) == ["a", 1, "b", 0, "c"]


def test_runs_of_one_character_do_not_overlap_and_others_do() -> None:
    assert not overlap(["\n" * n for n in range(1, 32)] + ["<a>", "</a>", "[INST]", "<a><b>"])
    assert overlap(["ab", "bc"]) and overlap(["\n\n", "\r\n"]) and overlap(["\n\n", "\na"])
    assert overlap(["a" * 5000])


@pytest.fixture
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where the definition is applied, which scans a text once per token."""

    def applied(text: str, specials: object) -> list[str | int]:
        raise AssertionError(f"the definition was applied to {len(text)} characters")

    monkeypatch.setattr(splitting, "by_definition", applied)


@pytest.mark.parametrize("kinds", [1, 2000])
def test_a17_texts_of_many_kinds_of_tokens_take_one_pass(kinds: int, one_pass: None) -> None:
    text = "".join(f"<unused{i % kinds}>" for i in range(30_000))
    assert len(Cutter(specials([f"<unused{i}>" for i in range(kinds)])).cut(text)) == 30_000


@pytest.mark.parametrize("text", ["<" * 2_000_000, "<unused1" * 200_000, "\n" * 300_000, "\n\n\nx" * 50_000])
def test_a17_texts_that_almost_hold_tokens_take_one_pass(text: str, one_pass: None) -> None:
    tokens = [f"<unused{i}>" for i in range(500)] + ["\n" * n for n in range(1, 32)]
    found = Cutter(specials(tokens)).cut(text)
    by_id = {special.id: special.text for special in specials(tokens)}
    assert "".join(part if isinstance(part, str) else by_id[part] for part in found) == text


def test_a17_tokens_that_overlap_cost_the_definition_on_what_they_cover_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    covered = 0

    def applied(text: str, given: list[Special]) -> list[str | int]:
        nonlocal covered
        covered += len(text) * len(given)
        return by_definition(text, given)

    monkeypatch.setattr(splitting, "by_definition", applied)
    cutter = Cutter(specials([f"<{i}>" for i in range(1000)] + [">a<", "><"]))
    cutter.cut("<1>a<2> x <3> y " * 1000)
    assert covered < 60_000  # 16,000 characters, 1,002 kinds of tokens
