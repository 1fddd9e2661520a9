"""The library's face: Model.load("x.gguf"), then chat, generate, tokenize, logits. close() or `with` frees
everything.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from satchel.formats.gguf import GGUF, open_gguf
from satchel.formats.template import ChatTemplate, from_metadata
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.formats.verify_text import check_vocabulary
from satchel.quant import ModelError, RequestError
from satchel.runtime.arch import Cache
from satchel.runtime.device import Backend, Device, find_backend
from satchel.runtime.engine import MAX_TOKENS, Engine, Feed
from satchel.runtime.graph import Array
from satchel.runtime.packing import Packed, own_bytes
from satchel.runtime.reply import Reply
from satchel.runtime.sampling import Sampling
from satchel.runtime.sizing import size
from satchel.runtime.weights import DeviceWeights, Progress, bind_beside

Message = Mapping[str, Any]
PRECISIONS = ("exact", "fast")
ACTIVATIONS = (8, 16)


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is loaded. context 0: the model's own, as far as a quarter of the free memory allows.

    threads: for answers, 0: all; threads_batch: for prompts, 0: as many as threads. repack False: weights
    stay in the mapped file, which processes share, and products are slower. precision "fast": products may
    round weights to 8 bits. activations: bits of what quantized weights are multiplied with, 8 or 16.
    """

    context: int = 0
    slots: int = 1
    threads: int = 0
    device: str = "auto"
    cache_type: str = "f16"
    batch: int = MAX_TOKENS
    threads_batch: int = 0
    repack: bool = True
    precision: str = "exact"
    profile: bool = False
    activations: int = 8


class Model:
    """A loaded model: one file, its tokenizer and template, and an engine. Not thread-safe; one call at a
    time.
    """

    def __init__(self, gguf: GGUF, options: Options, progress: Progress | None = None) -> None:
        self.gguf, self.options, self.path = gguf, options, gguf.path
        self.notes: list[str] = list(gguf.warnings)
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._kept: dict[int, list[int]] = {}
        self._progress, self._closed = progress, False
        self.device = self._open_device()
        try:
            self._make_engine()
        except BaseException:
            self.device.close()
            raise

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        context: int = 0,
        slots: int = 1,
        threads: int = 0,
        device: str = "auto",
        cache_type: str = "f16",
        batch: int = MAX_TOKENS,
        threads_batch: int = 0,
        repack: bool = True,
        precision: str = "exact",
        profile: bool = False,
        activations: int = 8,
        progress: Progress | None = None,
    ) -> Self:
        """Opens, checks and maps the file, and brings the weights to the device; the other arguments are
        those of Options. progress(bytes done, bytes in all) is called while the weights are read.
        """
        options = Options(
            context,
            slots,
            threads,
            device,
            cache_type,
            batch,
            threads_batch,
            repack,
            precision,
            profile,
            activations,
        )
        gguf = open_gguf(path)
        try:
            return cls(gguf, options, progress)
        except BaseException:
            gguf.close()
            raise

    def _open_device(self) -> Device:
        o = self.options
        if min(o.threads, o.threads_batch) < 0 or not 1 <= o.batch <= 1 << 16 or o.slots < 1:
            raise RequestError(f"threads, batch and slots must be positive, got {o}")
        if o.precision not in PRECISIONS:
            raise RequestError(f"precision is {o.precision!r}: it must be one of {', '.join(PRECISIONS)}")
        if o.activations not in ACTIVATIONS:
            raise RequestError(f"activations are {o.activations} bits: it must be one of 8, 16")
        backend = find_backend(self.options.device)
        if backend.name == "numba" and self.options.device == "auto":
            self.notes.append(
                "no compiled CPU backend is installed: numba runs the model, slowly; see `satchel doctor`"
            )
        return open_device(backend, o.threads, o.threads_batch, fast=o.precision == "fast", profile=o.profile)

    def _make_engine(self) -> None:
        o = self.options
        free = self.device.info().memory_free - own_bytes(self.gguf, self.device, o.repack)
        self.arch, said = size(self.gguf, Cache(o.context, o.slots, format=o.cache_type), free)
        self.notes += said
        self.cache = self.arch.cache
        self.engine = Engine(
            self.arch.build(),
            self.cache,
            [self.device],
            self._bind,
            batch=o.batch,
            repack=o.repack,
            activations=o.activations,
        )

    def _bind(self, device: Device, packed: Mapping[str, Packed]) -> DeviceWeights:
        # Packing is C, so the tokenizer is built meanwhile. What is wrong with it is said at its first use.
        return bind_beside(self.gguf, device, packed, self._progress, self._try_tokenizer)

    @property
    def context(self) -> int:
        return self.cache.context

    def used(self, slot: int = 0) -> int:
        """Tokens of the context that the slot takes now; the last one of an answer is not fed."""
        return self.engine.length(slot)

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = self._build_tokenizer()
        return self._tokenizer

    def _try_tokenizer(self) -> None:
        with suppress(ModelError):
            self._tokenizer = self._build_tokenizer()
        with suppress(OSError, AttributeError):
            # A large vocabulary leaves tens of MB of holes, which glibc would keep.
            ctypes.CDLL(None).malloc_trim(0)

    def _build_tokenizer(self) -> Tokenizer:
        built = build_tokenizer(self.gguf.metadata, source=str(self.path))
        check_vocabulary(built, self.gguf.tensors, self.path)
        return built

    @property
    def template(self) -> ChatTemplate:
        if self._template is None:
            t = self.tokenizer
            bos, eos = (t.text(i) if i is not None else "" for i in (t.bos, t.eos))
            found = from_metadata(self.gguf.metadata, bos, eos)
            self._template = found or ChatTemplate.chatml(bos_token=bos, eos_token=eos)
            if self._template.warning:
                self.notes.append(self._template.warning)
        return self._template

    def tokenize(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Token ids. special: control tokens in the text are parsed. bos None: as the file says."""
        return self.tokenizer.encode(text, special=special, bos=bos)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self.tokenizer.decode(ids, special=special)

    def prompt_ids(self, messages: Sequence[Message], *, tools: Sequence[Message] | None = None) -> list[int]:
        """A conversation as the model's template writes it, with the opening of the assistant's turn. User
        text never becomes a control token.
        """
        text = self.template.render(messages, tools=tools, escape=self.tokenizer.escape)
        return self.tokenizer.encode_rendered(text)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        max_tokens: int = -1,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        slot: int = 0,
        ignore_eos: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Reply:
        """The answer to a conversation, piece by piece. What the slot already holds of it is not computed
        again.
        """
        ids = self.prompt_ids(messages, tools=tools)
        return self.generate(
            ids,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            slot=slot,
            ignore_eos=ignore_eos,
            progress=progress,
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = -1,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        slot: int = 0,
        ignore_eos: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Reply:
        """The continuation of a text or of token ids, piece by piece. max_tokens -1: until the end or a full
        context.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_ids(ids)
        if not 0 <= slot < self.cache.slots:
            raise RequestError(f"slot {slot} does not exist: the model was loaded with {self.cache.slots}")
        if max_tokens < -1:
            raise RequestError(f"max_tokens is {max_tokens}: it must be -1 (no limit) or more")
        chosen = sampling or Sampling()
        seeded = chosen if chosen.seed is not None else chosen.with_seed(secrets.randbits(63))
        return Reply(self, ids, seeded, max_tokens, tuple(stop), slot, ignore_eos, progress)

    def logits(self, ids: Sequence[int], *, slot: int = 0) -> Array:
        """Logits after each of the token ids, from an empty cache: (n, vocabulary) float32."""
        ids = list(ids)
        self._check_ids(ids)
        self.keep(slot, [])
        n = self.engine.batch
        return np.concatenate(
            [self.engine.logits([Feed(slot, ids[i : i + n])]) for i in range(0, len(ids), n)]
        )

    def _check_ids(self, ids: Sequence[int]) -> None:
        if self._closed:
            raise RequestError(f"{self.path}: the model was closed: load it again")
        size = self.arch.vocab
        if not ids:
            raise RequestError("the prompt has no token: give some text")
        bad = next((i for i in ids if not 0 <= i < size), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is not in the vocabulary of {size}")
        if len(ids) > self.context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, the context holds {self.context}: shorten it or raise -c"
            )

    def reuse(self, slot: int, ids: Sequence[int]) -> int:
        """Rewinds the slot to what it shares with `ids`, leaving at least the last one to be fed; gives the
        shared length.
        """
        shared = 0
        for mine, wanted in zip(self._kept.get(slot, []), ids[:-1], strict=False):
            if mine != wanted:
                break
            shared += 1
        self.keep(slot, list(ids[:shared]))
        return shared

    def keep(self, slot: int, ids: list[int]) -> None:
        """Notes that the slot holds these tokens, after taking the rest out of the cache."""
        length = min(len(ids), self.engine.length(slot))
        self.engine.rewind(slot, length)
        self._kept[slot] = ids[:length]

    def extend(self, slot: int, ids: Sequence[int]) -> None:
        """Notes tokens that were fed to the slot."""
        self._kept.setdefault(slot, []).extend(ids)

    def close(self) -> None:
        """Frees the engine's memory and the device, and unmaps the file. A closed model answers no more."""
        self._closed = True
        self.engine.close()
        self.device.close()
        self.gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_device(
    backend: Backend, threads: int, threads_batch: int, *, fast: bool = False, profile: bool = False
) -> Device:
    """Opens a backend's device with so many threads for answers and for prompts, as Options has them."""
    if threads_batch and not threads:
        with backend.open() as usual:
            threads = usual.info().threads
    return backend.open(
        threads=threads_batch or threads,
        threads_decode=threads if threads_batch else 0,
        fast=fast,
        profile=profile,
    )
