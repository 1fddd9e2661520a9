"""Content blocks of Anthropic messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from satchel.server.fields import Body
from satchel.server.flavour import JsonObject

Name = Annotated[str, Field(min_length=1, max_length=256)]


class Cached(Body):
    """A block that may carry `cache_control`, which has no effect: prefix caching is automatic."""

    cache_control: Any = None


class TextBlock(Cached):
    type: Literal["text"]
    text: str


class ThinkingBlock(Body):
    """An earlier turn's thinking. The signature is not checked: thinking is read like any other text."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedBlock(Body):
    """Encrypted thinking, which only Anthropic's server can read; it has no effect."""

    type: Literal["redacted_thinking"]
    data: str = ""


class ToolUseBlock(Cached):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: JsonObject


def _one_text(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _known(*types: str) -> BeforeValidator:
    """A validator that refuses a block of another type with an error that names the supported ones."""

    def check(value: Any) -> Any:
        given = value.get("type") if isinstance(value, dict) else None
        if isinstance(given, str) and given not in types:
            raise PydanticCustomError(
                "unsupported_block",
                "{given} blocks are not supported here: expected one of {types}",
                {"given": f"{given:.60}", "types": ", ".join(types)},
            )
        return value

    return BeforeValidator(check)


Texts = Annotated[list[Annotated[TextBlock, _known("text")]], BeforeValidator(_one_text)]


class ToolResultBlock(Cached):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Texts = Field(default_factory=list)
    is_error: bool = False


Block = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
Content = Annotated[
    list[Annotated[Block, Field(discriminator="type"), _known(*BLOCKS)]], BeforeValidator(_one_text)
]
