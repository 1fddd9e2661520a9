"""Chat answers told apart: thinking, text and tool calls, whatever way a model's template writes them.

`detect` finds a template's Style, a ChatParser gives events while the answer streams, `fit` checks what
goes in.
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
