"""Scores of continuations: sums of log-probabilities, alone and together; a shared prefix is computed
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import extra_files
import numpy as np
import pytest
import tiny
import tiny_file

from satchel.errors import RequestError
from satchel.runtime.api.async_model import AsyncModel
from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import libraries
from satchel.runtime.sampling import GREEDY

pytestmark = pytest.mark.skipif(
    not any(e.name == "cpu" and not e.reason for e in libraries()), reason="no compiled backend is installed"
)

RNG = np.random.default_rng(11)


def some(n: int) -> list[int]:
    return [int(t) for t in RNG.integers(0, tiny.VOCAB, n)]


ASKED = [(some(n), [some(k) for k in (1, 4, 9)]) for n in (1, 40, 65, 12)]


@pytest.fixture(scope="module", params=("thread", "process"))
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("score")
    path = tiny_file.write_model(folder / "m.gguf", "llama", "q8_0")
    adapter = extra_files.write_adapter(folder / "a.gguf", extra_files.factors(1))
    with Model.load(path, slots=4, threads=2, batch=32, adapters=[adapter], worker=request.param) as made:
        yield made


def by_hand(model: Model, prompt: list[int], after: list[int], adapters: dict[str, float]) -> list[float]:
    logits = model.logits([*prompt, *after], adapters=adapters).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return [float(logits[len(prompt) - 1 + i, token]) for i, token in enumerate(after)]


@pytest.mark.parametrize("adapters", [{}, {"a": 0.7}], ids=str)
def test_scores_are_sums_over_log_softmax(adapters: dict[str, float], model: Model) -> None:
    found = model.score_many(ASKED, adapters=adapters)
    for (prompt, continuations), scores in zip(ASKED, found, strict=True):
        for after, one in zip(continuations, scores, strict=True):
            wanted = by_hand(model, prompt, after, adapters)
            assert one.ids == tuple(after)
            assert np.allclose(one.logprobs, wanted, atol=2e-5)
            assert one.total == pytest.approx(sum(wanted), abs=1e-4)
    alone = [model.score(p, c, adapters=adapters) for p, c in ASKED]
    assert alone == found, "the same bits alone and together"


def test_the_greedy_answer_is_known_as_such(model: Model) -> None:
    prompt = ASKED[1][0]
    reply = model.generate(prompt, max_tokens=5, sampling=GREEDY, adapters={}, ignore_eos=True)
    reply.read()
    other = [*reply.ids[:-1], (reply.ids[-1] + 1) % tiny.VOCAB]
    assert [s.greedy for s in model.score(prompt, [reply.ids, other], adapters={})] == [True, False]


def test_a_prompt_is_read_once_for_all_its_continuations(model: Model) -> None:
    if model.options.worker == "process":
        pytest.skip("what the engine is fed is seen in its own process alone")
    fed: list[int] = []
    real = model.engine.fill

    def fill(entries, rows, output, *, every):  # type: ignore[no-untyped-def]
        fed.append(sum(len(e.ids) for e in entries))
        return real(entries, rows, output, every=every)

    prompt, continuations = some(65), [some(3) for _ in range(6)]
    model.engine.fill = fill  # type: ignore[method-assign]
    try:
        model.score(prompt, continuations, salt="here")
    finally:
        model.engine.fill = real  # type: ignore[method-assign]
    assert sum(fed) == 65 - 1 + 3 + 5 * 3, "two blocks of 32 and one token are shared"


def test_text_is_read_as_one_with_its_prompt(model: Model) -> None:
    found = model.score("once upon", [" a time", "on a"])
    for text, one in zip((" a time", "on a"), found, strict=True):
        ids = model.tokenize(f"once upon{text}")
        assert one.ids == tuple(ids[len(ids) - len(one.ids) :])
        assert len(one.logprobs) == len(one.ids)


def test_what_cannot_be_scored_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="none of them empty"):
        model.score([1], [[2], []])
    with pytest.raises(RequestError, match="none of them empty"):
        model.score("a", [])
    with pytest.raises(RequestError, match=r"prompt 1: .*no token"):
        model.score_many([([1], [[2]]), ([], [[2]])])
    with pytest.raises(RequestError, match=r"prompt 0 with a continuation: .*97 tokens"):
        model.score([1] * 90, [[2] * 7])


def test_tasks_get_what_threads_get(model: Model) -> None:
    asynchronous = AsyncModel(model)

    async def all_at_once() -> list[object]:
        scores = [asynchronous.score(p, c, adapters={}) for p, c in ASKED]
        return await asyncio.gather(asynchronous.embed([p for p, _ in ASKED]), *scores)

    vectors, *scores = asyncio.run(all_at_once())
    assert np.array_equal(vectors, model.embed([p for p, _ in ASKED]))
    assert scores == model.score_many(ASKED, adapters={})


def test_prompt_logprobs_and_beams_use_what_is_loaded(model: Model) -> None:
    """Loaded adapters and vectors are applied."""
    prompt = ASKED[1][0]
    wanted = by_hand(model, prompt[:1], prompt[1:], {"a": 1.0})
    assert np.allclose([p.logprob for p in model.prompt_logprobs(prompt)], wanted, atol=2e-5)
    (beam,) = model.beam_search(prompt, 1, 4)
    reply = model.generate(prompt, max_tokens=4, sampling=GREEDY)
    reply.read()
    assert list(beam.ids)[: len(reply.ids)] == reply.ids
    assert beam.logprob == pytest.approx(model.score(prompt, [list(beam.ids)])[0].total, abs=1e-3)


def test_logprobs_of_an_answer_with_an_adapter_are_its_score(model: Model) -> None:
    """Steps that wait for the host know of adapters, beside a row that uses none."""
    prompt = ASKED[2][0][:20]
    plain = model.generate(prompt, max_tokens=6, sampling=GREEDY, adapters={}, logprobs=0, ignore_eos=True)
    mixed = model.generate(
        prompt, max_tokens=6, sampling=GREEDY, adapters={"a": 1.0}, logprobs=0, ignore_eos=True
    )
    next(plain, None)
    mixed.read()
    plain.read()
    for reply, adapters in ((plain, {}), (mixed, {"a": 1.0})):
        (one,) = model.score(prompt, [reply.ids], adapters=adapters)
        assert one.greedy
        assert np.allclose([p.logprob for p in reply.logprobs], one.logprobs, atol=2e-5)
