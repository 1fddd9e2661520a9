"""Options of speculative decoding: llama.cpp's names, current and former. They change the speed of an answer,
never its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.cli.model_argument import model_file

if TYPE_CHECKING:
    from satchel.runtime.api.reply import Stats
    from satchel.runtime.speculative import Speculation

MOST, LARGEST = 16, 64


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """The source of draft tokens, and their number."""

    draft_model: Annotated[
        Path | None,
        option(
            "-md",
            "--draft-model",
            "--model-draft",
            env="MODEL_DRAFT",
            metavar="MODEL",
            parser=model_file,
            help="Draft model for speculative decoding: a smaller one of the same vocabulary.",
        ),
    ] = None
    lookup: Annotated[
        bool,
        option(
            "--lookup/--no-lookup",
            env="LOOKUP",
            help="Speculative decoding by n-gram lookup in the text so far: for summaries and edits.",
        ),
    ] = False
    draft_max: Annotated[
        int | None,
        option(
            "--draft-max",
            "--draft",
            "--draft-n",
            "--spec-draft-n-max",
            env="DRAFT_MAX",
            help=f"Most tokens drafted at once, fewer where that is faster; default {MOST}.",
        ),
    ] = None
    draft_min: Annotated[
        int | None,
        option(
            "--draft-min",
            "--draft-n-min",
            "--spec-draft-n-min",
            env="DRAFT_MIN",
            help="Fewer tokens than this are not tried; default 0.",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, value in (("--draft-max", self.draft_max), ("--draft-min", self.draft_min)):
            if value is not None and not (self.lookup or self.draft_model):
                raise wrong(name, "nothing drafts tokens: give --lookup or --draft-model FILE as well")
        most = MOST if self.draft_max is None else self.draft_max
        if not 0 <= most <= LARGEST:
            raise wrong("--draft-max", f"{most} tokens; it must lie between 0 and {LARGEST}")
        if self.draft_min is not None and not 0 <= self.draft_min <= most:
            raise wrong("--draft-min", f"{self.draft_min} tokens; it must lie between 0 and {most}")

    def speculation(self) -> Speculation | None:
        """The library's Speculation with these options; None without speculative decoding."""
        if not (self.lookup or self.draft_model):
            return None
        from satchel.runtime.speculative import Speculation

        most = MOST if self.draft_max is None else self.draft_max
        return Speculation(self.draft_model, self.lookup, most, self.draft_min or 0)


def accepted(stats: Stats) -> str:
    """The share of accepted draft tokens, for the status line; "" without drafts."""
    if not stats.drafted:
        return ""
    return f"{stats.accepted} of {stats.drafted} drafted tokens accepted"
