"""Requests with host-side sampling: bitmasks, biases, processors, log-probabilities, mirostat, beams."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import tiny
from devices import needs
from waiting import happened, until

from satchel.errors import RequestError
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine import scoring
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.beam import BeamOptions, beam_search, log_softmax
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import EDITS as HOST_EDITS
from satchel.runtime.engine.program import Program
from satchel.runtime.engine.scoring import score
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import EDITS, TOP, Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.sampling.logprobs import TOP as LOGPROB_TOP

pytestmark = needs("cpu")
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]


def open_engine(backend: str = "cpu", slots: int = 4, blocks: int = 0) -> Engine:
    cache = Cache(context=96, slots=slots, block=16, blocks=blocks)
    device = find_backend(backend).open(threads=2)
    return tiny.engine("llama", tiny.weights("llama", "q8_0"), cache, device)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(open_engine())
    yield made
    made.close()
    made.engine.close()


def read(
    service: Service, sampling: Sampling = GREEDY, most: int = 12, banned: frozenset[int] = frozenset()
) -> list[int]:
    return list(service.submit(GenerateRequest(PROMPT, most, sampling, banned=banned)))


class Pattern:
    """A constraint that allows one set of tokens after another, and ends with the last."""

    def __init__(self, sets: Sequence[set[int]]) -> None:
        self.sets, self.taken = sets, list[int]()

    @property
    def finished(self) -> bool:
        return len(self.taken) == len(self.sets)

    def fill(self, bitmask: Array) -> None:
        for token in self.sets[len(self.taken)]:
            bitmask[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token: int) -> None:
        assert token in self.sets[len(self.taken)]
        self.taken.append(token)

    def rollback(self, n: int) -> None:
        del self.taken[len(self.taken) - n :]


def test_the_sizes_of_a_step_are_those_of_host_sampling() -> None:
    assert (EDITS, TOP) == (HOST_EDITS, LOGPROB_TOP)


def test_a_constraint_holds_and_ends_the_answer(service: Service) -> None:
    sets = [{5, 6, 7}, {100}, {31, 32, 287}, {0}]
    constraint = Pattern(sets)
    assert isinstance(constraint, Constraint)
    handle = service.submit(GenerateRequest(PROMPT, 50, GREEDY, constraint=constraint))
    tokens = list(handle)
    assert len(tokens) == 4 and all(t in s for t, s in zip(tokens, sets, strict=True))
    assert handle.finish == "stop" and constraint.taken == tokens


def test_others_in_the_batch_are_drawn_as_ever(service: Service) -> None:
    plain = [GenerateRequest([7, i], 20, Sampling(seed=i)) for i in range(3)]
    alone = [list(service.submit(r)) for r in plain]
    handles = [service.submit(r) for r in plain]
    held = service.submit(GenerateRequest(PROMPT, 20, Sampling(seed=9), constraint=Pattern([{1, 2, 3}] * 20)))
    assert [list(t) for t in handles] == alone
    assert set(held) <= {1, 2, 3}


@pytest.mark.parametrize("trouble", ["fill", "accept", "nothing", "processor", "shape"])
def test_a_caller_s_own_code_fails_alone(service: Service, trouble: str) -> None:
    class Broken(Pattern):
        def fill(self, bitmask: Array) -> None:
            if trouble == "fill":
                raise ValueError("no idea")
            bitmask[:] = 0 if trouble == "nothing" else 0xFFFFFFFF

        def accept(self, token: int) -> None:
            raise ValueError("not this one")

    def broken(past: Sequence[int], logits: Array) -> Array:
        if trouble == "shape":
            return logits[:-1]
        raise KeyError("lost")

    custom = trouble in ("processor", "shape")
    request = GenerateRequest(PROMPT, 9, GREEDY)
    if custom:
        request = replace(request, logits_processors=(broken,))
    else:
        request = replace(request, constraint=Broken([{1}] * 9))
    beside = service.submit(GenerateRequest([4, 5], 15, GREEDY))
    with pytest.raises(RequestError, match=r"failed|no token"):
        list(service.submit(request))
    assert len(list(beside)) == 15
    service.call(service.engine.pages.check)


def test_masks_and_biases(service: Service) -> None:
    usual = read(service)
    assert usual[0] not in read(service, banned=frozenset({usual[0]}))
    assert usual[0] not in read(service, replace(GREEDY, logit_bias={usual[0]: float("-inf")}))
    assert set(read(service, replace(GREEDY, logit_bias={17: 1e4}))) == {17}
    assert set(read(service, Sampling(temperature=5, seed=1, allowed=(8, 200)))) == {8, 200}
    again = read(service, replace(GREEDY, bad_words=(tuple(usual[:3]),)))
    assert again[:2] == usual[:2] and again[2] != usual[2]
    single = read(service, replace(GREEDY, bad_words=((usual[1],),)))
    assert usual[1] not in single


def test_an_end_token_waits_for_min_tokens(service: Service) -> None:
    usual = read(service)
    ends = frozenset({usual[0]})
    asked = GenerateRequest(PROMPT, 12, replace(GREEDY, min_tokens=5), ends)
    tokens = list(service.submit(asked))
    assert len(tokens) >= 5 and not set(tokens[:5]) & ends


def test_processors_change_logits_and_reports_stay_the_model_s(service: Service) -> None:
    seen: list[list[int]] = []

    def only_nine(past: Sequence[int], logits: Array) -> None:
        seen.append(list(past))
        logits[np.arange(len(logits)) != 9] = -np.inf

    request = GenerateRequest(PROMPT, 3, GREEDY, logprobs=2, logits_processors=(only_nine,))
    handle = service.submit(request)
    assert list(handle) == [9, 9, 9]
    assert seen == [PROMPT, [*PROMPT, 9], [*PROMPT, 9, 9]]
    wanted = reference(service, [*PROMPT, 9, 9, 9])[-3:]
    for told, row in zip(handle.logprobs, wanted, strict=True):
        assert told.logprob == pytest.approx(row[9], abs=1e-4)
        assert told.top[0][0] == int(row.argmax())


def reference(service: Service, ids: list[int]) -> Array:
    """Logarithms of probability of every token after each but the last."""
    found: list[Array] = []

    def run(slot: int) -> None:
        for at in range(0, len(ids) - 1, 64):
            found.append(service.engine.logits([BatchEntry(slot, ids[at : min(at + 64, len(ids) - 1)])]))

    service.with_slot(run)
    return log_softmax(np.concatenate(found))


@pytest.mark.parametrize("k", [0, 1, 20])
def test_logprobs_are_those_of_the_logits(service: Service, k: int) -> None:
    request = GenerateRequest(PROMPT, 6, Sampling(temperature=2, top_k=0, seed=4), logprobs=k)
    handle = service.submit(request)
    tokens = list(handle)
    rows = reference(service, [*PROMPT, *tokens])[len(PROMPT) - 1 :]
    assert [p.token for p in handle.logprobs] == tokens
    for told, row in zip(handle.logprobs, rows, strict=True):
        assert told.logprob == pytest.approx(row[told.token], abs=1e-4)
        assert told.rank == int((row > row[told.token]).sum())
        assert [t for t, _ in told.top] == np.argsort(-row, kind="stable")[:k].tolist()
        assert [v for _, v in told.top] == pytest.approx(np.sort(row)[::-1][:k].tolist(), abs=1e-4)


def test_prompt_logprobs(service: Service) -> None:
    long = [int(i) for i in np.random.default_rng(1).integers(0, tiny.VOCAB, 90)]
    found = score(service, long, 3)
    rows = reference(service, long)
    assert len(found) == len(long) - 1
    for told, token, row in zip(found, long[1:], rows, strict=True):
        assert told.token == token and told.logprob == pytest.approx(row[token], abs=1e-4)
        assert len(told.top) == 3
    handle = service.submit(GenerateRequest(long, 1, GREEDY))
    list(handle)
    assert handle.seq.cached == 80, "what was scored is found again"


def test_others_get_their_tokens_between_the_steps_of_prompt_logprobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reports are the same bits as alone, where steps are longer."""
    engine = open_engine(slots=2)
    made, long = Service(engine), [int(i) for i in np.random.default_rng(2).integers(0, tiny.VOCAB, 90)]
    alone = score(made, long, 2)
    list(made.submit(GenerateRequest(PROMPT, 1, GREEDY)))
    order, fill, begun, over = [], engine.fill, threading.Event(), threading.Event()

    def recorded(entries: Sequence[BatchEntry], rows: int, output: str, *, every: bool) -> Program:
        order.append((output, sum(len(f.ids) for f in entries)))
        begun.set()
        if output == "tokens":
            until(lambda: made._inbox or made._calls or over.is_set(), "the next step is asked for")
        return fill(entries, rows, output, every=every)

    engine.fill = recorded  # type: ignore[method-assign]
    handle = made.submit(GenerateRequest(PROMPT, 80, GREEDY))
    happened(begun, "the first step")
    monkeypatch.setattr(scoring, "BESIDE", 8)
    try:
        assert score(made, long, 2) == alone
    finally:
        over.set()
    assert len(list(handle)) == 80
    made.close()
    engine.pages.check()
    engine.close()
    last = max(i for i, (output, _) in enumerate(order) if output == "tokens")
    beside = [i for i, (output, n) in enumerate(order) if output == "scores" and n == 8 and i < last]
    assert len(beside) == 11 and all(order[i + 1][0] == "tokens" for i in beside)


def test_mirostat_comes_near_its_target_and_survives_pre_emption() -> None:
    """The same tokens with a cache so small that requests preempt each other."""
    texts = []
    for blocks in (0, 7):
        small = Service(open_engine(blocks=blocks))
        sampling = Sampling(temperature=1, mirostat=2, mirostat_tau=3, mirostat_eta=0.2)
        requests = [GenerateRequest([i, *PROMPT], 40, replace(sampling, seed=i)) for i in range(3)]
        handles = [small.submit(r) for r in requests]
        texts.append([list(t) for t in handles])
        preempted = sum(t.seq.preempted for t in handles)
        mus = [t.seq.host_sampling.mu for t in handles if t.seq.host_sampling is not None]
        assert all(mu != 6 for mu in mus), "it has followed the tokens' nll_bits"
        small.close()
        small.engine.pages.check()
        small.engine.close()
    assert preempted > 0 and texts[0] == texts[1]


def test_mirostat_does_not_depend_on_the_batch(service: Service) -> None:
    requests = [
        GenerateRequest(PROMPT[i:], 15, Sampling(seed=i, mirostat=1 + i % 2, mirostat_tau=4))
        for i in range(4)
    ]
    alone = [list(service.submit(r)) for r in requests]
    assert [list(t) for t in [service.submit(r) for r in requests]] == alone


def test_dry_ends_a_loop(service: Service) -> None:
    loop = [5, 6, 7, 8] * 4
    free = list(service.submit(GenerateRequest(loop, 8, replace(GREEDY, logit_bias={5: 1e3}))))
    assert free[0] == 5
    sampling = replace(GREEDY, logit_bias={5: 20.0}, dry_multiplier=100.0, dry_base=4.0)
    assert next(iter(service.submit(GenerateRequest(loop, 1, sampling)))) != 5


@pytest.mark.parametrize("backend", ["remote", "numba"])
def test_other_backends_give_the_same(service: Service, backend: str) -> None:
    other = Service(open_engine(backend))
    plain = GenerateRequest(PROMPT, 6, GREEDY)
    for held in (True, False):
        found = []
        for one in (service, other):
            constrained = replace(plain, constraint=Pattern([set(range(40, 90))] * 6))
            found.append(list(one.submit(constrained if held else replace(plain, logprobs=3))))
        assert found[0] == found[1]
    other.close()
    other.engine.close()


@pytest.mark.parametrize(
    "bad", [{"logprobs": -2}, {"logprobs": 21}, {"logprobs": 10**9}], ids=lambda b: f"H03-{b['logprobs']}"
)
def test_h03_too_many_logprobs_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="logprobs"):
        GenerateRequest(PROMPT, 1, **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sampling", [{"logit_bias": {tiny.VOCAB: 1.0}}, {"allowed": (-1,)}, {"bad_words": ((9999,),)}]
)
def test_h03_a_token_out_of_range_is_refused(service: Service, sampling: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        service.submit(GenerateRequest(PROMPT, 1, Sampling(seed=0, **sampling)))  # type: ignore[arg-type]


# --- beams


def brute_force(
    service: Service, prompt: list[int], width: int, steps: int, ends: frozenset[int]
) -> list[tuple[int, ...]]:
    """Beam search in numpy, with each beam computed again at each step."""
    opened: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    closed: list[tuple[tuple[int, ...], float]] = []
    for _ in range(steps):
        grown = []
        for ids, total in opened:
            row = reference(service, [*prompt, *ids, 0])[-1]
            grown += [((*ids, t), total + float(row[t])) for t in range(len(row))]
        grown = sorted(grown, key=lambda b: -b[1])[: 2 * width]
        closed += [b for b in grown[:width] if b[0][-1] in ends]
        opened = [b for b in grown if b[0][-1] not in ends][:width]
    ranked = sorted([*closed, *opened], key=lambda b: -b[1] / len(b[0]))
    return [ids for ids, _ in ranked[:width]]


@pytest.mark.parametrize(
    ("width", "ends"), [(1, frozenset()), (3, frozenset()), (4, frozenset(range(0, 288, 3)))]
)
def test_beams_are_those_of_brute_force(service: Service, width: int, ends: frozenset[int]) -> None:
    found = beam_search(service, PROMPT, BeamOptions(width, 6, 1.0, ends))
    assert [b.ids for b in found] == brute_force(service, PROMPT, width, 6, ends)
    assert all(a.score >= b.score for a, b in itertools.pairwise(found))
    service.call(service.engine.pages.check)


def test_beams_run_beside_others_and_give_their_slots_back(service: Service) -> None:
    handles = [service.submit(GenerateRequest([i, 2], 30, GREEDY)) for i in range(6)]
    assert len(beam_search(service, PROMPT, BeamOptions(4, 20))) == 4
    assert [len(list(t)) for t in handles] == [30] * 6
    assert service.ask(lambda: service.scheduler.free_slots) == 4
    with pytest.raises(RequestError, match="slots"):
        beam_search(service, PROMPT, BeamOptions(5, 20))
