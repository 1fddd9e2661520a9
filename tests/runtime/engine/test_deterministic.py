"""An answer, its tokens and the bits of its log-probabilities, depends on the request only: not on batch,
threads, chunks, drafts, cached prefixes or preemption.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from devices import needs

from satchel.errors import RequestError
from satchel.runtime.api.model import Model, Options
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation, Speculator

pytestmark = needs("cpu")
CONTEXT = 400
KINDS = (
    GREEDY,
    Sampling(temperature=1.1, seed=1),
    Sampling(repeat_penalty=1.3, presence_penalty=0.4, top_k=0, top_p=0.9, seed=2),
    Sampling(mirostat=2, mirostat_tau=4, seed=3),
)
Answer = tuple[list[int], bytes]


@dataclass(frozen=True)
class Setting:
    """How an engine is opened and used."""

    slots: int = 1
    threads: int = 1
    batch: int = 512
    blocks: int = 0
    together: bool = False
    drafts: bool = False


SETTINGS = {
    "batch 4": Setting(slots=4, together=True),
    "batch 8, two threads": Setting(slots=8, threads=2, together=True),
    "two threads": Setting(threads=2),
    "chunks of 32": Setting(batch=32),
    "chunks of 32, batch 8, two threads": Setting(slots=8, threads=2, batch=32, together=True),
    "drafts": Setting(drafts=True),
    "drafts, batch 4, two threads": Setting(slots=4, threads=2, together=True, drafts=True),
    "few blocks": Setting(slots=4, threads=2, batch=32, blocks=22, together=True),
}


def open_engine(arch: str, format: str, kind: str, how: Setting) -> Engine:
    cache = Cache(CONTEXT, how.slots, block=16, blocks=how.blocks, keys=kind, values=kind, batch=how.batch)
    device = find_backend("cpu").open(threads=how.threads)
    return tiny.engine(arch, weights(arch, format), cache, device, batch=how.batch)


@functools.cache
def weights(arch: str, format: str) -> tiny.TinyWeights:
    return tiny.weights(arch, format, mixed=True)


def requests() -> list[GenerateRequest]:
    """Long and short ones; some begin alike, some repeat themselves, half of them report."""
    rng = np.random.default_rng(7)
    shared = [int(t) for t in rng.integers(0, tiny.VOCAB, 150)]
    loop = [int(t) for t in rng.integers(0, 9, 11)]
    found = []
    for i, length in enumerate((1, 200, 33, 5, 120, 64, 17, 250)):
        own = [int(t) for t in rng.integers(0, tiny.VOCAB, length)]
        ids = (own, shared + own[:40], loop * 6 + own[:3])[i % 3]
        found.append(GenerateRequest(ids, 24, KINDS[i // 2], logprobs=i % 4 if i % 2 else -1))
    return found


def bits(handle: RequestHandle) -> bytes:
    """All reported numbers of the tokens, as bytes of float32."""
    told = [x for p in handle.logprobs for x in (p.logprob, p.rank, *(v for pair in p.top for v in pair))]
    return np.array(told, np.float32).tobytes()


def ask(
    engine: Engine, wanted: Sequence[GenerateRequest], how: Setting
) -> tuple[list[Answer], list[RequestHandle]]:
    speculator = Speculator(Speculation(lookup=True)) if how.drafts else None
    service, handles, found = Service(engine, speculator=speculator), [], []
    try:
        for request in wanted:
            handles.append(service.submit(request))
            if not how.together:
                found.append(list(handles[-1]))
        if how.together:
            found = [list(t) for t in handles]
    finally:
        service.close()
    engine.pages.check()
    return [(tokens, bits(t)) for tokens, t in zip(found, handles, strict=True)], handles


@pytest.mark.parametrize(
    ("arch", "format", "kind"),
    [
        ("llama", "q8_0", "f16"),
        ("llama", "q4_k", "q8_0"),
        ("qwen3moe", "q8_0", "q8_0"),
        ("qwen2", "bf16", "fp8"),
    ],
)
def test_an_answer_depends_on_its_request_alone(arch: str, format: str, kind: str) -> None:
    wanted, alone, engine = requests(), [], open_engine(arch, format, kind, Setting())
    for request in wanted:
        alone += ask(engine, [request], Setting())[0]
        engine.pages.tree.clear()
    engine.close()
    assert len({tuple(tokens) for tokens, _ in alone}) == len(wanted), "answers differ, so they say something"
    for name in SETTINGS if arch == "llama" else list(SETTINGS)[4::2]:
        how = SETTINGS[name]
        engine = open_engine(arch, format, kind, how)
        first, handles = ask(engine, wanted, how)
        again, found = ask(engine, wanted[::-1], how)
        engine.close()
        assert first == alone, name
        assert again[::-1] == alone, f"{name}, from the cache"
        assert any(t.seq.cached for t in found)
        if how.blocks:
            assert any(t.seq.preempted for t in handles)
        if how.drafts and not how.together:
            assert any(t.seq.used.drafted for t in (*handles, *found))


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("format", ["q8_0", "q4_k", "f16", "bf16"])
def test_logits_are_the_same_bits_in_any_pieces(format: str, kind: str) -> None:
    ids = [int(t) for t in np.random.default_rng(3).integers(0, tiny.VOCAB, 300)]
    found: list[bytes] = []
    for threads, chunk in ((1, 300), (2, 300), (2, 32), (1, 7), (2, 1)):
        engine = open_engine("llama", format, kind, Setting(slots=2, threads=threads))
        rows = []
        for at in range(0, len(ids), chunk):
            fed, beside = ids[at : at + chunk], [BatchEntry(1, [at % 250])] if chunk == 7 else []
            rows.append(engine.logits([BatchEntry(0, fed), *beside])[: len(fed)])
        found.append(np.concatenate(rows).tobytes())
        engine.close()
    assert len(set(found)) == 1


TEXTS = (
    "Once upon a time",
    "List three animals and say where each of them lives.",
    "The quick brown fox jumps over the lazy dog. " * 12 + "What does the fox do?",
    "2 + 2 =",
    "Dear Sir or Madam,",
    "The quick brown fox jumps over the lazy dog. " * 12 + "What does the dog do?",
    "Why is the sky blue?",
    "Name a color.",
)


def read_all(model: Model, together: bool) -> list[tuple[str, bytes]]:
    kinds = (GREEDY, Sampling(seed=5), Sampling(temperature=1.2, top_k=0, seed=6))
    replies = [
        model.generate(text, max_tokens=20, sampling=kinds[i % 3], ignore_eos=True, logprobs=2)
        for i, text in enumerate(TEXTS)
    ]
    for reply in replies:
        reply.start()
        if not together:
            reply.read()
    return [
        (reply.read(), np.array([(p.logprob, *p.top[1]) for p in reply.logprobs], np.float32).tobytes())
        for reply in replies
    ]


USUAL = Options(context=512, threads=1, deterministic=True)
LOADED = {
    "batch 4": replace(USUAL, slots=4, threads=2),
    "batch 8": replace(USUAL, slots=8),
    "chunks of 32": replace(USUAL, slots=2, batch=32),
    "chunks of 32, batch 8": replace(USUAL, slots=8, batch=32, threads=2),
    "drafts": replace(USUAL, slots=4, threads=2, speculation=Speculation(lookup=True)),
    "other threads for prompts": replace(USUAL, threads=1, threads_batch=2, slots=8),
    "weights in the file": replace(USUAL, repack=False, slots=4, threads=2),
}


@pytest.fixture(scope="module")
def one_by_one(bundled_model: Path) -> list[tuple[str, bytes]]:
    with Model.load(bundled_model, USUAL) as model:
        found = read_all(model, False)
        assert read_all(model, True) == found, "from the cache"
    assert len({text for text, _ in found}) == len(TEXTS)
    return found


@pytest.mark.parametrize("name", LOADED)
def test_the_bundled_model_says_the_same_however_it_is_loaded(
    bundled_model: Path, one_by_one: list[tuple[str, bytes]], name: str
) -> None:
    with Model.load(bundled_model, LOADED[name]) as model:
        assert read_all(model, True) == one_by_one
        assert read_all(model, False) == one_by_one, "from the cache"


def test_a_device_that_does_not_promise_it_is_refused(bundled_model: Path) -> None:
    with pytest.raises(RequestError, match=r"deterministic.*numba"):
        Model.load(bundled_model, device="numba", deterministic=True)
