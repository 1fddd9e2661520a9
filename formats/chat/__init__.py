"""Parses chat answers into reasoning, content and tool calls, in the format that a model's template uses.

`detect` finds a template's Style, a ChatParser yields events while the answer streams, and `fit` checks the
conversation that goes into the prompt.
"""

from satchel.formats.chat.conversation import continued, fit, parted
from satchel.formats.chat.detect import detect
from satchel.formats.chat.events import (
    CallArguments,
    CallBegin,
    CallBroken,
    CallEnd,
    Collected,
    Content,
    Event,
    Note,
    Reasoning,
    ToolCall,
)
from satchel.formats.chat.parser import ChatParser, Hold
from satchel.formats.chat.style import Style
from satchel.formats.chat.tokens import TokenFeed, guard_of, marker_ids, special_texts

__all__ = [
    "CallArguments",
    "CallBegin",
    "CallBroken",
    "CallEnd",
    "ChatParser",
    "Collected",
    "Content",
    "Event",
    "Hold",
    "Note",
    "Reasoning",
    "Style",
    "TokenFeed",
    "ToolCall",
    "continued",
    "detect",
    "fit",
    "guard_of",
    "marker_ids",
    "parted",
    "special_texts",
]
