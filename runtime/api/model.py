"""The library's interface: Model.load(), then chat, generate, tokenize, logits; close() ends it.

The engine of a Model runs in this process, that of a WorkerModel in a worker process. Both have the tokenizer
and the template in this one, over the same mapped file.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import IO, Any, Self, TypeVar, Unpack, cast

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.chat import Style, detect, guard_of, parted, special_texts
from satchel.formats.gguf import GGUF, OpenFile, open_file, open_gguf
from satchel.formats.gguf.atomic import replace_files
from satchel.formats.gguf.digest import Expected, check_digests
from satchel.formats.gguf.labels import file_type, parameters, size_label
from satchel.formats.resource import Resource
from satchel.formats.template import ChatTemplate, from_metadata
from satchel.formats.template.messages import Plain, read_messages
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.formats.verify_text import check_vocabulary
from satchel.runtime.adapters.adapters import Adapters, WithAdapters, read_adapters
from satchel.runtime.api import notebook
from satchel.runtime.api.answers import best, check_counts, seeds
from satchel.runtime.api.chat import ChatPrompt, Thinking
from satchel.runtime.api.chat_reply import ChatReply
from satchel.runtime.api.defaults import request_defaults
from satchel.runtime.api.generate_options import GenerateKwargs, GenerateOptions
from satchel.runtime.api.model_file import model_file, with_draft_file
from satchel.runtime.api.options import LoadKwargs, LoadProgress, Options, settled, stopping
from satchel.runtime.api.overflow import Fitted, fit_messages, fit_tokens, head_of
from satchel.runtime.api.overrides import override
from satchel.runtime.api.readings import Readings
from satchel.runtime.api.recovering import Recovering
from satchel.runtime.api.refusals import PromptTooLong
from satchel.runtime.api.reply import Reply
from satchel.runtime.api.tokenized_options import with_constraint
from satchel.runtime.device.peaks import BEYOND_CACHE, read_rate
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.beam import Beam, BeamOptions, beam_search
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle, Requests
from satchel.runtime.engine.resume import (
    Restored,
    export_blocks,
    import_blocks,
    numbers_of,
    restore,
    save,
    shape_of,
)
from satchel.runtime.engine.scoring import score
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.stats import EngineStats
from satchel.runtime.engine.warmup import warm_up
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.joining import joined_fleet, scaled
from satchel.runtime.fleet.share import replicas_of
from satchel.runtime.grammar import only_check
from satchel.runtime.graph import Array
from satchel.runtime.kernels import registered
from satchel.runtime.kv.identity import identity
from satchel.runtime.kv.saved import SavedShape
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.log import LOG
from satchel.runtime.net.remote_process import remote_engines
from satchel.runtime.option import check_list
from satchel.runtime.placement.devices import cache_room, used_of
from satchel.runtime.placement.options import is_range, replica_range
from satchel.runtime.placement.sizing import check_room, size
from satchel.runtime.placement.speeds import measured
from satchel.runtime.placement.split_mode import open_split
from satchel.runtime.placement.step import settle_step
from satchel.runtime.sampling.logprobs import Logprob
from satchel.runtime.scheduler.sequence import salted
from satchel.runtime.speculative import Speculator
from satchel.runtime.speculative.load import buckets, open_draft
from satchel.runtime.weights.residency import Residency
from satchel.runtime.weights.resident import Resident
from satchel.runtime.worker.process import PASSES
from satchel.runtime.worker.service import WorkerService

__all__ = ["Message", "Model", "Options", "WorkerModel"]

Message = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
TAIL = 8  # tokens at the end of a prompt that are searched for the marker that opens reasoning


class Model(Recovering, Readings, Resource):
    """A loaded model: one file, its tokenizer and template, and an engine. Thread-safe: requests of all
    threads run together, `slots` of them per step. A `with` block closes it.

    path: the model's file.
    gguf: its metadata and tensors.
    options: those of the load.
    notes: warnings of the load, such as a device that is missing.
    """

    def __init__(self, gguf: GGUF, options: Options, progress: LoadProgress | None = None) -> None:
        super().__init__()
        self.gguf, self.options, self.path = gguf, options, gguf.path
        self.measured_bandwidth: float | None = None
        self.request_defaults, notes = request_defaults(
            gguf.metadata, options.defaults, options.chat_template_kwargs
        )
        self.notes: list[str] = [*gguf.warnings, *notes]
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._style: Style | None = None
        self._speculator: Speculator | None = None
        self._draft_file: GGUF | None = None
        self.adapters: Adapters | None = None
        self.placement_options = options.placement_options
        self._progress = stopping(progress, gguf.path)
        self._open()
        LOG.info("%s: loaded, context %d, %d slots", self.path.name, self.context, options.slots)

    @classmethod
    def _kind(cls, options: Options) -> type[Self]:
        """The class of a model with these options."""
        if options.in_process:
            return cls
        if cls is not Model:
            raise RequestError(
                f"{cls.__name__} needs the engine in this process: load it with worker='thread', one replica"
            )
        return cast("type[Self]", WorkerModel)

    def _open(self) -> None:
        """Creates the engine; frees everything if that fails."""
        opened = open_split(self.gguf, self.options, self.placement_options)
        self.devices, self.device = opened.devices, opened.devices[0]
        self.notes += opened.notes
        try:
            self._make_engine()
            self._make_speculator()
        except BaseException:
            opened.close()
            if self._draft_file is not None:
                self._draft_file.close()
            raise

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        options: Options | None = None,
        *,
        progress: LoadProgress | None = None,
        **changes: Unpack[LoadKwargs],
    ) -> Self:
        """Opens, checks and maps a model's file, and loads the weights onto the device. model: a path, or a
        name of `satchel list`; None: the bundled model. Keywords are fields of Options and override
        `options`. progress(bytes done, bytes in all) is called while the weights load; if it returns False,
        the load stops with a RequestError, and if it raises, with its error. Everything is freed then.

        Raises ModelError if the file is malformed or of a kind that this version does not run, RequestError
        if an option is out of range or the store has no such model, DeviceError if a backend is missing or
        fails.
        """
        chosen = with_draft_file(settled(options, changes))
        kind = cls._kind(chosen)
        gguf = open_gguf(model_file(model, stopping(progress, Path(model or ""))))
        try:
            # A worker process of this host checks them itself.
            if chosen.digests and (chosen.in_process or chosen.engine_host):
                expected = [Expected(*line) for line in chosen.digests]
                check_digests(gguf, expected, stopping(progress, gguf.path))
            override(gguf, chosen.override_kv, chosen.chat_template)
            loaded = kind(gguf, chosen, progress)
        except BaseException:
            gguf.close()
            raise
        try:
            gguf.check_unchanged()
        except BaseException:
            loaded.close()
            raise
        return loaded

    def __repr__(self) -> str:
        said = ["closed"] if self._closed else [f"{name} {value}" for name, value in self._facts().items()]
        return f"<{type(self).__name__} {self.path.name}: {', '.join(said)}>"

    def _repr_html_(self) -> str:
        """A table for a notebook."""
        if self._closed:
            return notebook.faint(repr(self))
        rows = [*self._facts().items(), *(("note", note) for note in self.notes)]
        return notebook.table(self.path.name, rows)

    def _facts(self) -> dict[str, str]:
        """What the model is and how it was loaded."""
        size = sum(part.size for part in self.gguf.parts)
        return {
            "architecture": self.gguf.metadata.get_str("general.architecture"),
            "parameters": size_label(parameters(self.gguf)),
            "format": f"{file_type(self.gguf)} ({size / 1e6:,.0f} MB)",
            "context": f"{self.context:,}",
            "slots": f"{self.slots}",
            "on": self._where(),
        }

    def _where(self) -> str:
        """The devices that compute."""
        return ", ".join(device.name for device in self.devices)

    def _make_engine(self) -> None:
        o = self.options
        settled, batch = settle_step(
            self.gguf, self.devices, o, self.placement_options, measured(self.gguf, o)
        )
        self.arch, placement, self.notes = settled.arch, settled.placement, [*self.notes, *settled.notes]
        check_room(self.arch, self.devices, sum(t.nbytes for t in self.gguf.tensors.values()))
        self.cache = self.arch.cache
        self.adapters = read_adapters(self.gguf, o.adapters, o.control_vectors)
        self.engine = Engine(
            self.arch.build_with(self.adapters),
            self.cache,
            self.devices,
            settled.residency(self.gguf, self._resident(), self.devices),
            placement,
            batch=batch,
            activations=o.activations,
            host_cache=o.host_cache,
            source=str(self.path),
            room=cache_room(self.devices, self.placement_options),
        )
        self.devices = used_of(self.devices, self.engine.devices)
        self.device = self.devices[0]

    def _make_speculator(self) -> None:
        wanted, draft = self.options.speculation, None
        if wanted is None or not wanted.active:
            return
        if wanted.draft_model is not None:
            self._draft_file, draft = open_draft(
                wanted.draft_model,
                self.tokenizer,
                self.arch.vocab,
                self.cache,
                self.device,
                repack=self.options.repack,
            )
        self._speculator = Speculator(wanted, draft)
        for rows in buckets(min(wanted.draft_max + self.cache.slots, self.engine.batch) - 1):
            self.engine.program(rows, rows)  # compile now, not during an answer

    def _resident(self) -> Residency:
        """The weights of the file and of the adapters in the devices' memory."""
        # Packing is C, so the tokenizer is built meanwhile. Its errors are reported at its first use.
        found = Resident(self.gguf, self.options.repack, self._progress, self._try_tokenizer)
        return found if self.adapters is None else WithAdapters(found, self.adapters)

    @property
    def sandbox(self) -> str:
        """The limits of the sandbox around the engine."""
        return "none: the engine runs in this process"

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.cache.context

    @property
    def slots(self) -> int:
        """Sequences that run together; of replicas, all of theirs."""
        return self.cache.slots

    @property
    def capacity(self) -> int:
        """Tokens of KV cache; of replicas, all of theirs."""
        return self.cache.capacity

    @property
    def fleet(self) -> Fleet | None:
        """The replicas; None for one engine."""
        return None

    def _start(self, old: Service | None) -> Requests:
        service = Service(
            self.engine,
            self.options.served,
            speculator=self._speculator,
            on_lost=self._on_lost(),
            after=old,
        )
        if self.options.warmup and self.arch.causal and old is None:
            warm_up(service)
        return service

    def submit(self, request: GenerateRequest) -> RequestHandle:
        """Queues a request. Raises RequestError if the queue is full, the request can never run, or its
        grammar cannot be compiled.
        """
        return self.service.submit(with_constraint(request, self.tokenizer))

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer. Raises ModelError if the file's vocabulary is invalid."""
        if self._tokenizer is None:
            self._tokenizer = self._build_tokenizer()
        return self._tokenizer

    def _try_tokenizer(self) -> None:
        with suppress(ModelError):
            self._tokenizer = self._build_tokenizer()
        with suppress(OSError, AttributeError, TypeError):  # TypeError: Windows has no library without a name
            # Building a large vocabulary leaves tens of MB of free memory, which glibc would keep.
            ctypes.CDLL(None).malloc_trim(0)

    def _build_tokenizer(self) -> Tokenizer:
        built = build_tokenizer(self.gguf.metadata, source=str(self.path))
        check_vocabulary(built, self.gguf.tensors, self.path)
        return built

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the file or of the load; ChatML where the file has none."""
        if self._template is None:
            t = self.tokenizer
            bos, eos = (t.text(i) if i is not None else "" for i in (t.bos, t.eos))
            found = from_metadata(self.gguf.metadata, bos, eos)
            self._template = found or ChatTemplate.chatml(bos_token=bos, eos_token=eos)
            if self._template.warning:
                self.notes.append(self._template.warning)
        return self._template

    @property
    def style(self) -> Style:
        """How the model's template marks reasoning and tool calls, detected at the first use."""
        if self._style is None:
            self._style = detect(self.template, special_texts(self.tokenizer))
        return self._style

    def tokenize(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Token ids. special: parse control tokens in the text. bos None: as the file states."""
        return self.tokenizer.encode(text, special=special, bos=bos)

    def tokenize_many(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Token ids of many texts, in several threads: the packages sentencepiece and tokenizers release the
        interpreter lock.
        """
        check_list("texts", texts, "tokenize() takes one")
        encode = partial(self.tokenizer.encode, special=special)
        with ThreadPoolExecutor(os.cpu_count(), "satchel-tokenize") as pool:
            return list(pool.map(encode, texts))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids. special: with the text of control tokens."""
        return self.tokenizer.decode(ids, special=special)

    def prompt_ids(self, messages: Sequence[Message], *, tools: Sequence[Message] | None = None) -> list[int]:
        """Token ids of a conversation rendered by the model's template, up to the start of the assistant's
        turn. User text never becomes a control token or a marker of the template.
        """
        guard = guard_of(self.tokenizer, self.template.source)
        if self.style.thinks:
            messages = parted(read_messages(messages, Plain()), self.style.open, self.style.close)
        variables = self.request_defaults.variables
        text = self.template.render(messages, tools=tools, variables=variables, escape=guard.escape)
        return self.tokenizer.encode_rendered(text, guard=guard)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        reasoning: bool | int | str | None = None,
        reasoning_end: str = "",
        prefill: bool | None = None,
        variables: Mapping[str, object] | None = None,
        before: Sequence[int] = (),
        **kwargs: Unpack[GenerateKwargs],
    ) -> ChatReply:
        """Answers a conversation; iterate for text pieces. A prefix that the KV cache has from an earlier
        turn or request is not recomputed. Keywords are fields of GenerateOptions and of Sampling.

        reasoning: False or 0: none; True; an effort such as "low"; or the most reasoning tokens.
        reasoning_end: text that the model reads when its reasoning budget is spent.
        prefill: continue the last message, which must be the assistant's; None: if it is the assistant's.
        variables: of the template, besides those of `chat_template_kwargs`.
        before: token ids of an earlier conversation.

        Raises RequestError if an option is out of range, a message or the grammar is invalid, or the
        conversation exceeds the context. What the engine refuses is raised by the reply's first piece.
        """
        prompt = self.chat_prompt(
            messages,
            tools=tools,
            reasoning=reasoning,
            reasoning_end=reasoning_end,
            prefill=prefill,
            variables=variables,
            before=before,
        )
        return self.answer_chat(prompt, **kwargs)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        reasoning: bool | int | str | None = None,
        reasoning_end: str = "",
        prefill: bool | None = None,
        variables: Mapping[str, object] | None = None,
        before: Sequence[int] = (),
    ) -> ChatPrompt:
        """The prompt of `chat` for `answer_chat`, of which a caller may count the tokens first."""
        defaults = self.request_defaults
        wanted = self._default_reasoning() if reasoning is None else reasoning
        thinking = Thinking.of(wanted, reasoning_end or defaults.reasoning_end)
        return ChatPrompt(
            self.template,
            self.tokenizer,
            self.style,
            messages,
            tools=tools,
            thinking=thinking,
            prefill=prefill,
            variables={**defaults.variables, **(variables or {})},
            before=before,
        )

    def answer_chat(self, prompt: ChatPrompt, **kwargs: Unpack[GenerateKwargs]) -> ChatReply:
        """The answer to a prompt of `chat_prompt`. Raises as `chat` does."""
        options = self._options(kwargs, bool(prompt.tools))
        fitted = self._fit_chat(prompt, options)
        self.check_ids(fitted.ids)
        return ChatReply.to(self, prompt, fitted, options)

    def answer(self, ids: Sequence[int], **kwargs: Unpack[GenerateKwargs]) -> ChatReply:
        """The answer to a prompt of `prompt_ids`, split into parts as in `chat`. Raises as `chat` does."""
        options, tail = self._options(kwargs), self.detokenize(ids[-TAIL:], special=True)
        self.check_ids(ids)
        opening = "reasoning" if tail.rstrip().endswith(self.style.open) else ""
        return ChatReply(self, Fitted(list(ids)), options, self.style, opening=opening)

    def generate(self, prompt: str | Sequence[int], **kwargs: Unpack[GenerateKwargs]) -> Reply:
        """Completes a text or token ids; iterate for text pieces. Keywords are fields of GenerateOptions and
        of Sampling.

        Raises RequestError if an option is out of range, the grammar is invalid, the model generates no
        text, or the prompt is empty, exceeds the context or has an unknown token id.
        """
        options = self._options(kwargs)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        head = int(bool(ids) and ids[0] == self.tokenizer.bos)
        cut = options.on_overflow == "truncate-middle"
        fitted = fit_tokens(ids, self.context, options.max_tokens) if cut else Fitted(ids, head=head)
        return self._reply(fitted, options)

    def generate_many(
        self, prompts: Iterable[str | Sequence[int]], **kwargs: Unpack[GenerateKwargs]
    ) -> list[Reply]:
        """Completions of many prompts, computed together and run to their ends, in order. Keywords and errors
        are those of `generate`; the first error ends the call.
        """
        check_list("prompts", prompts, "generate() takes one")
        self._options(kwargs)

        def run(prompt: str | Sequence[int]) -> Reply:
            reply = self.generate(prompt, **kwargs)
            reply.read()
            return reply

        # As many as run at once, and two to follow at once when one of them ends.
        with ThreadPoolExecutor(self.slots + 2, "satchel-many") as pool:
            return list(pool.map(run, prompts))

    def _default_reasoning(self) -> bool | int | str | None:
        """The reasoning of requests that set none; None, with a note, where the template cannot have it."""
        wanted, style = self.request_defaults.reasoning, self.style
        if not wanted or (style.thinks and (style.efforts or not isinstance(wanted, str))):
            return wanted
        line = f"the default reasoning, {wanted}, has no effect: this model's template does not support it"
        if line not in self.notes:
            self.notes.append(line)
        return None

    def _options(self, given: GenerateKwargs, tools: bool = False) -> GenerateOptions:
        """The checked options of a request, with the model's defaults of those that it leaves out."""
        return GenerateOptions.of(**self.request_defaults.completed(given, tools)).checked()

    def _reply(self, fitted: Fitted, options: GenerateOptions) -> Reply:
        self.arch.check_generates()
        self.check_ids(fitted.ids)
        self.adapter_scales(options.adapters, options.control_vectors)
        return Reply(self, fitted, options)

    def _fit_chat(self, prompt: ChatPrompt, options: GenerateOptions) -> Fitted:
        """Token ids of the conversation, truncated to fit if the caller allows it."""
        if options.on_overflow == "truncate-middle":
            return fit_messages(prompt.messages, prompt.render, self.context, options.max_tokens)
        ids, keeps = prompt.ids, options.on_overflow == "shift"
        head = head_of(prompt.messages, ids, prompt.render, self.context) if keeps else 0
        return Fitted(ids, head=head)

    def answers(
        self,
        prompt: str | Sequence[int],
        n: int,
        *,
        best_of: int | None = None,
        **kwargs: Unpack[GenerateKwargs],
    ) -> list[Reply]:
        """n answers to one prompt, which is computed once; each has a seed of its own and is run to its end.
        Keywords and errors are those of `generate`.

        best_of: this many are generated, and the n with the highest mean log-probability are returned, best
        first.
        """
        made, options = check_counts(n, best_of), self._options(kwargs)
        if made > 1 and options.constraint is not None:
            raise RequestError("a constraint goes with one answer: give several ones a grammar instead")
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        head = int(bool(ids) and ids[0] == self.tokenizer.bos)
        logprobs = max(0, options.logprobs) if made > n else options.logprobs
        drawing = options.seeded_sampling
        asked = [
            replace(options, sampling=drawing.with_seed(seed), logprobs=logprobs)
            for seed in seeds(drawing.seed or 0, made)
        ]
        return best([self._reply(Fitted(list(ids), head=head), a) for a in asked], n)

    def prompt_logprobs(
        self,
        prompt: str | Sequence[int],
        top: int = 0,
        *,
        salt: str = "",
        adapters: Mapping[str, float] | None = None,
    ) -> list[Logprob]:
        """Log-probability of each token of a prompt after those before it, without the first. The prompt
        stays in the cache for an answer to it.

        top: number of likeliest tokens reported with each.
        salt: only requests of the same salt find the prompt in the cache.
        adapters: scales of LoRA adapters by name; None: as the model was loaded.

        Raises RequestError for an empty or too long prompt, or a token id outside the vocabulary.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        self.check_ids(ids)
        return score(self._own_service(), ids, top, salt, self.adapter_scales(adapters))

    def beam_search(
        self, prompt: str | Sequence[int], width: int, max_tokens: int, *, length_penalty: float = 1.0
    ) -> list[Beam]:
        """The `width` most likely continuations that beam search finds, best first, by the sum of
        log-probabilities over length^length_penalty. Raises RequestError if the model has fewer than `width`
        slots, or prompt and max_tokens exceed the context.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        self.check_ids(ids)
        service = self._own_service()
        options = BeamOptions(
            width, max_tokens, length_penalty, frozenset(self.tokenizer.eog), self.adapter_scales()
        )
        return beam_search(service, ids, options)

    def _own_service(self) -> Service:
        return cast(Service, self.service)  # WorkerModel, which has another, asks the worker's model instead

    def adapter_scales(
        self, adapters: Mapping[str, float] | None = None, control_vectors: Mapping[str, float] | None = None
    ) -> AdapterScales:
        """The adapter scales of a request, as the plan takes them."""
        return (self.adapters or Adapters({}, {})).adapter_scales(adapters, control_vectors)

    def logits(
        self,
        ids: Sequence[int],
        *,
        adapters: Mapping[str, float] | None = None,
        control_vectors: Mapping[str, float] | None = None,
    ) -> Array:
        """Logits after each of the n token ids, from an empty cache: (n, vocabulary) float32. Raises
        RequestError for an encoder, too many ids, or one outside the vocabulary.
        """
        self.arch.check_generates()
        adapter_scales = self.adapter_scales(adapters, control_vectors)
        ids = list(ids)
        self.check_ids(ids)
        service = self._own_service()
        engine, n = service.engine, service.engine.batch
        (slot,) = service.acquire_slots(1)
        try:
            entries = [
                BatchEntry(slot, ids[i : i + n], adapter_scales=adapter_scales) for i in range(0, len(ids), n)
            ]
            return np.concatenate([service.ask(partial(engine.logits, [entry])) for entry in entries])
        finally:
            service.release_slots([slot])

    def save_state(self, path: str | Path, prompt: str | Sequence[int], *, salt: str = "") -> int:
        """Writes the cached prefix of a prompt to a file: keys, values and tokens, in whole blocks. Gives the
        number of tokens; RequestError if none is cached. For an answer, the prompt is [*reply.prompt,
        *reply.ids]. Other requests run meanwhile, but it waits for a free slot.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        self.check_ids(ids[: self.context])
        mine = salted(salt, self.adapter_scales())
        return save(self._own_service(), self._shape(), path, ids, mine)

    def restore_state(self, path: str | Path, *, salt: str = "") -> Restored:
        """Loads a saved state into the cache, so that prompts with its tokens as prefix find it, whatever
        context, slots and threads it was saved with. If only a part fits, that part is restored, and the
        result's note states it. Raises ModelError if the file is invalid or another model's, RequestError if
        the cache formats differ; the cache is unchanged then.
        """
        mine = salted(salt, self.adapter_scales())
        return restore(self._own_service(), self._shape(), path, mine)

    def export_kv(
        self, ids: Sequence[int], salt: str, start: int, file: OpenFile | None
    ) -> tuple[int, Array]:
        """Cached blocks of `ids` from block `start` on, for import_kv() of another engine of this model:
        written into `file`, or without one given as bytes (uint8). Gives the tokens up to which they reach,
        too. salt: a sequence's. Raises RequestError if none of them is cached.
        """
        return export_blocks(self._own_service(), self._shape(), ids, salt, start, file)

    def import_kv(self, salt: str, given: OpenFile | str) -> int:
        """Takes what export_kv() gave, in a file or as base64 text, into the cache; gives how many of its
        tokens requests can find now. Raises ModelError for what is damaged or another model's.
        """
        return import_blocks(self._own_service(), self._shape(), salt, given)

    def _shape(self) -> SavedShape:
        return shape_of(self.engine, self._identity, numbers_of(self.options, self.adapter_scales()))

    @cached_property
    def _identity(self) -> str:
        return identity(self.gguf)

    def stats(self) -> EngineStats:
        """Engine statistics since the model was loaded."""
        return self.service.stats()

    def bandwidth(self) -> float | None:
        """Bytes per second that the model's first device can read; None if unknown. Measured at the first
        call, between two steps, in about half a second. Reports state each request's share of it.
        """
        if self.measured_bandwidth is None:
            service = self._own_service()
            self.measured_bandwidth = service.ask(lambda: read_rate({self.device: BEYOND_CACHE}))
        return self.measured_bandwidth

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises RequestError for an empty or too long prompt, or a token id outside the vocabulary."""
        if self._closed:
            raise RequestError(f"{self.path}: the model was closed: load it again")
        size = self.arch.vocab
        if not ids:
            raise RequestError("the prompt has no token: give some text")
        bad = next((i for i in ids if not 0 <= i < size), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is not in the vocabulary of {size}")
        if len(ids) > self.context:
            line = (
                f"the prompt has {len(ids)} tokens, the context holds {self.context}: shorten it or raise -c"
            )
            raise PromptTooLong(len(ids), self.context, line)

    def close(self) -> None:
        """Frees the engine's memory and the device, and unmaps the file. A closed model refuses all calls."""
        self._close_service()
        self._free()
        self.gguf.close()

    def _release(self) -> None:
        self._free()
        self._speculator = self._draft_file = self.measured_bandwidth = self._progress = None
        # Keep the context that requests rely on; other automatic choices are made again.
        self.options = replace(self.options, context=self.context)

    def _free(self) -> None:
        if self._speculator is not None:
            self._speculator.close()
        self.engine.close()
        for device in self.devices:
            device.close()
        if self._draft_file is not None:
            self._draft_file.close()


def remote(method: F) -> F:
    """Decorator: calls the worker's method of the same name and signature."""

    @wraps(method)
    def ask(self: WorkerModel, *args: Any, **how: Any) -> Any:
        return self.worker.ask(method.__name__, *args, **how)

    return cast(F, ask)


class WorkerModel(Model):
    """A Model with its engine in a worker process, or with several of them that share the requests."""

    worker: WorkerService | Fleet

    embed = remote(Model.embed)
    embed_tokens = remote(Model.embed_tokens)
    score = remote(Model.score)
    score_many = remote(Model.score_many)
    rerank = remote(Model.rerank)
    prompt_logprobs = remote(Model.prompt_logprobs)
    beam_search = remote(Model.beam_search)
    logits = remote(Model.logits)

    def _open(self) -> None:
        files = [p.path for p in self.gguf.parts]
        if self.options.ray or self.options.engine_listen:
            self.worker = joined_fleet(self.path, self.options, files, self.gguf)
            self._begin_worker()
            return
        found = replicas_of(self.options, sum(part.size for part in self.gguf.parts))
        engines = remote_engines(self.options.engine_host, self.options.device_key, self.gguf)
        if max(found.count, len(engines)) == 1:
            engine = engines[0] if engines else None
            self.worker = WorkerService(
                self.path, found.options, files=files, stamps=self.gguf.stamps, engine=engine
            )
        else:
            count, start = len(engines) or found.count, None
            if is_range(self.options.replicas):
                start = replica_range(self.options.replicas)[0]
            self.worker = Fleet(
                self.path, found.options, count, files, self.gguf.stamps, engines=engines, start=start
            )
        self.notes += [found.note] if found.note else []
        self._begin_worker()
        if isinstance(self.worker, Fleet) and is_range(self.options.replicas):
            scaled(self.worker, self.options).begin()

    def _begin_worker(self) -> None:
        """Loads the model in the worker process, or in those of the fleet."""
        self.worker.begin(self._progress)
        self.cache = self.worker.cache
        self.notes += [note for note in self.worker.notes if note not in self.notes]
        if kernels := len(registered()):
            self.notes.append(
                f"{kernels} registered kernels belong to this process and are not used: the engine runs in "
                "another; worker='thread' uses them"
            )
        self.arch, _ = size(self.gguf, self.cache, 0)
        self.worker.widths = self.arch.vocab, self.arch.width
        adapters = read_adapters(self.gguf, self.options.adapters, self.options.control_vectors)
        self.adapters = adapters and replace(adapters, stacks={}, steers={})  # names and scales only

    def _build_tokenizer(self) -> Tokenizer:
        made = super()._build_tokenizer()
        only_check(made)
        return made

    def __getattr__(self, name: str) -> object:
        if name in ("engine", "device", "devices"):
            raise RequestError(f"{name}: it is in the worker process: load the model with worker='thread'")
        raise AttributeError(f"a model has no attribute {name!r}")

    @property
    def slots(self) -> int:
        return self.worker.slots

    @property
    def capacity(self) -> int:
        return self.worker.capacity

    @property
    def fleet(self) -> Fleet | None:
        return self.worker if isinstance(self.worker, Fleet) else None

    def _where(self) -> str:
        fleet, host = self.fleet, self.options.engine_host
        if host:
            return f"engines of {host}" if fleet else f"an engine of {host}"
        return f"{len(fleet.members)} worker processes" if fleet else "a worker process"

    @property
    def trouble(self) -> str:
        return self.worker.trouble

    def _start(self, old: Service | None) -> Requests:
        return self.worker

    def submit(self, request: GenerateRequest) -> RequestHandle:
        return self.service.submit(request)  # the worker makes the constraint of its grammar

    def save_state(self, path: str | Path, prompt: str | Sequence[int], *, salt: str = "") -> int:
        saved, target = 0, Path(path).absolute()
        ask = self._asking_holder(prompt, salt)
        if not PASSES:
            return cast(int, ask("save_state", target, prompt, salt=salt))

        def fill(file: IO[bytes]) -> None:
            nonlocal saved
            if hasattr(os, "fchmod"):  # Windows had none before Python 3.13
                os.fchmod(file.fileno(), 0o600)  # it contains a user's text
            saved = ask("save_state", OpenFile(target, file.fileno()), prompt, salt=salt)

        replace_files([(target, fill)])
        return saved

    def _asking_holder(self, prompt: str | Sequence[int], salt: str) -> Callable[..., Any]:
        """ask() of the engine that has most of the prompt in its cache."""
        fleet = self.fleet
        if fleet is None:
            return self.worker.ask
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        return partial(fleet.ask_where, fleet.most_cached(ids, salted(salt, self.adapter_scales())))

    def restore_state(self, path: str | Path, *, salt: str = "") -> Restored:
        target = Path(path).absolute()
        if not PASSES:
            return cast(Restored, self.worker.ask("restore_state", target, salt=salt))
        file = open_file(target)
        try:
            return cast(Restored, self.worker.ask("restore_state", file, salt=salt))
        finally:
            file.close()

    @property
    def sandbox(self) -> str:
        return self.worker.sandbox

    def bandwidth(self) -> float | None:
        if self.measured_bandwidth is None:
            found = self.worker.ask("bandwidth")
            self.measured_bandwidth = None if found is None else float(found)
        return self.measured_bandwidth

    def _free(self) -> None:
        self.worker.close()
