"""What a Model does with texts besides answering them: embeddings, likelihoods, reranking. Model has these
methods from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.engine.reading import PassageReader
from satchel.runtime.engine.request_handle import Requests
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.tasks.embedding import embed, embed_tokens, pooling_of
from satchel.runtime.tasks.likelihood import Scored, branch, score
from satchel.runtime.tasks.rerank import INSTRUCTION, Ranked, pair_ids, ranked, scorer

Text = str | Sequence[int]
Names = Mapping[str, float]


class Host(Protocol):
    """What these methods need of a model."""

    gguf: GGUF

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def service(self) -> Requests: ...

    def tokenize(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]: ...

    def adapter_scales(
        self, adapters: Names | None = None, control_vectors: Names | None = None
    ) -> AdapterScales: ...

    def check_ids(self, ids: Sequence[int]) -> None: ...


class Readings:
    """Methods of Model. adapters, control_vectors: as in generate()."""

    def embed(
        self: Host,
        texts: Text | Sequence[Text],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> Array:
        """A vector for each text, or for each list of token ids: (n, D) float32, any number of any length up
        to the context. pooling: mean, cls or last; None: as the file says, else mean. dimensions: so many are
        kept.
        """
        chosen = pooling_of(self.gguf.metadata, pooling, normalize, dimensions)
        if chosen.kind == "none":
            raise RequestError("pooling none gives a vector for each token: call embed_tokens")
        asked = token_lists(self, texts)
        adapter_scales = self.adapter_scales(adapters, control_vectors)
        return embed(reader_of(self, "hidden", adapter_scales, salt), asked, chosen)

    def embed_tokens(
        self: Host,
        texts: Text | Sequence[Text],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> list[Array]:
        """A vector for each token of each text: (tokens, D) float32."""
        chosen = pooling_of(self.gguf.metadata, "none", normalize, dimensions)
        asked = token_lists(self, texts)
        adapter_scales = self.adapter_scales(adapters, control_vectors)
        return embed_tokens(reader_of(self, "hidden", adapter_scales, salt), asked, chosen)

    def score(
        self: Host,
        prompt: Text,
        continuations: Sequence[Text],
        *,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> list[Scored]:
        """How likely each continuation is after the prompt."""
        return score_many(
            self, [(prompt, continuations)], self.adapter_scales(adapters, control_vectors), salt
        )[0]

    def score_many(
        self: Host,
        asked: Sequence[tuple[Text, Sequence[Text]]],
        *,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> list[list[Scored]]:
        """score() of many prompts, together."""
        return score_many(self, asked, self.adapter_scales(adapters, control_vectors), salt)

    def rerank(
        self: Host,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None = None,
        instruction: str = INSTRUCTION,
        adapters: Names | None = None,
        control_vectors: Names | None = None,
        salt: str = "",
    ) -> list[Ranked]:
        """Documents by how well they answer a query, best first. top: so many of them; instruction: what
        makes a document fit, where the model's question has a place for it. RequestError for a model that
        cannot rank.
        """
        if top is not None and top < 1:
            raise RequestError(f"top is {top}: expected 1 or more")
        adapter_scales = self.adapter_scales(adapters, control_vectors)
        scores = scorer(
            self.gguf, self.tokenizer, lambda output: reader_of(self, output, adapter_scales, salt)
        )
        if not documents:
            return []
        pairs = [pair_ids(self.gguf, self.tokenizer, query, d, instruction) for d in documents]
        for number, ids in enumerate(pairs):
            named_check(self, ids, f"document {number}")
        return ranked(scores(pairs), top)


def reader_of(model: Host, output: str, adapter_scales: AdapterScales, salt: str = "") -> PassageReader:
    """A reader by the engine in this process: a WorkerModel asks the worker's model to read."""
    return PassageReader(cast(Service, model.service), output, adapter_scales, salt)


def token_lists(model: Host, texts: Text | Sequence[Text]) -> list[list[int]]:
    """Token ids of texts; one text, or one list of ids, is a list of one. RequestError names the text that is
    empty or too long.
    """
    alone = isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int | np.integer))
    several: Sequence[Text] = [texts] if alone else texts  # type: ignore[assignment, list-item]
    found = [model.tokenize(t) if isinstance(t, str) else list(t) for t in several]
    for number, ids in enumerate(found):
        named_check(model, ids, f"text {number}")
    return found


def named_check(model: Host, ids: Sequence[int], name: str) -> None:
    """check_ids() whose error says which of many it is."""
    try:
        model.check_ids(ids)
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None


def score_many(
    model: Host, asked: Sequence[tuple[Text, Sequence[Text]]], adapter_scales: AdapterScales, salt: str
) -> list[list[Scored]]:
    """Tokenizes and scores. A continuation in letters is read together with its prompt, as one text."""

    def ids_of(text: Text) -> list[int]:
        # No end token, which tokenize() adds where the file wants it.
        plain = model.tokenizer
        return plain.encode_rendered(plain.escape(text)) if isinstance(text, str) else list(text)

    branches = []
    for number, (prompt, continuations) in enumerate(asked):
        start = ids_of(prompt)
        named_check(model, start, f"prompt {number}")
        if not continuations or any(not len(c) for c in continuations):
            raise RequestError(f"prompt {number}: expected continuations, none of them empty")
        wholes = [
            ids_of(prompt + c)
            if isinstance(prompt, str) and isinstance(c, str)
            else [*start, *ids_of_part(model, c)]
            for c in continuations
        ]
        for ids in wholes:
            named_check(model, ids, f"prompt {number} with a continuation")
        branches.append(branch(start, wholes))
    return score(reader_of(model, "logits", adapter_scales, salt), branches)


def ids_of_part(model: Host, text: Text) -> list[int]:
    """Token ids of what follows other ids."""
    return model.tokenizer.encode(text, bos=False) if isinstance(text, str) else list(text)
