"""Context overflow: exactly the requested part is cut or dropped, it is counted, and the rest is
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_file import write_model

from satchel import Model
from satchel.errors import RequestError
from satchel.runtime.api.overflow import fit_messages, fit_tokens, head_of, most_prompt, shifted
from satchel.runtime.sampling import GREEDY, Sampling

WARM = Sampling(temperature=1.5, top_k=0, seed=3)


def render(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """A simple template: a token for the role, those of the text, an end; then the answer's start."""
    roles = {"system": 1000, "user": 1001, "assistant": 1002, "tool": 1003}
    found: list[int] = []
    for m in messages:
        found += [roles[m["role"]], *map(ord, m["content"]), 999]
    return [*found, 1002]


def conversation(turns: int, system: bool, size: int = 10) -> list[dict[str, str]]:
    found = [{"role": "system", "content": "s" * size}] if system else []
    for i in range(turns):
        found.append({"role": "user", "content": chr(200 + i) * size})
        found.append({"role": "assistant", "content": chr(300 + i) * size})
    return [*found, {"role": "user", "content": "last"}]


@given(st.integers(0, 300), st.integers(4, 120), st.integers(-1, 200))
def test_tokens_are_cut_in_the_middle_and_only_where_they_must(n: int, context: int, most: int) -> None:
    ids = list(range(n))
    fitted = fit_tokens(ids, context, most)
    if n <= context:
        assert fitted.ids == ids and fitted.cut == 0 and fitted.notes == ()
        return
    assert len(fitted.ids) == most_prompt(context, most) <= context and fitted.cut == n - len(fitted.ids)
    gaps = [i for i, (a, b) in enumerate(zip(fitted.ids, fitted.ids[1:], strict=False)) if b != a + 1]
    assert len(gaps) <= 1 and fitted.ids[-1] == n - 1 and f"{fitted.cut} tokens" in fitted.notes[0]


@given(st.integers(0, 12), st.booleans(), st.integers(40, 400))
def test_whole_turns_are_dropped_the_oldest_first(turns: int, system: bool, context: int) -> None:
    messages = conversation(turns, system)
    whole = render(messages)
    fitted = fit_messages(messages, render, context, -1)
    if len(whole) <= context:
        assert fitted.ids == whole and not fitted.cut
        return
    assert len(fitted.ids) <= most_prompt(context, -1) and fitted.cut == len(whole) - len(fitted.ids)
    first = 1 if system else 2
    kept = [*messages[:first], *messages[first + fitted.messages :]]
    assert fitted.ids == render(kept) and fitted.messages % 2 == 0
    fewer = [*messages[:first], *messages[first + fitted.messages - 2 :]]
    assert len(render(fewer)) > most_prompt(context, -1), "no turn more than must be is dropped"


def test_what_cannot_be_cut_is_refused_with_the_numbers() -> None:
    long = [{"role": "system", "content": "s" * 50}, {"role": "user", "content": "u" * 50}]
    with pytest.raises(RequestError, match=r"alone are 105 tokens, the context holds 64"):
        fit_messages(long, render, 64, -1)
    alone = [{"role": "user", "content": "u" * 80}]
    with pytest.raises(RequestError, match="alone are 83 tokens"):
        fit_messages(alone, render, 64, 5)


def test_heads_and_shifts() -> None:
    messages = conversation(3, True)
    assert head_of(messages, render(messages), render, 400) == 12
    assert head_of(messages, render(messages), render, 10) == 5
    assert head_of(messages[1:], render(messages[1:]), render, 400) == 0
    assert shifted(list(range(10)), 3) == [0, 1, 2, 7, 8, 9]
    assert shifted(list(range(3)), 0) == [2] and shifted([1, 2], 2) == [1, 2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("overflow") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model.load(path, context=64) as made:
        yield made


def test_overflow_is_an_error_by_default(model: Model) -> None:
    with pytest.raises(RequestError, match="65 tokens, the context holds 64"):
        model.generate([5] * 65)
    with pytest.raises(RequestError, match="65 tokens, the context holds 64"):
        model.generate([5] * 65, on_overflow="shift")
    with pytest.raises(RequestError, match="on_overflow is 'cut'"):
        model.generate([5], on_overflow="cut")


def test_a_cut_prompt_answers_as_the_cut_one_would(model: Model) -> None:
    ids = [int(t) for t in np.random.default_rng(1).integers(0, 200, 100)]
    reply = model.generate(ids, max_tokens=6, sampling=GREEDY, ignore_eos=True, on_overflow="truncate-middle")
    reply.read()
    room = 64 - 6 + 1
    assert reply.prompt == [*ids[: room // 4], *ids[100 - (room - room // 4) :]] and len(reply.ids) == 6
    assert reply.report.cut_tokens == 100 - room and reply.notes == reply.report.notes != ()
    same = model.generate(reply.prompt, max_tokens=6, sampling=GREEDY, ignore_eos=True)
    assert same.read() == reply.text


def test_a_conversation_loses_its_middle(model: Model) -> None:
    def talk(n: int) -> list[dict[str, str]]:
        return [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            *[{"role": r, "content": "x" * 9} for _ in range(n) for r in ("user", "assistant")],
            {"role": "user", "content": "z"},
        ]

    n = next(n for n in range(1, 50) if len(model.prompt_ids(talk(n))) > 64)
    if len(model.prompt_ids(talk(0))) > 50:
        pytest.skip("the template alone fills the context")
    reply = model.chat(talk(n), max_tokens=2, on_overflow="truncate-middle", sampling=GREEDY)
    assert reply.report.cut_messages % 2 == 0 and reply.report.cut_messages > 0
    left = n - reply.report.cut_messages // 2
    assert reply.prompt == model.prompt_ids(talk(left))


def test_an_answer_that_is_continued_may_shift(model: Model) -> None:
    """The system message, which a shift keeps, is found without the answer's beginning."""
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    begun = [*said, {"role": "assistant", "content": "b"}]
    kept = [model.chat(begun, max_tokens=2, sampling=GREEDY, on_overflow=o) for o in ("error", "shift")]
    assert [reply.read() for reply in kept] == [kept[0].text] * 2 and kept[0].prompt == kept[1].prompt


def test_a_shifted_answer_goes_on_as_from_what_was_kept(model: Model) -> None:
    ids = [int(t) for t in np.random.default_rng(2).integers(0, 200, 40)]
    reply = model.generate(ids, max_tokens=70, sampling=GREEDY, ignore_eos=True, on_overflow="shift")
    reply.read()
    assert len(reply.ids) == 70 and reply.stats.finish == "length" and not reply.stats.reason
    first = 64 - 40 + 1
    whole = [*ids, *reply.ids[:first]]
    kept = whole[-(len(whole) // 2) :]
    alone = model.generate(kept, max_tokens=64 - len(kept) + 1, sampling=GREEDY, ignore_eos=True)
    alone.read()
    assert reply.ids[first : first + len(alone.ids)] == alone.ids
    assert reply.report.shifts >= 2 and reply.report.cut_tokens >= len(whole) - len(kept)
    assert "older tokens were forgotten" in reply.notes[0]


def test_random_numbers_do_not_come_again_after_a_shift(model: Model) -> None:
    def run(seed: int) -> list[int]:
        reply = model.generate(
            [7] * 60, max_tokens=60, sampling=WARM.with_seed(seed), ignore_eos=True, on_overflow="shift"
        )
        reply.read()
        seeds = {seq.request.sampling.seed for seq in reply._sequences}
        assert len(seeds) == len(reply._sequences) > 1
        return reply.ids

    assert run(1) == run(1) != run(2)
