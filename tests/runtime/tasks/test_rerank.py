"""Reranking: a classifier head equals numpy's product; yes/no rerankers use the file's question; other models
are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.errors import ModelError, RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.tasks.rerank import filled, pair_ids

pytestmark = needs("cpu")

DOCUMENTS = ["b", "a b c", "zzz", "{query}", "b"]
KEY = "tokenizer__chat_template__rerank"
RNG = np.random.default_rng(4)
OUT, DENSE = RNG.standard_normal((2, tiny.WIDTH)) * 0.1, RNG.standard_normal((tiny.WIDTH, tiny.WIDTH)) * 0.1
BIAS = RNG.standard_normal(2)


def head(w: tiny.TinyWeights, classes: int, dense: bool) -> None:
    w.put("cls.output.weight", OUT[:classes].astype(np.float32))
    w.put("cls.output.bias", BIAS[:classes].astype(np.float32))
    if dense:
        w.put("cls.weight", DENSE.astype(np.float32))


@pytest.mark.parametrize(
    ("classes", "dense", "labels", "worker"),
    [(1, True, None, "thread"), (2, False, ["no", "yes"], "process"), (2, True, None, "thread")],
)
def test_a_head_is_multiplied_with_the_last_row(
    classes: int, dense: bool, labels: list[str] | None, worker: str, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"qwen3__classifier__output_labels": labels} if labels else {}
    path = tiny_file.write_model(
        tmp_path / "m.gguf", "qwen3", "q8_0", change=lambda w: head(w, classes, dense), **keys
    )
    with Model.load(path, threads=2, slots=3, worker=worker) as model:
        found = model.rerank("b c", DOCUMENTS)
        pairs = [pair_ids(model.gguf, model.tokenizer, "b c", d, "") for d in DOCUMENTS]
        x = model.embed(pairs, pooling="last", normalize=False).astype(np.float64)
        x = np.tanh(x @ DENSE.astype(np.float32).astype(np.float64).T) if dense else x
        y = x @ OUT[:classes].T.astype(np.float32).astype(np.float64) + BIAS[:classes]
        share = 1 / (1 + np.exp(-y[:, 0])) if classes == 1 else np.exp(y) / np.exp(y).sum(1, keepdims=True)
        wanted = share if classes == 1 else share[:, 1 if labels else 0]
        wanted = wanted.round(9)  # equal texts are equal, however BLAS sums up their rows
        assert [r.index for r in found] == np.argsort(-wanted, kind="stable").tolist()
        assert np.allclose([r.score for r in found], np.sort(wanted)[::-1], atol=1e-5)
        same = {r.index: r.score for r in found}
        assert same[0] == same[4], "one text, one score"
        assert model.rerank("b c", DOCUMENTS, top=2) == found[:2]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    keys = {KEY: "Is {document} right for {query}? "}
    path = tiny_file.write_model(tmp_path_factory.mktemp("rerank") / "m.gguf", "qwen3", "q8_0", **keys)
    with Model.load(path, threads=2, slots=3) as model:
        yield model


def test_yes_or_no_is_asked_by_the_files_question(asked: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="not single tokens"):
        asked.rerank("b", ["a"])
    # The toy vocabulary has letters in place of words.
    monkeypatch.setattr("satchel.runtime.tasks.rerank.ANSWERS", ("y", "n"))
    yes, no = (asked.tokenize(t, bos=False)[0] for t in "yn")
    found = {r.index: r.score for r in asked.rerank("b", DOCUMENTS)}
    for i, document in enumerate(DOCUMENTS):
        ids = asked.tokenize(f"Is {document} right for b? ", bos=False)
        logits = asked.logits(ids)[-1].astype(np.float64)
        assert found[i] == pytest.approx(1 / (1 + np.exp(logits[no] - logits[yes])), abs=1e-9)
    assert asked.rerank("b", []) == []


def test_texts_fill_their_place_once_and_write_no_control_token(asked: Model) -> None:
    assert (
        filled("{query}|{document}|{x}", {"query": "{document}", "document": "{query}"})
        == "{document}|{query}|{x}"
    )
    tokens = list(asked.gguf.metadata["tokenizer.ggml.tokens"])
    control = next(t for t in tokens if t.startswith("<|"))
    assert tokens.index(control) in asked.tokenize(control, special=True, bos=False)
    ids = pair_ids(asked.gguf, asked.tokenizer, control, control, "")
    assert tokens.index(control) not in ids


def test_a_model_that_cannot_rank_says_what_can(
    tmp_path: Path, asked: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0")
    with Model.load(path, threads=2) as model:
        with pytest.raises(RequestError, match=r"cls\.output\.weight"):
            model.rerank("a", ["b"])
        with pytest.raises(RequestError, match="top is 0"):
            model.rerank("a", ["b"], top=0)
    bad = tiny_file.write_model(tmp_path / "bad.gguf", "qwen3", "q8_0", **{KEY: "{query} alone"})
    with (
        Model.load(bad, threads=2) as model,
        pytest.raises((ModelError, RequestError), match=r"document|single"),
    ):
        model.rerank("a", ["b"])
    wrong = tiny_file.write_model(
        tmp_path / "wrong.gguf", "qwen3", "q8_0", change=lambda w: w.put("cls.output.weight", OUT[:, :128])
    )
    with Model.load(wrong, threads=2) as model, pytest.raises(ModelError, match="expected shape"):
        model.rerank("a", ["b"])
    monkeypatch.setattr("satchel.runtime.tasks.rerank.ANSWERS", ("y", "n"))
    with pytest.raises(RequestError, match=r"document 1: .*tokens, the context"):
        asked.rerank("a", ["b", "c" * 200])
