"""A fake model that answers from a script and records its requests, for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from satchel.errors import ModelError, RequestError
from satchel.formats.chat import Style
from satchel.formats.gguf import Metadata
from satchel.runtime.api.defaults import RequestDefaults
from satchel.runtime.api.options import Options
from satchel.runtime.api.reply import Stats
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.logprobs import Logprob

Act = Callable[[], None]
CHUNK, ENDLESS = 512, 1 << 62


class FakeReply:
    """Yields the pieces of a script. A callable in the script is called in its place, as a signal arriving
    there.
    """

    def __init__(self, model: FakeModel, ids: list[int], script: Sequence[str | Act], **asked: Any) -> None:
        self.model, self.prompt, self.script, self.asked = model, ids, script, asked
        self.sampling: Sampling = asked["sampling"]
        self.text, self.ids = "", list[int]()
        self.stats = Stats(prompt=len(ids))
        self._cancelled = False
        self.notes: tuple[str, ...] = ()
        self.shifts = 0
        self.logprobs: list[Logprob] = []

    def cancel(self) -> None:
        self._cancelled = True

    def __iter__(self) -> Iterator[str]:
        for act in self.model.while_reading:
            act()
        for done in range(CHUNK, len(self.prompt) + CHUNK, CHUNK):
            self.asked["progress"](min(done, len(self.prompt)), len(self.prompt))
            if self._cancelled and done < len(self.prompt):
                self.stats.finish = "cancelled"
                return
        shifts = self.asked.get("on_overflow") == "shift"
        room = ENDLESS if shifts else self.model.context - len(self.prompt) + 1
        limit = room if self.asked["max_tokens"] < 0 else min(room, self.asked["max_tokens"])
        for piece in self.script:
            if callable(piece):
                piece()
                continue
            if self._cancelled or len(self.ids) >= limit:
                break
            self.ids.append(len(self.ids))
            self.text += piece
            self.stats.generated, self.stats.decode_seconds = len(self.ids), 0.5
            yield piece
        if self._cancelled:
            self.stats.finish = "cancelled"
            return
        self.stats.finish = "length" if len(self.ids) >= limit else "stop"
        if self.stats.finish == "length" and limit == room:
            self.stats.reason = f"the context of {self.model.context} tokens is full"


class FakeModel:
    """Answers with the scripts in turn; a token is a word. `asked` holds the arguments of each call."""

    def __init__(self, *scripts: Sequence[str | Act], context: int = 2048, notes: Sequence[str] = ()) -> None:
        self.scripts, self.context, self.notes = list(scripts), context, list(notes)
        self.path, self.loaded, self.closed = Path("fake.gguf"), dict[str, Any](), False
        self.asked: list[dict[str, Any]] = []
        self.conversations: list[list[Mapping[str, str]]] = []
        self.raw: list[str] = []
        self.saved: list[Path] = []
        self.while_reading: list[Act] = []
        self.tail, self.style, self.options = "", Style(), Options()
        self.request_defaults = RequestDefaults()
        self.reply: FakeReply | None = None
        tensor = SimpleNamespace(shape=(1000, 2000), format="q8_0", nbytes=2_125_000)
        self.gguf = SimpleNamespace(
            metadata=Metadata.of({"general.architecture": "llama", "general.name": "Fake 2M"}),
            tensors={"token_embd.weight": tensor},
        )
        info = SimpleNamespace(name="cpu", variant="scalar", threads=2)
        self.device = SimpleNamespace(info=lambda: info)

    def load(self, path: str | Path, options: Options | None = None, **changes: Any) -> FakeModel:
        given = {f.name: getattr(options, f.name) for f in fields(options)} if options else {}
        self.path, self.loaded = Path(path), given | changes
        changes["progress"](1, 1)
        return self

    def tokenize(self, text: str) -> list[int]:
        self.raw.append(text)
        return list(range(len(text.split())))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self.tail

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.conversations.append(list(messages))
        return list(range(sum(len(m["content"].split()) for m in messages)))

    def generate(self, ids: Sequence[int], **asked: Any) -> FakeReply:
        if len(ids) > self.context:
            raise RequestError(f"the prompt has {len(ids)} tokens, the context holds {self.context}")
        self.asked.append(asked)
        script = self.scripts.pop(0) if self.scripts else ("Hello", "!")
        self.reply = FakeReply(self, list(ids), script, **asked)
        return self.reply

    def chat_prompt(self, messages: Sequence[Mapping[str, str]], *, reasoning: object) -> SimpleNamespace:
        ids = self.prompt_ids(messages)
        return SimpleNamespace(messages=messages, ids=ids, render=lambda messages: ids, reasoning=reasoning)

    def answer_chat(self, prompt: SimpleNamespace, **asked: Any) -> FakeReply:
        return self.generate(prompt.ids, reasoning=prompt.reasoning, **asked)

    def save_state(self, path: Path, ids: Sequence[int]) -> int:
        self.saved.append(path)
        return len(ids)

    def restore_state(self, path: Path) -> SimpleNamespace:
        raise ModelError(f"{path}: another model's state")

    def used(self) -> int:
        return len(self.reply.prompt) + max(0, self.reply.stats.generated - 1) if self.reply else 0

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True
