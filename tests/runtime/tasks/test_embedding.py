"""Embeddings equal numpy's pooling of the definition's rows; the same bits alone, in a batch and in
chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array, leaves
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.ops import evaluate
from satchel.runtime.plan import Bucket
from satchel.runtime.sampling import GREEDY

pytestmark = needs("cpu")

RNG = np.random.default_rng(9)
TEXTS = [[int(t) for t in RNG.integers(0, tiny.VOCAB, n)] for n in (1, 90, 7, 33, 64, 2, 15, 80, 31, 96, 5)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("embedding") / "m.gguf", "llama", "q8_0")


@pytest.fixture(scope="module", params=("thread", "process"))
def model(path: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    with Model.load(path, slots=4, threads=2, batch=64, worker=request.param) as made:
        yield made


def defined(ids: list[int]) -> Array:
    """Rows (n, D) by the ops' definitions."""
    w, n = tiny.weights("llama", "q8_0"), len(ids)
    cache = Cache(96, keys="f32", values="f32")
    arch = find_arch("llama")(HParams(tiny.metadata("llama"), "llama"), w, cache)
    roots = arch.build().roots("hidden")
    values: dict[str, Any] = {
        "ids": np.array(ids, np.int32),
        "pos": np.arange(n, dtype=np.int32),
        "slot": np.zeros(n, np.int32),
        "rows": np.arange(n, dtype=np.int32),
        "table": np.arange(cache.table_width, dtype=np.int32)[None],
        **w.tensors,
    }
    for node in leaves(roots, "state"):
        shape = [Bucket(n, n).size(d) for d in node.shape]
        values[node.name] = np.zeros(shape, np.int32 if node.name == "tokens" else np.float32)
    return evaluate(roots, values)[0]


def test_rows_are_the_definitions(model: Model) -> None:
    ids = TEXTS[6]
    (found,) = model.embed_tokens(ids, normalize=False)
    wanted = defined(ids)
    assert found.shape == wanted.shape == (15, tiny.WIDTH)
    assert np.abs(found - wanted).max() < 0.15 * np.abs(wanted).std(), "quantized activations differ a little"


@pytest.mark.parametrize("kind", ["mean", "cls", "last"])
def test_pooling_is_what_numpy_makes_of_the_rows(kind: str, model: Model) -> None:
    rows = [r.astype(np.float64) for r in model.embed_tokens(TEXTS, normalize=False)]
    pick = {"mean": lambda r: r.mean(0), "cls": lambda r: r[0], "last": lambda r: r[-1]}[kind]
    found = model.embed(TEXTS, pooling=kind, normalize=False)
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), tiny.WIDTH)
    assert np.abs(found - np.stack([pick(r) for r in rows])).max() < 1e-5
    unit = model.embed(TEXTS, pooling=kind, dimensions=40)
    cut = np.stack([pick(r)[:40] for r in rows])
    assert unit.shape == (len(TEXTS), 40)
    assert np.abs(unit - cut / np.linalg.norm(cut, axis=1, keepdims=True)).max() < 1e-6


@pytest.mark.parametrize("kind", ["mean", "cls", "last"])
def test_alone_in_a_batch_and_in_pieces_the_bits_are_the_same(kind: str, model: Model, path: Path) -> None:
    together = model.embed(TEXTS, pooling=kind)
    for ids, row in zip(TEXTS, together, strict=True):
        assert np.array_equal(model.embed(ids, pooling=kind)[0], row)
    for slots, batch in ((1, 16), (8, 7)):
        with Model.load(path, slots=slots, threads=1, batch=batch) as other:
            assert np.array_equal(other.embed(TEXTS, pooling=kind), together)
    assert all(
        np.array_equal(a, b[0])
        for a, b in zip(model.embed_tokens(TEXTS), (model.embed_tokens([ids]) for ids in TEXTS), strict=True)
    )


def test_texts_and_answers_run_beside_each_other(model: Model) -> None:
    """More callers than slots: none waits for ever, and each result is the same as alone."""
    alone, text = model.embed(TEXTS), model.generate(TEXTS[3], max_tokens=20, sampling=GREEDY).read()
    found: list[Any] = [None] * 8

    def work(i: int) -> None:
        if i % 2:
            found[i] = model.generate(TEXTS[3], max_tokens=20, sampling=GREEDY).read()
        else:
            found[i] = model.embed(TEXTS)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert all(found[i] == text if i % 2 else np.array_equal(found[i], alone) for i in range(8))
    service = model.service
    if isinstance(service, Service):
        assert service.ask(lambda: service.scheduler.free_slots) == 4
        service.call(model.engine.pages.check)


def test_a_pool_with_room_for_one_text_serves_many(path: Path, model: Model) -> None:
    wanted = model.embed(TEXTS)
    with Model.load(path, slots=4, threads=1) as other:
        other.service.call(other.engine.pages.tree.clear)
        held: list[int] = []

        def hold() -> None:  # leaves the pool three blocks, as one long text needs
            pool = other.engine.pages.pool
            held.extend(pool.take() for _ in range(pool.free - 3))

        other.service.call(hold)
        assert np.array_equal(other.embed(TEXTS), wanted)
        other.service.call(lambda: [other.engine.pages.pool.drop(b) for b in held] and None)


def test_what_a_file_says_of_pooling_holds(tmp_path: Path, model: Model) -> None:
    for number, kind in ((1, "mean"), (2, "cls"), (3, "last"), (0, "mean"), (4, "mean")):
        keys: dict[str, Any] = {"llama__pooling_type": number}
        file = tiny_file.write_model(tmp_path / f"{number}.gguf", "llama", "q8_0", **keys)
        with Model.load(file, threads=2) as other:
            assert np.array_equal(other.embed(TEXTS[:3]), model.embed(TEXTS[:3], pooling=kind))
    assert np.array_equal(model.embed("a b"), model.embed(["a b"]))
    assert np.array_equal(model.embed("a b"), model.embed(model.tokenize("a b")))
    assert model.embed([]).shape == (0, tiny.WIDTH)


def test_what_cannot_be_embedded_is_refused_with_numbers(model: Model) -> None:
    with pytest.raises(RequestError, match=r"text 1: .*97 tokens, the context holds 96"):
        model.embed([[1], [1] * 97])
    with pytest.raises(RequestError, match=r"text 0: .*no token"):
        model.embed([[], [1]])
    with pytest.raises(RequestError, match="text 0: token id 288 is not in the vocabulary"):
        model.embed([[288]])
    with pytest.raises(RequestError, match=r"dimensions are 257: .* 1 to 256"):
        model.embed([[1]], dimensions=257)
    with pytest.raises(RequestError, match="pooling is 'max'"):
        model.embed([[1]], pooling="max")
    with pytest.raises(RequestError, match="embed_tokens"):
        model.embed([[1]], pooling="none")
    assert np.isfinite(model.embed([[1] * 96])).all()
