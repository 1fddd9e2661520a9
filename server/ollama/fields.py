"""Request bodies of /api/generate and /api/chat: validated, and converted to a `GenerationRequest`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.grammar.spec import AnyJson, JsonSchema, Spec
from satchel.runtime.grammar.tools import MAX_TOOLS
from satchel.runtime.sampling.logprobs import TOP
from satchel.server.fields import MOST_MESSAGES, Body, kept
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest, Text, Turn
from satchel.server.ollama.options import OllamaOptions, keep_seconds
from satchel.server.problem import Problem


class AnswerFields(Body):
    """Body fields of /api/generate and /api/chat."""

    model: str = Field(min_length=1, max_length=1000)
    stream: bool = True
    format: Literal["", "json"] | JsonObject = ""
    options: OllamaOptions = OllamaOptions()
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: int | float | str | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=TOP)
    truncate: bool = False
    shift: bool = False

    @property
    def keep(self) -> float | None:
        return keep_seconds(self.keep_alive)

    def spec(self) -> Spec | None:
        """The grammar of the answer."""
        if self.format == "json":
            return AnyJson()
        return JsonSchema(self.format) if isinstance(self.format, dict) else None

    def generate_kwargs(self) -> GenerateKwargs:
        """The request's fields of GenerateOptions."""
        if self.top_logprobs is not None and not self.logprobs:
            raise Problem("invalid", "top_logprobs needs logprobs: true", "top_logprobs")
        made = self.options.generate_kwargs()
        made["grammar"] = self.spec()
        made["logprobs"] = (self.top_logprobs or 0) if self.logprobs else -1
        made["on_overflow"] = "truncate-middle" if self.truncate else "shift" if self.shift else "error"
        return made

    def warnings(self) -> list[str]:
        both = self.truncate and self.shift
        line = "truncate and shift were given: a long prompt is cut, and an answer ends in a full context"
        return [*self.options.warnings(), *([line] if both else [])]


class GenerateBody(AnswerFields):
    """The body of /api/generate."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    template: str = ""
    # Token ids of the earlier turns, as the last answer returned them.
    context: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    images: list[Any] = Field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether the request only loads or unloads the model."""
        return not self.prompt and not self.suffix

    @kept
    def wanted(self) -> GenerationRequest:
        self._check()
        sampled = self.options.sampling_values()
        return GenerationRequest(self.model, self._prompt(), self.generate_kwargs(), sampled=sampled)

    def _check(self) -> None:
        if self.images:
            raise Problem("unsupported", "images are not supported: leave them out", "images")
        if self.template:
            line = "template is not supported: the model's own is used; send a prompt as it is with raw"
            raise Problem("unsupported", line, "template")
        if not self.raw and not self.suffix:
            return
        given = {"system": self.system, "think": self.think is not None, "context": self.context}
        name = next((name for name, value in given.items() if value), None)
        if name is not None:
            what = "suffix fills a hole in a text" if self.suffix else "raw takes the prompt as it is"
            raise Problem("invalid", f"{what}: {name} has no place in it", name)

    def _prompt(self) -> Turn | Text:
        if self.suffix:
            return Text(self.prompt, hole=self.suffix)
        if self.raw:
            return Text(self.prompt, special=True)
        said = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"role": "user", "content": self.prompt}
        return Turn([*said, asked], reasoning=self.think, before=self.context)


class CalledFunction(Body):
    name: str = Field(min_length=1, max_length=256)
    arguments: JsonObject = Field(default_factory=dict)
    index: int | None = None


class OllamaToolCall(Body):
    function: CalledFunction
    id: str = ""
    type: str = "function"

    def as_call(self) -> JsonObject:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"type": "function", "function": function, **({"id": self.id} if self.id else {})}


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    images: list[Any] = Field(default_factory=list)
    tool_calls: list[OllamaToolCall] = Field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""

    def as_message(self, where: str) -> JsonObject:
        """The message as `Model.chat` takes it."""
        if self.images:
            raise Problem("unsupported", f"{where}.images: images are not supported", f"{where}.images")
        given = {
            "reasoning_content": self.thinking,
            "tool_calls": [c.as_call() for c in self.tool_calls],
            "name": self.tool_name,
            "tool_call_id": self.tool_call_id,
        }
        return {"role": self.role, "content": self.content, **{k: v for k, v in given.items() if v}}


class OllamaChatBody(AnswerFields):
    messages: list[OllamaMessage] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: list[JsonObject] = Field(default_factory=list, max_length=MAX_TOOLS)

    @property
    def empty(self) -> bool:
        return not self.messages

    @kept
    def wanted(self) -> GenerationRequest:
        said = [m.as_message(f"messages[{i}]") for i, m in enumerate(self.messages)]
        turn = Turn(said, tools=self.tools or None, reasoning=self.think)
        sampled = self.options.sampling_values()
        return GenerationRequest(self.model, turn, self.generate_kwargs(), sampled=sampled)
