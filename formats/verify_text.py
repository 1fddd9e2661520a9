"""Self-tests of what turns text into tokens and back: the tokenizer's round trip, the chat template's turns.

Both are built by the code that serves a loaded model; what is only odd about them is a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import Metadata, StringArray, TensorInfo, Typed, ValueType
from satchel.formats.template import ChatTemplate, from_metadata
from satchel.formats.tokenizer import Kind, Tokenizer, build_tokenizer
from satchel.formats.verify import Log, each_fault

EMBEDDING = "token_embd.weight"
TEMPLATE_KEY = "tokenizer.chat_template"
EXACT = ("gpt2", "gemma4", "llama")  # kinds of vocabulary whose round trip is exact
SAMPLES = (
    "Once upon a time, there was a little house.",
    "  two spaces,\ttabs\n\n\nand   lines  \n",
    "def f(x):\n    return {x: 0x1F, 'y': 1e-5}  # 12345678\n",
    "Zwölf Boxkämpfer jagen Éva über den großen Deich.",
    "Съешь ещё этих мягких французских булок; 我能吞下玻璃而不伤身体。 いろは 한국어 नमस्ते",
    "\U0001f600\U0001f469\u200d\U0001f680 e\u0301 \u00a0\ufeff \x00\x7f",
)
CONTROL = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_\w{1,20}>|\[/?INST\]")
USER, SYSTEM, ANSWER = "What is a satchel?", "You are brief.", "A bag."
Turns = Sequence[Mapping[str, str]]
TURNS: tuple[tuple[str, Turns], ...] = (
    ("a user's turn", ({"role": "user", "content": USER},)),
    ("a system message", ({"role": "system", "content": SYSTEM}, {"role": "user", "content": USER})),
    (
        "an answer and a second question",
        (
            {"role": "user", "content": SYSTEM},
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": USER},
        ),
    ),
)


def check_vocabulary(tokenizer: Tokenizer, tensors: Mapping[str, TensorInfo], source: object) -> None:
    """Raises ModelError unless the embedding has one row per token."""
    embedding = tensors.get(EMBEDDING)
    rows = embedding.shape[0] if embedding is not None and embedding.shape else None
    if rows is not None and rows != tokenizer.vocab_size:
        raise ModelError(
            f"{source}: tokenizer.ggml.tokens has {tokenizer.vocab_size} tokens, {EMBEDDING} "
            f"{rows} rows: convert the model again"
        )


def check_tokenizer(metadata: Metadata, tensors: Mapping[str, TensorInfo], log: Log) -> Tokenizer | None:
    """Builds the tokenizer, if needed without the keys that are logged as wrong; None where that fails."""
    with _warnings(log):
        tokenizer = each_fault(
            lambda values: build_tokenizer(values, source=metadata.source),
            metadata,
            log,
            "tokenizer",
            lambda key: _guess(key, metadata),
        )
    if tokenizer is None:
        return None
    try:
        check_vocabulary(tokenizer, tensors, metadata.source)
    except ModelError as error:
        log.error("tokenizer", error)
    for token in range(tokenizer.vocab_size):
        tokenizer.token_bytes(token)
    _round_trip(tokenizer, log)
    if not tokenizer.eog:
        log.warning(
            "tokenizer",
            "tokenizer.ggml.eos_token_id: expected a token that ends an answer, got none; answers never end",
        )
    return tokenizer


def _guess(key: str, metadata: Metadata) -> Typed | None:
    """Substitute scores, with which the check continues, for a vocabulary that needs them."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if key != "tokenizer.ggml.scores" or not isinstance(tokens, StringArray):
        return None
    return Typed(ValueType.ARRAY, np.zeros(len(tokens), np.float32), ValueType.FLOAT32)


def _round_trip(tokenizer: Tokenizer, log: Log) -> None:
    for sample in SAMPLES:
        ids = tokenizer.encode(sample, bos=False)
        wrong = next((i for i in ids if not 0 <= i < tokenizer.vocab_size), None)
        if wrong is not None:
            log.error("tokenizer", f"tokenizer.ggml.tokens: expected ids of the vocabulary, got {wrong}")
        back = tokenizer.decode(ids)
        if tokenizer.kind in EXACT and back != sample:
            log.warning(
                "tokenizer",
                f"tokenizer.ggml.tokens: expected {sample[:40]!a} back from its {len(ids)} tokens, "
                f"got {_difference(sample, back)!a}",
            )


def _difference(sample: str, back: str) -> str:
    same = next((i for i, (a, b) in enumerate(zip(sample, back, strict=False)) if a != b), 0)
    return back[max(0, same - 8) : same + 24]


@contextmanager
def _warnings(log: Log) -> Iterator[None]:
    """Turns the tokenizer's log messages into warnings of the file, instead of logging them."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            ignored = text.endswith("ignored")
            log.warning(
                "tokenizer", text, repair=log.command(f"--remove {log.names(text)}") if ignored else ""
            )

    logger, handler, thread = logging.getLogger("satchel.tokenizer"), Handler(), get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    before = logger.level, logger.propagate
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[1]
        logger.setLevel(before[0])


def check_template(metadata: Metadata, tokenizer: Tokenizer | None, log: Log) -> None:
    """Compiles the template and its variants, and renders the conversations that every chat needs."""
    bos, eos = (_text(tokenizer, name) for name in ("bos", "eos"))
    try:
        template = from_metadata(metadata, bos, eos)
        if template is None:
            log.warning("template", ChatTemplate.chatml().warning)
            return
        template.check()
    except ModelError as error:
        log.error("template", _placed(error, metadata))
        return
    for number, (what, turns) in enumerate(TURNS):
        try:
            text = template.render(turns)
        except (ModelError, RequestError) as error:
            said = f"{TEMPLATE_KEY}: expected {what} to be written, got: {_line(error)}"
            (log.warning if number else log.error)("template", said)
            continue
        _check_prompt(text, what, turns, log)
        if tokenizer is not None:
            _check_spelling(text, tokenizer, log)
    if tokenizer is not None:
        _check_end(template, tokenizer, log)


def _placed(error: ModelError, metadata: Metadata) -> ModelError:
    text = str(error)
    return error if "chat_template" in text else ModelError(f"{metadata.source}: {TEMPLATE_KEY}: {text}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _text(tokenizer: Tokenizer | None, name: str) -> str:
    token: Any = getattr(tokenizer, name, None)
    return tokenizer.text(token) if tokenizer is not None and token is not None else ""


def _check_prompt(text: str, what: str, turns: Turns, log: Log) -> None:
    lost = next((turn["content"] for turn in turns if turn["content"] not in text), None)
    if lost is not None:
        log.warning("template", f"{TEMPLATE_KEY}: expected {lost!a} in the prompt of {what}, got none of it")


def _check_spelling(text: str, tokenizer: Tokenizer, log: Log) -> None:
    """Checks that control tokens in the template's output are tokens of the vocabulary, not ordinary text."""
    for spelled in sorted(set(CONTROL.findall(text))):
        token = tokenizer.vocab.index.get(spelled)
        kinds = (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
        if token is None or not np.isin(tokenizer.vocab.types[token], kinds):
            found = "no token of that text" if token is None else f"token {token} as ordinary text"
            log.warning("template", f"{TEMPLATE_KEY}: expected {spelled} to be a control token, got {found}")


def _check_end(template: ChatTemplate, tokenizer: Tokenizer, log: Log) -> None:
    """Checks that the template writes an end token after an answer; otherwise generation does
    not stop there.
    """
    turns = ({"role": "user", "content": USER}, {"role": "assistant", "content": ANSWER})
    try:
        text = template.render(turns, add_generation_prompt=False)
    except (ModelError, RequestError):
        return  # some templates end with a question only
    _, _, end = text.rpartition(ANSWER)
    ids = tokenizer.encode(end, special=True, bos=False) if end.strip() else []
    control = [i for i in ids if tokenizer.is_control(i)]
    if control and not tokenizer.eog & set(control):
        first, text = control[0], tokenizer.text(control[0])
        log.warning(
            "template",
            f"{TEMPLATE_KEY}: expected a token that ends an answer behind it, got {text!a} (token {first})",
            repair=log.command(f"--set tokenizer.ggml.eot_token_id={first}"),
        )
