"""Reranking in the shapes of Jina and Cohere, and of TEI."""

from __future__ import annotations

from satchel.cli.conformance.expect import expect, fits, same
from satchel.cli.conformance.target import ConformanceTarget

QUERY = "Where do ships lie?"
DOCUMENTS = ["Bread is baked in the morning.", "Ships lie in the harbour.", "The moon is far."]


def documents(target: ConformanceTarget) -> None:
    """/v1/rerank gives index and relevance_score of each document, best first."""
    found = target.able("/v1/rerank", {"model": target.model, "query": QUERY, "documents": DOCUMENTS})
    fits(found, {"model": str, "results": [{"index": int, "relevance_score": float}], "usage": dict})
    same("indices", sorted(r["index"] for r in found["results"]), [0, 1, 2])
    scores = [r["relevance_score"] for r in found["results"]]
    expect(scores == sorted(scores, reverse=True), f"not the best first: {scores}")


def top(target: ConformanceTarget) -> None:
    """top_n gives that many."""
    asked = {"model": target.model, "query": QUERY, "documents": DOCUMENTS, "top_n": 2}
    same("results", len(target.able("/v1/rerank", asked)["results"]), 2)


def texts(target: ConformanceTarget) -> None:
    """With texts in place of documents the answer is TEI's: a list of index and score."""
    fits(target.able("/rerank", {"query": QUERY, "texts": DOCUMENTS}), [{"index": int, "score": float}])
