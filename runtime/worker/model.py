"""A model whose engine runs in a worker process. Tokenizer and template are in this process, over the same
mapped file; the methods are those of Model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from satchel.errors import RequestError
from satchel.formats.gguf import OpenFile, open_file
from satchel.formats.gguf.atomic import replace_files
from satchel.formats.tokenizer import Tokenizer
from satchel.runtime.adapters.adapters import read_adapters
from satchel.runtime.api.model import Model
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle, Requests
from satchel.runtime.engine.resume import Restored
from satchel.runtime.engine.service import Service
from satchel.runtime.grammar import only_check
from satchel.runtime.kernels import registered
from satchel.runtime.placement.sizing import size
from satchel.runtime.worker.process import PASSES
from satchel.runtime.worker.service import WorkerService

F = TypeVar("F", bound=Callable[..., Any])


def remote(method: F) -> F:
    """Decorator: calls the worker's method of the same name and signature."""

    @wraps(method)
    def ask(self: WorkerModel, *args: Any, **how: Any) -> Any:
        return self.worker.ask(method.__name__, *args, **how)

    return cast(F, ask)


class WorkerModel(Model):
    """A Model with its engine in a worker process."""

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
        self.worker = WorkerService(self.path, self.options, files=files, stamps=self.gguf.stamps)
        self.worker.begin(self._progress)
        self.cache = self.worker.cache
        self.notes += [note for note in self.worker.notes if note not in self.notes]
        if kernels := len(registered()):
            self.notes.append(
                f"{kernels} registered kernels belong to this process and are not used: the engine runs in "
                "another; worker='thread' uses them"
            )
        wanted = replace(self.cache, blocks=0)
        self.arch, _ = size(self.gguf, wanted, 0)
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
    def trouble(self) -> str:
        return self.worker.trouble

    def _start(self, old: Service | None) -> Requests:
        return self.worker

    def submit(self, request: GenerateRequest) -> RequestHandle:
        return self.service.submit(request)  # the worker makes the constraint of its grammar

    def save_state(self, path: str | Path, prompt: str | Sequence[int], *, salt: str = "") -> int:
        saved, target = 0, Path(path).absolute()
        if not PASSES:
            return cast(int, self.worker.ask("save_state", target, prompt, salt=salt))

        def fill(file: IO[bytes]) -> None:
            nonlocal saved
            os.fchmod(file.fileno(), 0o600)  # it contains a user's text
            saved = self.worker.ask("save_state", OpenFile(target, file.fileno()), prompt, salt=salt)

        replace_files([(target, fill)])
        return saved

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
