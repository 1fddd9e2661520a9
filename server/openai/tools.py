"""The tools of a request, and its tool_choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from satchel.runtime.grammar.tools import MAX_TOOLS
from satchel.server.fields import Body
from satchel.server.generation import MustCall
from satchel.server.problem import Problem

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}\z")]


class Function(Body):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(Body):
    type: Literal["function"] = "function"
    function: Function


class Named(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: Named


class AllowedTools(Body):
    """A subset of the tools, of which the model may ("auto") or must ("required") call one."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Tools = Annotated[list[ToolField], Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


def named_once(tools: Sequence[ToolField]) -> None:
    names = [tool.function.name for tool in tools]
    twice = next((i for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise Problem(
            "invalid", f"tools[{twice}]: {names[twice]!r} occurs twice", f"tools[{twice}].function.name"
        )


def offered(tools: Sequence[ToolField], choice: ToolChoice | None) -> list[dict[str, Any]] | None:
    """The tools that go into the prompt."""
    if choice == "none" or not tools:
        return None
    named_once(tools)
    offered = [tool.model_dump(exclude_none=True) for tool in tools]
    if isinstance(choice, AllowedChoice):
        names = {tool.function.name for tool in choice.allowed_tools.tools}
        missing = names - {tool.function.name for tool in tools}
        if missing:
            raise Problem("invalid", f"tool_choice: no tool is named {min(missing)!r:.80}", "tool_choice")
        return [tool for tool in offered if tool["function"]["name"] in names]
    return offered


def must_call(tools: Sequence[ToolField], choice: ToolChoice | None, parallel: bool) -> MustCall | None:
    """The forced tool call; None where the model decides."""
    forced = choice == "required" or isinstance(choice, NamedTool)
    if choice not in (None, "none", "auto") and not tools:
        raise Problem("invalid", "tool_choice needs tools", "tool_choice")
    if isinstance(choice, NamedTool):
        return MustCall((choice.function.name,))
    if isinstance(choice, AllowedChoice) and choice.allowed_tools.mode == "required":
        return MustCall([tool.function.name for tool in choice.allowed_tools.tools], parallel)
    return MustCall([tool.function.name for tool in tools], parallel) if forced else None
