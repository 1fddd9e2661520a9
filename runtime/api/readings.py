"""Methods of Model that read texts instead of answering them: embeddings, likelihoods, reranking."""

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
from satchel.runtime.option import check_list
from satchel.runtime.tasks.embedding import embed, embed_tokens, pooling_of
from satchel.runtime.tasks.likelihood import Scored, branch, score
from satchel.runtime.tasks.rerank import INSTRUCTION, Ranked, pair_ids, ranked, scorer

Text = str | Sequence[int]
Names = Mapping[str, float]


class Host(Protocol):
    """The parts of a model that these methods use."""

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
    """Mixin of Model. adapters, control_vectors: as in generate()."""

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
        """Embeddings of texts, or of lists of token ids: (n, D) float32. Each text may be as long as the
        context.

        pooling: mean, cls or last; None: as the file states, else mean.
        normalize: divide each by its Euclidean norm.
        dimensions: keep only the first ones (Matryoshka).

        Raises RequestError for an empty or too long text, an unknown pooling, or more dimensions than D.
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
        """Embeddings of the tokens of each text: (tokens, D) float32. Arguments and errors are those of
        `embed`.
        """
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
        """Log-probabilities of continuations of a prompt, one Scored for each, in order. Raises RequestError
        if a text is empty or the prompt with a continuation exceeds the context.
        """
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
        """Documents ranked by relevance to a query, best first.

        top: keep only the best.
        instruction: the relevance criterion, if the model's prompt has a place for it.

        Raises RequestError if the model is not a reranker.
        """
        if top is not None and top < 1:
            raise RequestError(f"top is {top}: expected 1 or more")
        check_list("documents", documents, "put it into a list")
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
    """A passage reader on the engine of this process. A WorkerModel calls the worker's model instead."""
    return PassageReader(cast(Service, model.service), output, adapter_scales, salt)


def token_lists(model: Host, texts: Text | Sequence[Text]) -> list[list[int]]:
    """Token ids of texts; a single text, or list of ids, gives a list of one. The RequestError names the text
    that is empty or too long.
    """
    alone = isinstance(texts, str) or (len(texts) > 0 and isinstance(texts[0], int | np.integer))
    several: Sequence[Text] = [texts] if alone else texts  # type: ignore[assignment, list-item]
    found = [model.tokenize(t) if isinstance(t, str) else list(t) for t in several]
    for number, ids in enumerate(found):
        named_check(model, ids, f"text {number}")
    return found


def named_check(model: Host, ids: Sequence[int], name: str) -> None:
    """check_ids() with the text's name in the error."""
    try:
        model.check_ids(ids)
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None


def score_many(
    model: Host, asked: Sequence[tuple[Text, Sequence[Text]]], adapter_scales: AdapterScales, salt: str
) -> list[list[Scored]]:
    """Tokenizes and scores. A textual continuation is tokenized together with its prompt."""

    def ids_of(text: Text) -> list[int]:
        # Without the end token that tokenize() may add.
        plain = model.tokenizer
        return plain.encode_rendered(plain.escape(text)) if isinstance(text, str) else list(text)

    branches = []
    for number, (prompt, continuations) in enumerate(asked):
        start = ids_of(prompt)
        named_check(model, start, f"prompt {number}")
        check_list(f"prompt {number}: continuations", continuations, "put it into a list")
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
    """Token ids of a text that follows other tokens."""
    return model.tokenizer.encode(text, bos=False) if isinstance(text, str) else list(text)
