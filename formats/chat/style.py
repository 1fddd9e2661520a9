"""A model's style: how it marks its thinking and how it writes tool calls.

A value, found out once for each template (detect.py) and used by every parser, prefill and budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from satchel.formats.chat.family import Family, families

# Thinking is marked so by the models that are known; the first pair stands in where a template tells nothing.
PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
    ("<reasoning>", "</reasoning>"),
    ("<|thought_start|>", "<|thought_end|>"),
)


@dataclass(frozen=True, slots=True)
class Style:
    """family: the name of the calls' grammar, "" where calls stay text; begin: which of its markers the
    template writes before calls, or which of its `tells` in them, "" for none. open, close: around thinking.

    thinks: the template is made for a model that thinks. lead, between, tail: what the template writes
    behind `open`, before `close` and behind it. switches: template variables that turn thinking on and off.
    efforts: the template reads reasoning_effort. spoken: earlier calls stand in the prompt as `spoken` writes
    them, so an answer may have that form as well.
    """

    family: str = ""
    open: str = PAIRS[0][0]
    close: str = PAIRS[0][1]
    thinks: bool = False
    lead: str = "\n"
    between: str = "\n"
    tail: str = "\n\n"
    switches: tuple[str, ...] = ()
    efforts: bool = False
    begin: str = ""
    spoken: bool = False

    @property
    def calls(self) -> Family | None:
        return families()[self.family] if self.family else None

    @property
    def markers(self) -> tuple[str, ...]:
        """Every text that means something to the parser, where it is a token."""
        return (self.open, self.close, *(self.calls.markers if self.calls else ()))

    def prefill(self, reasoning: str | None, content: str, opened: bool) -> str:
        """What follows the generation prompt where the answer goes on from these texts.

        opened: that prompt opened the thinking already. reasoning None: there was none, "": an empty one.
        """
        family = self.calls
        if family and family.prefill:
            return family.prefill(reasoning, content)
        if reasoning is None and not opened:
            return content
        begun = "" if opened else self.open + self.lead
        if not content and reasoning:
            return begun + reasoning
        return f"{begun}{reasoning or ''}{self.between}{self.close}{self.tail}{content}"
