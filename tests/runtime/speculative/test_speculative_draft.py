"""A draft model: its vocabulary is checked, its quality does not affect answers, and its cache stays in
step.
"""

from __future__ import annotations

import itertools
from collections import abc
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs
from tiny_file import write_model

from satchel import Model
from satchel.errors import ModelError, RequestError
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.scheduler import Batch, Scheduler, Sequence
from satchel.runtime.speculative import Speculation, Speculator
from satchel.runtime.speculative.draft import DraftModel
from satchel.runtime.speculative.room import max_draft_tokens

pytestmark = needs("cpu")
KINDS = (GREEDY, Sampling(seed=4), Sampling(seed=9, repeat_penalty=1.5, presence_penalty=0.4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return write_model(folder / "model.gguf")


@pytest.fixture(scope="module")
def other(folder: Path) -> Path:
    return write_model(folder / "other.gguf", "llama", "q4_k", seed=7)


def made(seed: int, slots: int = 3, context: int = 96, batch: int = 64, arch: str = "llama") -> Engine:
    cache = Cache(context=context, slots=slots, block=16)
    weights = tiny.weights(arch, "q8_0", seed)
    return tiny.engine(arch, weights, cache, find_backend("cpu").open(threads=2), batch=batch)


class Always(Speculator):
    """Drafts up to four tokens at every step, whether it pays or not."""

    def _choose(self, proposed, scheduled, scheduler, rows):  # type: ignore[no-untyped-def]
        pages, most = scheduler.engine.pages, min(4, rows // len(proposed))
        return {seq: n for seq in proposed if (n := max_draft_tokens(seq, pages, most))}


def test_a_draft_model_changes_no_token_and_one_that_is_the_model_is_always_right(
    path: Path, other: Path
) -> None:
    with (
        Model.load(path) as plain,
        Model.load(path, speculation=Speculation(draft_model=path)) as same,
        Model.load(path, speculation=Speculation(draft_model=str(other))) as wrong,
    ):
        for i, chosen in enumerate(KINDS):
            wanted = plain.generate("hello " + "there " * i, max_tokens=40, sampling=chosen, ignore_eos=True)
            wanted.read()
            for model in (same, wrong):
                reply = model.generate(
                    "hello " + "there " * i, max_tokens=40, sampling=chosen, ignore_eos=True
                )
                assert reply.read() == wanted.text and reply.ids == wanted.ids
                if model is same:
                    assert reply.stats.accepted == reply.stats.drafted


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(("batch", "arch"), [(64, "llama"), (12, "llama"), (64, "qwen35"), (12, "mamba2")])
def test_what_the_draft_model_holds_stays_in_step_with_many_requests(
    seed: int, batch: int, arch: str
) -> None:
    """With the model's own weights every draft is right: a wrong cache of the draft model would show. A batch
    of 12 makes it catch up over several steps.
    """
    engine, draft_engine = made(0, arch=arch), made(seed, batch=batch, arch=arch)
    rng = np.random.default_rng(2)
    wanted = []
    for i in range(14):
        ids = [int(t) for t in rng.integers(0, tiny.VOCAB, rng.integers(1, 50))]
        wanted.append(GenerateRequest(ids, int(rng.integers(2, 60)), KINDS[i % 3]))
    service = Service(engine)
    alone = [list(service.submit(r)) for r in wanted]
    service.close()
    draft = DraftModel(draft_engine, tiny.VOCAB, tiny.VOCAB)
    service = Service(engine, speculator=Always(Speculation(draft_model="x"), draft))
    handles = [service.submit(r) for r in [*wanted, *wanted]]
    assert [list(t) for t in handles] == alone + alone
    service.close()
    engine.pages.check()
    draft_engine.pages.check()
    drafted, accepted = (sum(getattr(t.seq.used, n) for t in handles) for n in ("drafted", "accepted"))
    assert drafted > 100
    assert accepted == drafted if seed == 0 else accepted < drafted
    draft_engine.pages.tree.clear()
    assert draft_engine.pages.pool.free == draft_engine.pages.pool.size
    engine.close()
    draft_engine.close()


def test_M19_a_token_beyond_the_models_vocabulary_is_never_proposed() -> None:
    """The draft model's vocabulary is larger, and the first extra token is its likeliest."""
    engine = made(0, slots=1)
    free = DraftModel(engine, tiny.VOCAB, tiny.VOCAB)
    seq = Sequence(GenerateRequest([1, 2, 3], 50, GREEDY), 0.0)
    seq.slot = 0
    drafted = free.propose({seq: 6}, 64)[seq]
    assert len(drafted) == 6
    first = next(i for i, t in enumerate(drafted) if t == max(drafted))
    few = DraftModel(engine, max(drafted), tiny.VOCAB)
    assert few.propose({seq: 6}, 64)[seq] == drafted[:first]
    small = DraftModel(engine, tiny.VOCAB, own=3)
    assert small.propose({seq: 6}, 64) == {}, "a token that the draft model lacks cannot be fed to it"
    engine.close()


def changed(path: Path, **keys: object) -> dict[str, object]:
    from satchel.formats.gguf import open_gguf

    with_keys: dict[str, object] = {}
    gguf = open_gguf(path)
    tokens = list(gguf.metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    gguf.close()
    for name, value in keys.items():
        if name == "token":
            tokens[70] = value
            with_keys["tokenizer__ggml__tokens"] = tokens
        else:
            with_keys[name] = value
    return with_keys


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"token": "another"}, r"token 70 is 'another' in the draft model and '.*' in the model"),
        ({"tokenizer__ggml__eos_token_id": 5}, "the eos token is 5 in the draft model and"),
    ],
    ids=["M19-token", "M19-eos"],
)
def test_M19_another_vocabulary_is_refused_with_the_difference(
    keys: dict[str, object], said: str, path: Path, tmp_path: Path
) -> None:
    draft = write_model(tmp_path / "draft.gguf", **changed(path, **keys))
    with pytest.raises(RequestError, match=said):
        Model.load(path, speculation=Speculation(draft_model=draft))


def test_M19_a_draft_that_is_no_model_is_refused_and_all_is_closed(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ModelError):
        Model.load(path, speculation=Speculation(draft_model=broken))
    with pytest.raises(ModelError):
        Model.load(path, speculation=Speculation(draft_model=tmp_path / "absent.gguf"))


@pytest.fixture
def pair() -> abc.Iterator[tuple[Scheduler, Speculator]]:
    engine, draft_engine = made(0), made(0, context=48)
    yield (
        Scheduler(engine, 3),
        Speculator(Speculation(draft_model="x"), DraftModel(draft_engine, tiny.VOCAB, tiny.VOCAB)),
    )
    engine.close()
    draft_engine.close()


def run(scheduler: Scheduler, speculator: Speculator, engine: Engine, seconds: list[float]) -> Batch:
    """A step with a clock of its own."""
    batch = speculator.extend(scheduler.plan(0.0), scheduler)
    tokens = engine.step(tuple(batch.values()))
    speculator.timed(batch, seconds[0], scheduler)
    scheduler.done(batch, tokens, 0.0, seconds[0])
    return batch


def test_a_draft_model_that_is_too_slow_turns_itself_off_and_costs_little(
    pair: tuple[Scheduler, Speculator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft token takes as long as a step; where it takes a tenth, it is on."""
    scheduler, speculator = pair
    draft, engine = speculator.draft_model, scheduler.engine
    assert draft is not None and isinstance(engine, Engine)
    for each, most in ((1e-2, 0.1), (1e-3, 99.0)):
        monkeypatch.setattr(draft, "seconds", lambda seqs, each=each: each)
        monkeypatch.setattr(draft, "catching_up", lambda seq: 0.0)
        drafted = steps = 0
        for i in range(12):
            seq = Sequence(GenerateRequest([i, 2, 3], 40, GREEDY), 0.0)
            scheduler.add(seq)
            while not seq.finish:
                batch = run(scheduler, speculator, engine, [1e-2])
                drafted += sum(len(entry.draft_tokens) for entry in batch.values())
                steps += 1
            speculator.forget(seq)
        assert drafted / steps < most
        assert drafted > (steps if most > 1 else 0), "it is tried from time to time"
    long = Sequence(GenerateRequest([7] * 60, 9, GREEDY), 0.0)
    scheduler.add(long)
    while not long.finish:
        run(scheduler, speculator, engine, [1e-2])
    assert long.used.drafted == 0, "the draft model's context ends before"


def test_lookup_and_a_draft_model_work_together(path: Path, other: Path) -> None:
    both = Speculation(draft_model=other, lookup=True, draft_max=5, past=100)
    with Model.load(path) as plain, Model.load(path, speculation=both, slots=2) as model:
        for text, chosen in itertools.product(("abcabcabcabc", "hello"), KINDS):
            wanted = plain.generate(text, max_tokens=40, sampling=chosen, ignore_eos=True)
            reply = model.generate(text, max_tokens=40, sampling=chosen, ignore_eos=True)
            wanted.read()
            reply.read()
            assert reply.ids == wanted.ids
