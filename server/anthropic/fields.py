"""Request bodies of /v1/messages: validated, and converted to a `GenerationRequest`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.grammar.spec import JsonSchema, Spec
from satchel.runtime.grammar.tools import MAX_TOOLS
from satchel.runtime.option import options_of
from satchel.runtime.sampling import Sampling
from satchel.server.anthropic.blocks import Cached, Name, Texts
from satchel.server.anthropic.conversation import AnthropicMessage, messages_of
from satchel.server.fields import MOST_MESSAGES, MOST_TOKENS, Body, body_field, kept
from satchel.server.flavour import JsonObject
from satchel.server.generation import GenerationRequest, MustCall, Turn
from satchel.server.problem import Problem

OPTIONS = options_of(Sampling)
SAMPLING = ("temperature", "top_p", "top_k")


class AnthropicTool(Cached):
    type: Literal["custom"] = "custom"
    name: Name
    description: str = ""
    input_schema: JsonObject
    # Accepted without effect, as documented.
    eager_input_streaming: bool | None = None
    strict: bool | None = None

    def function(self) -> JsonObject:
        said = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": said}


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def check_name(self) -> ToolChoice:
        if (self.name is not None) != (self.type == "tool"):
            raise ValueError("name belongs to the type tool, which needs it")
        return self


class ThinkingConfig(Body):
    """Whether and how long the model thinks."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    # "omitted": the thinking block has no text.
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def check_budget(self) -> ThinkingConfig:
        if (self.budget_tokens is not None) != (self.type == "enabled"):
            raise ValueError("budget_tokens belongs to the type enabled, which needs it")
        return self


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Body):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class RequestMetadata(Body):
    user_id: str = Field(default="", max_length=512)


class PromptBody(Cached):
    """The fields of a conversation, which count_tokens and messages share."""

    model: str = Field(min_length=1)
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    system: Texts = Field(default_factory=list)
    tools: list[AnthropicTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()

    def reasoning(self) -> bool | int | str | None:
        """The `reasoning` argument of `Model.chat`."""
        effort = self.output_config.effort
        if self.thinking is None or self.thinking.type == "adaptive":
            return effort
        if self.thinking.type == "disabled":
            return False
        if effort:
            raise Problem(
                "invalid",
                "thinking.budget_tokens and output_config.effort were given: both say how much to think",
                "output_config.effort",
            )
        return self.thinking.budget_tokens

    @kept
    def turn(self) -> Turn:
        tools = [] if self.tool_choice.type == "none" else [t.function() for t in self.tools]
        return Turn(
            messages_of(self.system, self.messages),
            tools=tools or None,
            reasoning=self.reasoning(),
            call=self._call(),
            one_call=self.tool_choice.disable_parallel_tool_use,
        )

    def _call(self) -> MustCall | None:
        """The forced tool call; None where the model decides."""
        choice, names = self.tool_choice, [t.name for t in self.tools]
        twice = next((n for n, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise Problem("invalid", f"tools: {twice!r:.80} occurs twice", "tools")
        if choice.type in ("auto", "none"):
            return None
        wanted = [choice.name] if choice.name is not None else names
        if not set(wanted) <= set(names) or not wanted:
            raise Problem(
                "invalid", f"tool_choice: there is no tool {choice.name or ''!r:.80}", "tool_choice"
            )
        return MustCall(wanted, not choice.disable_parallel_tool_use and choice.type == "any")

    def spec(self) -> Spec | None:
        """The grammar of the answer."""
        formed = self.output_config.format
        return JsonSchema(formed.schema_) if formed else None


class MessagesBody(PromptBody):
    max_tokens: int = Field(ge=1, le=MOST_TOKENS)
    stop_sequences: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=64)
    ] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = body_field(OPTIONS["temperature"])
    top_p: float | None = body_field(OPTIONS["top_p"])
    top_k: int | None = body_field(replace(OPTIONS["top_k"], also={}))
    metadata: RequestMetadata = RequestMetadata()
    # No effect, and documented so.
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None

    @model_validator(mode="after")
    def check_thinking(self) -> MessagesBody:
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and budget >= self.max_tokens:
            raise ValueError(f"thinking.budget_tokens is {budget}: it must be less than max_tokens")
        return self

    def generate_kwargs(self) -> GenerateKwargs:
        return GenerateKwargs(
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences),
            user=self.metadata.user_id,
            grammar=self.spec(),
        )

    @kept
    def wanted(self) -> GenerationRequest:
        sampled = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        return GenerationRequest(self.model, self.turn, self.generate_kwargs(), sampled=sampled)
