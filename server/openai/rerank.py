"""POST /v1/rerank and its other paths, in the shape of Jina and Cohere, or of TEI where `texts` are sent; and
vLLM's /score of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from satchel.runtime.api.model import Model
from satchel.runtime.tasks.rerank import INSTRUCTION, Ranked, pair_ids
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.openai.prompts import MOST_INPUTS
from satchel.server.openai.shapes import new_id
from satchel.server.problem import Problem
from satchel.server.reading import with_model
from satchel.server.roles import USER, needs
from satchel.server.route import unknown_fields

router = APIRouter(route_class=BodyRoute)


class DocumentText(Body):
    text: str


Documents = Annotated[list[str | DocumentText], Field(max_length=MOST_INPUTS)]
Texts = Annotated[list[str], Field(max_length=MOST_INPUTS)]


class RerankBody(Body):
    """The body of /v1/rerank: `documents` asks for Jina's and Cohere's shape, `texts` for TEI's."""

    model: str = Field(default="", max_length=1000)
    query: str = Field(min_length=1)
    documents: Documents | None = None
    texts: Texts | None = None
    top_n: int | None = Field(default=None, ge=1, le=1 << 31)
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    truncate: bool = False
    instruction: str = INSTRUCTION

    def given(self) -> list[str]:
        """The documents. A Problem for unsupported fields."""
        if (self.documents is None) == (self.texts is None):
            raise Problem("invalid", "expected one of documents and texts", "documents")
        for name in ("raw_scores", "truncate"):
            if getattr(self, name):
                raise Problem("unsupported", f"{name}: only false is supported", name)
        if self.texts is not None:
            return self.texts
        return [d if isinstance(d, str) else d.text for d in self.documents or ()]


@router.post("/v1/rerank")
@router.post("/v2/rerank")
@router.post("/rerank")
@router.post("/v1/reranking")
@router.post("/reranking")
@needs(USER)
async def rerank(request: Request, body: RerankBody) -> JSONResponse:
    notes, documents = unknown_fields(request, body), body.given()

    def work(model: Model, salt: str) -> tuple[list[Ranked], int]:
        found = model.rerank(body.query, documents, top=body.top_n, instruction=body.instruction, salt=salt)
        return found, _count(model, [(body.query, d) for d in documents], body.instruction)

    name, (ranked, count) = await with_model(request, body.model, work, "rerank")
    if body.texts is not None:
        return JSONResponse([_scored(r, documents, body.return_text) for r in ranked])
    results = [
        {
            "index": r.index,
            "relevance_score": r.score,
            **({"document": {"text": documents[r.index]}} if body.return_documents else {}),
        }
        for r in ranked
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    made: JsonObject = {
        "id": new_id("rerank"), "object": "list", "model": name, "usage": usage, "results": results,
    }  # fmt: skip
    return JSONResponse({**made, "warnings": notes} if notes else made)


def _scored(ranked: Ranked, documents: Sequence[str], with_text: bool) -> JsonObject:
    found: JsonObject = {"index": ranked.index, "score": ranked.score}
    return {**found, "text": documents[ranked.index]} if with_text else found


def _count(model: Model, pairs: Sequence[tuple[str, str]], instruction: str) -> int:
    return sum(len(pair_ids(model.gguf, model.tokenizer, q, d, instruction)) for q, d in pairs)


class ScoreBody(Body):
    """The body of /score: one text_1 for all text_2, or as many of both."""

    model: str = Field(default="", max_length=1000)
    text_1: str | Texts
    text_2: str | Texts

    def pairs(self) -> list[tuple[str, str]]:
        left = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        right = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(left) == 1:
            left = left * len(right)
        if len(left) != len(right) or not left:
            raise Problem("invalid", f"text_1 has {len(left)} texts, text_2 {len(right)}", "text_2")
        return list(zip(left, right, strict=True))


@router.post("/score")
@router.post("/v1/score")
@needs(USER)
async def score(request: Request, body: ScoreBody) -> JSONResponse:
    notes, pairs = unknown_fields(request, body), body.pairs()

    def work(model: Model, salt: str) -> tuple[list[float], int]:
        scores: list[float] = [0.0] * len(pairs)
        for query in dict.fromkeys(q for q, _ in pairs):
            own = [i for i, (q, _) in enumerate(pairs) if q == query]
            for r in model.rerank(query, [pairs[i][1] for i in own], salt=salt):
                scores[own[r.index]] = r.score
        return scores, _count(model, pairs, INSTRUCTION)

    name, (scores, count) = await with_model(request, body.model, work, "rerank")
    data: list[Any] = [{"index": i, "object": "score", "score": s} for i, s in enumerate(scores)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    made: JsonObject = {"id": new_id("score"), "object": "list", "model": name, "data": data, "usage": usage}
    return JSONResponse({**made, "warnings": notes} if notes else made)
