"""The style of a model: its reasoning markers and its tool-call format.

It is detected once per template (detect.py), and used by parsers, prefill and reasoning budgets.
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
    """How a model marks its reasoning and writes tool calls."""

    family: str = ""  # name of the tool-call format; "": calls stay text
    open: str = PAIRS[0][0]  # marker before reasoning
    close: str = PAIRS[0][1]  # marker after reasoning
    thinks: bool = False  # the template is for a reasoning model
    lead: str = "\n"  # white space after `open`
    between: str = "\n"  # white space before `close`
    tail: str = "\n\n"  # white space after `close`
    switches: tuple[str, ...] = ()  # template variables that turn reasoning on and off
    efforts: bool = False  # the template reads reasoning_effort
    begin: str = ""  # the family's marker that the template writes before calls, or its `tells` in them
    spoken: bool = False  # the prompt has earlier calls as `spoken` JSON, so answers may have that form too

    @property
    def calls(self) -> Family | None:
        return families()[self.family] if self.family else None

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker of the parser that may be a token."""
        return (self.open, self.close, *(self.calls.markers if self.calls else ()))

    def prefill(self, reasoning: str | None, content: str, opened: bool) -> str:
        """The text after the generation prompt for an answer that continues these texts.

        reasoning: None for none, "" for empty reasoning. opened: the prompt already opens the reasoning.
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
