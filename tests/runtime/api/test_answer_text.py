"""The text of an answer from tokens alone: as a reply to a conversation has it, however the tokens come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.formats.chat import Content, Event, Reasoning, Style
from satchel.runtime.api.answer_text import AnswerText, AnswerTextSettings

PIECES = [
    b"",
    b" a",
    b"b\n",
    b"<think>",
    b"</think>",
    b"\xc3",
    b"\xa9",
    b"<thi",
    b"nk>",
    b"stop",
    b" ",
    b"x" * 5,
]
STYLE = Style(thinks=True)
SETTINGS = [
    AnswerTextSettings(),
    AnswerTextSettings(strip=True),
    AnswerTextSettings(stops=("stop",)),
    AnswerTextSettings(style=STYLE),
    AnswerTextSettings(style=STYLE, markers={3: "<think>", 4: "</think>"}),
    AnswerTextSettings(style=STYLE, opening="reasoning", markers={4: "</think>"}, stops=("bstop", "a b")),
]


def joined(events: list[Event]) -> list[tuple[type, str]]:
    """Events of one kind in a row as one."""
    found = list[tuple[type, str]]()
    for event in events:
        assert isinstance(event, Content | Reasoning)
        if found and found[-1][0] is type(event):
            found[-1] = (type(event), found[-1][1] + event.text)
        elif event.text:
            found.append((type(event), event.text))
    return found


def parts(tokens: list[int], seed: int) -> Iterator[list[int]]:
    draw = random.Random(seed)
    cuts = sorted({0, len(tokens), *(draw.randrange(len(tokens) + 1) for _ in range(4))})
    return (tokens[a:b] for a, b in pairwise(cuts))


@pytest.mark.parametrize("settings", SETTINGS)
@given(tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=24), seed=st.integers(0, 99))
def test_it_does_not_matter_how_tokens_are_divided(
    settings: AnswerTextSettings, tokens: list[int], seed: int
) -> None:
    single, several = (AnswerText(settings, PIECES.__getitem__) for _ in range(2))
    one_by_one = [event for token in tokens if not single.stopped for event in single.feed([token])]
    together = [event for part in parts(tokens, seed) for event in several.feed(part)]
    assert joined(one_by_one) == joined(together) and single.stopped == several.stopped
