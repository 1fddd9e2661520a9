"""Encoders over HTTP: a reranker's scores equal the library's; a text that is too long is refused, not
cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import httpx
import mixed_families as mixed
import numpy as np
import pytest
import toy_sentences as sentences
from tiny_file import write_model

from satchel.formats.convert.write import write_source
from satchel.runtime.api.options import Options
from satchel.runtime.engine.cancel_scope import current_scope
from satchel.runtime.engine.service import Service
from satchel.runtime.weights.sources import open_checkpoint
from satchel.server.settings import ServerSettings

CASE = "bert_reranker"


def test_a_reranker_and_its_vectors_are_served(tmp_path: Path, serving_of: Any) -> None:
    shapes = json.loads(mixed.STEM.with_suffix(".json").read_text())[CASE]
    folder = families.write(tmp_path / "toy", mixed.config(CASE), families.values_of(shapes))
    with open_checkpoint(mixed.with_tokenizer(folder, CASE)) as source:
        path, *_ = write_source(source, tmp_path / "reranker.gguf")
    with np.load(mixed.STEM.with_suffix(".npz")) as stored:
        want = 1 / (1 + np.exp(-stored[CASE].astype(np.float64)))
    options = Options(threads=1, cache_type="f32")
    with serving_of([path], options, ServerSettings(port=0)) as address:

        def post(route: str, **body: Any) -> httpx.Response:
            return httpx.post(f"{address}{route}", json=body, timeout=60)

        found = post("/v1/rerank", query=sentences.QUERY, documents=list(sentences.DOCUMENTS)).json()
        scores = {r["index"]: r["relevance_score"] for r in found["results"]}
        assert [scores[i] for i in range(len(want))] == pytest.approx(want.tolist(), abs=2e-6)
        assert len(post("/v1/embeddings", input="bad cab").json()["data"][0]["embedding"]) == 64
        for route, body in (
            ("/v1/embeddings", {"input": ["bee", "bad " * 200]}),
            ("/v1/rerank", {"query": "bee", "documents": ["bad " * 200]}),
        ):
            refused = post(route, **body)
            assert refused.status_code == 400 and "context holds 128" in refused.text, refused.text
        assert post("/v1/completions", prompt="bad", max_tokens=2).status_code == 400


def test_calls_count_for_the_share_of_their_key(
    tmp_path: Path, serving_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each API's embeddings and the scores of a prompt belong to a client of the key's own."""
    clients, call = list[str](), Service.call

    def noted(self: Service, function: Callable[[], None]) -> None:
        clients.append(current_scope().client)
        call(self, function)

    monkeypatch.setattr(Service, "call", noted)
    path, keys = write_model(tmp_path / "tiny.gguf"), ("first-key", "second-key")
    with serving_of([path], Options(slots=2, threads=1), ServerSettings(port=0, api_keys=keys)) as address:
        for route, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/api/embed", {"model": "tiny", "input": "a"}),
            ("/v1/completions", {"prompt": "a", "max_tokens": 1, "echo": True, "logprobs": 1}),
        ):
            own = []
            for key in keys:
                clients.clear()
                found = httpx.post(f"{address}{route}", json=body, headers={"x-api-key": key}, timeout=60)
                assert found.status_code == 200, found.text
                own.append(set(clients))
            assert all(len(names) == 1 and "" not in names for names in own), (route, own)
            assert own[0] != own[1], route
