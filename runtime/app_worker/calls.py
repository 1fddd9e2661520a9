"""What a worker does for a C program: opens one model, and gives tokens, vectors and rendered conversations.

The program makes text of tokens by the tables of a built file (runtime/aot), which it gets when the model is
opened; so both of its engines say the same. A call that fails is answered by its code and text, and the next
one is answered as if it had not been.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.chat import guard_of, parted
from satchel.formats.template.messages import Plain, read_messages
from satchel.runtime.aot.compiled import pooling_number
from satchel.runtime.aot.template_section import pack_template
from satchel.runtime.aot.tokenizer_section import pack_tokenizer
from satchel.runtime.api.model import Model
from satchel.runtime.api.refusals import Busy, PromptTooLong, QueueFull
from satchel.runtime.api.tokenized_options import breakers_of, in_tokens
from satchel.runtime.app_worker import wire
from satchel.runtime.app_worker.wire import Reader
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle
from satchel.runtime.engine.watchdog import Pulse
from satchel.runtime.grammar import AnyJson, JsonSchema, compile_grammar
from satchel.runtime.grammar.spec import Spec, spec_of
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.options import LETTERS

E_DEVICE = -5
# Codes of satchel.h; the first that fits an error.
CODES: tuple[tuple[type[Exception], int], ...] = (
    (PromptTooLong, -7),
    (QueueFull, -6),
    (Busy, -6),
    (RequestError, -1),
    (ModelError, -2),
    (OSError, -2),
    (DeviceError, E_DEVICE),
    (MemoryError, -4),
)
TEXT = 1 << 15  # most characters of an error
ENDED, LENGTH = 1, 2  # why an answer has no further token
IGNORE_END = 1  # flag of an answer: end tokens are tokens as others
JSON_GRAMMAR, TEXT_GRAMMAR = 4, 8  # kinds of grammars; of JSON with the flags below
JSON_VALUE, JSON_COMPACT = 1, 2
BIAS = np.dtype([("token", "<i4"), ("amount", "<f4")])
# The numbers of a sampler chain, in the order of cext/embed/worker.c.
NUMBERS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "dynatemp_range", "dynatemp_exponent", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "repeat_last_n", "mirostat", "mirostat_tau", "mirostat_eta", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_last_n", "min_tokens",
)  # fmt: skip
WHOLE = {"top_k", "repeat_last_n", "mirostat", "dry_allowed_length", "dry_last_n", "min_tokens"}
USUAL = -1  # number of DRY's breakers: the default ones


class AppSession:
    """A program's model and its answers, by number. device: that of the model."""

    def __init__(self, device: str = "cpu") -> None:
        self._device, self._model = device, None  # type: str, Model | None
        self._answers: dict[int, RequestHandle | None] = {}
        self._count = 0

    def answer(self, call: int, values: bytes) -> tuple[int, bytes]:
        """The answer to a call: 0 and its values, or a code and the error's text."""
        try:
            if call not in CALLS:
                raise RequestError(f"call {call}: expected one of 1 to {len(CALLS)}")
            return 0, CALLS[call](self, Reader(values))
        except (RequestError, ModelError, DeviceError, OSError, MemoryError) as error:
            code = next(code for kind, code in CODES if isinstance(error, kind))
            return code, wire.data((str(error) or repr(error))[:TEXT].encode(errors="replace"))

    def close(self) -> None:
        for handle in self._answers.values():
            if handle is not None:
                handle.cancel()
        if self._model is not None:
            self._model.close()

    @property
    def pulse(self) -> Pulse | None:
        """Activity of the model's engine; None before there is one."""
        return None if self._model is None else self._model.pulse

    @property
    def _opened(self) -> Model:
        if self._model is None:
            raise RequestError("no model is open: open one first")
        return self._model

    def open(self, given: Reader) -> bytes:
        """Opens the model; gives its numbers, its kernels, and the tables of its texts."""
        path, context, slots, threads, few = given.text(), *(given.number() for _ in range(4))
        given.end()
        if self._model is not None:
            raise RequestError("a model is open already: a worker has one")
        self._model = model = Model.load(
            Path(path),
            context=context,
            slots=slots or 1,
            threads=few or threads,
            threads_batch=threads,
            device=self._device,
            deterministic=True,
            worker="thread",
        )
        width = model.arch.width if pooling_number(model.gguf, model.arch) else 0
        numbers = (model.context, model.cache.slots, model.arch.vocab, width)
        tables = (pack_tokenizer(model.gguf), pack_template(model.gguf).data)
        kernels = model.device.info().variant.encode()
        return b"".join([*map(wire.number, numbers), *map(wire.data, (kernels, *tables))])

    def generate(self, given: Reader) -> bytes:
        """Begins an answer; gives its number."""
        model, ids = self._opened, given.ints()
        most, flags, seed = given.number(), given.number(), given.number()
        grammar = _grammar(given.number(), given.text())
        sampling = _sampling(given, seed)
        given.end()
        model.arch.check_generates()
        model.check_ids(ids)
        tokenizer, ends = model.tokenizer, not flags & IGNORE_END
        request = GenerateRequest(
            ids,
            most,
            in_tokens(sampling, tokenizer),
            tokenizer.eog if ends else frozenset(),
            breakers=breakers_of(tokenizer, sampling.dry_breakers),
            grammar=grammar,
        )
        self._count += 1
        self._answers[self._count] = model.submit(request) if most > 0 else None
        return wire.number(self._count)

    def _handle(self, given: Reader) -> tuple[int, RequestHandle | None]:
        number = given.number()
        given.end()
        if number not in self._answers:
            raise RequestError(f"answer {number}: there is none of this number")
        return number, self._answers[number]

    def next(self, given: Reader) -> bytes:
        """Waits for the next token; -1 for none, and then why. Before that how many tokens of the prompt the
        cache had.
        """
        _, handle = self._handle(given)
        token = None if handle is None else handle.get()
        cached = 0 if handle is None else max(0, handle.seq.cached)
        why = ENDED if handle is not None and handle.finish == "stop" else LENGTH
        told = (-1, cached, why) if token is None else (token, cached, 0)
        return b"".join(map(wire.number, told))

    def end(self, given: Reader) -> bytes:
        number, handle = self._handle(given)
        if handle is not None:
            handle.cancel()
        del self._answers[number]
        return b""

    def embed(self, given: Reader) -> bytes:
        ids = given.ints()
        given.end()
        model = self._opened
        model.check_ids(ids)
        (vector,) = model.embed([ids])
        return wire.data(np.asarray(vector, "<f4").tobytes())

    def grammar(self, given: Reader) -> bytes:
        """Compiles a grammar, of which an answer then finds what is compiled."""
        text = given.text()
        given.end()
        compile_grammar(self._opened.tokenizer, _spec(text))
        return b""

    def render(self, given: Reader) -> bytes:
        """A conversation by the model's template: its text, its tokens, whether it ends within reasoning."""
        model, request = self._opened, _request(given.text())
        given.end()
        style, guard = model.style, guard_of(model.tokenizer, model.template.source)
        messages = request["messages"]
        if style.thinks:
            messages = parted(read_messages(messages, Plain()), style.open, style.close)
        said = model.template.render(
            messages,
            tools=request.get("tools"),
            add_generation_prompt=request.get("add_generation_prompt", True),
            documents=request.get("documents"),
            variables=request.get("chat_template_kwargs"),
            escape=guard.escape,
        )
        ids = np.array(model.tokenizer.encode_rendered(said, guard=guard), "<i4")
        thinks = style.thinks and said.rstrip().endswith(style.open)
        text = guard.unescape(said).encode(errors="replace")
        return wire.data(text) + wire.data(ids.tobytes()) + wire.number(thinks)


CALLS: dict[int, Callable[[AppSession, Reader], bytes]] = {
    1: AppSession.open,
    2: AppSession.generate,
    3: AppSession.next,
    4: AppSession.end,
    5: AppSession.embed,
    6: AppSession.grammar,
    7: AppSession.render,
}


def _sampling(given: Reader, seed: int) -> Sampling:
    """The sampling options of a call. RequestError where one is out of range."""
    numbers: dict[str, Any] = {name: _checked(name, given.real()) for name in NUMBERS}
    letters, biases = given.text(), given.rows(BIAS)
    allowed, bad_words = given.ints(), _sequences(given.ints())
    count = given.number()
    if not USUAL <= count <= 1 << 16:
        raise RequestError(f"dry_breakers: expected 65,536 texts at most, got {count}")
    if count != USUAL:
        numbers["dry_breakers"] = [given.text() for _ in range(count)]
    if unknown := [letter for letter in letters if letter not in LETTERS]:
        raise RequestError(f"samplers: expected letters of {''.join(LETTERS)}, got {unknown[0]!r}")
    return Sampling(
        **numbers,
        seed=seed,
        samplers=[LETTERS[letter] for letter in letters],
        logit_bias={int(row["token"]): float(row["amount"]) for row in biases},
        allowed=allowed or None,
        bad_words=bad_words,
    )


def _checked(name: str, value: float) -> float | int:
    if not np.isfinite(value) or (name in WHOLE and value != int(value)):
        raise RequestError(f"{name}: expected a {'whole ' if name in WHOLE else ''}number, got {value}")
    return int(value) if name in WHOLE else value


def _sequences(ids: list[int]) -> list[tuple[int, ...]]:
    """Token sequences with a -1 behind each."""
    found, part = [], list[int]()
    for token in ids:
        if token != -1:
            part.append(token)
            continue
        found.append(tuple(part))
        part = []
    if part:
        raise RequestError("bad_words: expected a -1 behind each sequence")
    return found


def _grammar(kind: int, text: str) -> Spec | None:
    if kind == 0:
        return None
    if kind == TEXT_GRAMMAR:
        return _spec(text)
    if kind & ~(JSON_GRAMMAR | JSON_VALUE | JSON_COMPACT):
        raise RequestError(f"grammar: expected a known kind, got {kind}")
    return AnyJson(bool(kind & JSON_VALUE), not kind & JSON_COMPACT)


def _spec(text: str) -> Spec:
    """A JSON schema, or a grammar in GBNF or Lark."""
    return JsonSchema(text) if text.lstrip().startswith("{") else spec_of(text)


def _request(text: str) -> dict[str, Any]:
    """The request of satchel_chat_render()."""
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"request: expected JSON: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise RequestError("request: expected an object with `messages`, a list")
    known = {"messages", "tools", "documents", "add_generation_prompt", "chat_template_kwargs"}
    if unknown := sorted(request.keys() - known):
        raise RequestError(f"request: expected keys {', '.join(sorted(known))}, got {unknown[0]!r:.60}")
    return request
