"""Reranking: how well documents answer a query, between 0 and 1.

A model with a classifier head (cls.output.weight, and cls.weight before it) is asked for that head's opinion
of query and document; one without, made as Qwen3-Reranker is, whether it would say yes or no to the file's
question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.chat import guard_of
from satchel.formats.gguf import GGUF
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.engine.reading import Passage, PassageReader
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import find_arch
from satchel.runtime.weights.weights import FileWeights

TEMPLATE_KEY = "tokenizer.chat_template.rerank"
PLACES = re.compile(r"\{(query|document|instruction)\}")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The form on which Qwen3-Reranker was trained, for files that were made of it without it.
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n"
)
ANSWERS = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document's place in the list that was given, and its score, 0 to 1."""

    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Head:
    """The classifier's matrices: dense (D, D), where the file has one, with `after` behind it, then a norm
    that takes the mean away, where it has one, then out (C, D); right: number of the class that means yes.
    """

    out: Array
    out_bias: Array
    dense: Array | None
    dense_bias: Array
    right: int
    after: str = "tanh"
    norm: Array | None = None
    norm_bias: Array | None = None
    eps: float = 1e-5

    def scores(self, hidden: Array) -> Array:
        """(n) of rows (n, D): the share of the right class, or for one class its logistic function. Row by
        row: a score does not depend on what else is asked for.
        """
        return np.array([self._score(row[None].astype(np.float64)) for row in hidden])

    def _score(self, x: Array) -> float:
        if self.dense is not None:
            x = x @ self.dense.T + self.dense_bias
            x = np.tanh(x) if self.after == "tanh" else x * 0.5 * (1 + _erf(x / math.sqrt(2)))
        if self.norm is not None:
            x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.eps) * self.norm + self.norm_bias
        y = x @ self.out.T + self.out_bias
        if y.shape[1] == 1:
            return float(logistic(y[0, 0]))
        e = np.exp(y - y.max())
        return float(e[0, self.right] / e.sum())


_erf = np.vectorize(math.erf, otypes=[float])


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def read_head(gguf: GGUF) -> Head | None:
    """The file's classifier head, None where it has none. ModelError where it contradicts the model."""
    weights, arch = FileWeights(gguf), gguf.metadata.get_str("general.architecture")
    if "cls.output.weight" not in gguf.tensors:
        return None
    width = gguf.metadata.get_uint(f"{arch}.embedding_length", low=1)

    def array(name: str, *shape: int) -> Array:
        if weights.type(name) is None:
            return np.zeros(shape)
        values = weights.array(name)
        if values.shape != shape:
            raise ModelError(f"{gguf.path}: {name}: expected shape {list(shape)}, got {list(values.shape)}")
        return values.astype(np.float64)

    classes = gguf.tensors["cls.output.weight"].shape[0]
    key = f"{arch}.classifier.output_labels"
    labels = list(gguf.metadata.get_array(key, kind="str")) if key in gguf.metadata else []
    return Head(
        array("cls.output.weight", classes, width),
        array("cls.output.bias", classes),
        array("cls.weight", width, width) if "cls.weight" in gguf.tensors else None,
        array("cls.bias", width),
        labels.index("yes") if "yes" in labels else 0,
        find_arch(arch).ranks,
        array("cls.norm.weight", width) if "cls.norm.weight" in gguf.tensors else None,
        array("cls.norm.bias", width),
        gguf.metadata.get_float(f"{arch}.attention.layer_norm_epsilon", 1e-5),
    )


def question_of(gguf: GGUF) -> str | None:
    """The text in which a query and a document are put to the model, None where neither the file nor its
    family says.
    """
    found = gguf.metadata.get_str(TEMPLATE_KEY, "")
    if found:
        return found
    named = " ".join(gguf.metadata.get_str(f"general.{key}", "") for key in ("name", "basename")).lower()
    qwen3 = gguf.metadata.get_str("general.architecture") == "qwen3"
    return QWEN3 if qwen3 and "rerank" in named else None


def filled(question: str, values: Mapping[str, str]) -> str:
    """The question with its places filled, each once: what a text holds is never taken for a place."""
    return PLACES.sub(lambda match: values.get(match[1], match[0]), question)


def pair_ids(gguf: GGUF, tokenizer: Tokenizer, query: str, document: str, instruction: str) -> list[int]:
    """A query and a document as the model wants them; neither becomes a control token."""
    question = question_of(gguf)
    if question is not None:
        if not {"query", "document"} <= set(PLACES.findall(question)):
            raise ModelError(f"{TEMPLATE_KEY}: expected places for {{query}} and {{document}}")
        values = {"query": query, "document": document, "instruction": instruction}
        guard = guard_of(tokenizer, question)
        text = filled(question, {key: guard.escape(value) for key, value in values.items()})
        return tokenizer.encode_rendered(text, bos=False, guard=guard)
    special = tokenizer.specials
    bos, end = ([token] if token is not None else [] for token in (special.bos, end_of(tokenizer)))
    # A tokenizer with add_sep whose texts end with EOS puts EOS and SEP between them; BERT's end token is
    # SEP.
    between = (
        [special.sep] if special.add_sep and tokenizer.kind != "bert" and special.sep is not None else []
    )
    texts = (tokenizer.encode(text, bos=False) for text in (query, document))
    return [*bos, *next(texts), *end, *between, *next(texts), *end]


def end_of(tokenizer: Tokenizer) -> int | None:
    """The token behind each text of a pair: SEP for BERT, else EOS."""
    eos, sep = tokenizer.eos, tokenizer.specials.sep
    return sep if tokenizer.kind == "bert" or eos is None else eos


def segment_ids_of(ids: Sequence[int], end: int | None) -> list[int]:
    """Segment ids (token types) of a pair: 0 up to the end token of the first text, then 1."""
    first = next((at for at, id in enumerate(ids, 1) if id == end), len(ids))
    return [0] * first + [1] * (len(ids) - first)


Scorer = Callable[[Sequence[Sequence[int]]], Array]


def scorer(gguf: GGUF, tokenizer: Tokenizer, reader: Callable[[str], PassageReader]) -> Scorer:
    """A function from pairs as token ids to their scores. reader: one of an output by name. RequestError
    where the model is no reranker.
    """
    head = read_head(gguf)
    if head is not None and not find_arch(arch := gguf.metadata.get_str("general.architecture")).causal:
        mean = gguf.metadata.get_str(f"{arch}.classifier.pooling", "cls") == "mean"
        return lambda pairs: head.scores(pooled(reader("hidden"), pairs, end_of(tokenizer), mean))
    if head is not None:
        return lambda pairs: head.scores(last_rows(reader("hidden"), pairs))
    if question_of(gguf) is None:
        raise RequestError(
            f"{gguf.path}: this model cannot rank: it takes one with a classifier head (cls.output.weight) "
            f"or with {TEMPLATE_KEY}, such as a Qwen3-Reranker; satchel's embeddings can compare texts too"
        )
    answers = [tokenizer.encode(text, bos=False) for text in ANSWERS]
    if any(len(ids) != 1 for ids in answers):
        raise RequestError(f"{gguf.path}: {' and '.join(ANSWERS)} are no single tokens of this model")
    yes, no = (ids[0] for ids in answers)

    def by_answer(pairs: Sequence[Sequence[int]]) -> Array:
        rows = last_rows(reader("logits"), pairs, (yes, no)).astype(np.float64)
        return logistic(rows[:, 0] - rows[:, 1])

    return by_answer


def pooled(reader: PassageReader, pairs: Sequence[Sequence[int]], end: int | None, mean: bool) -> Array:
    """What an encoder makes of each pair: the row of its first token, or the mean of all."""
    passages = [Passage(ids, segment_ids=segment_ids_of(ids, end)) for ids in pairs]
    found = {rows.number: rows.values.mean(0) if mean else rows.values[0] for rows in reader.read(passages)}
    return np.stack([found[i] for i in range(len(pairs))])


def last_rows(
    reader: PassageReader, pairs: Sequence[Sequence[int]], columns: Sequence[int] | None = None
) -> Array:
    """The row of each text's last token, or these columns of it. What the texts begin with alike is computed
    once.
    """
    passages = [
        Passage(ids, len(ids) - 1, shared=True, waits_for_prefix=0 if i else None)
        for i, ids in enumerate(pairs)
    ]
    found: dict[int, Array] = {}
    for rows in reader.read(passages):
        found[rows.number] = rows.values[-1] if columns is None else rows.values[-1][list(columns)]
    return np.stack([found[i] for i in range(len(pairs))])


def ranked(scores: Array, top: int | None) -> list[Ranked]:
    """Best first, of equals the earlier; top: so many."""
    order = np.argsort(-scores, kind="stable")
    return [Ranked(int(i), float(scores[i])) for i in order[:top]]
