"""Options of speculative decoding. They change the speed of an answer, never its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError
from satchel.runtime.option import check_options, documented, option_field


@documented
@dataclass(frozen=True, slots=True)
class Speculation:
    """How tokens are drafted."""

    draft_model: str | Path | None = option_field(
        None, "A smaller model of the same vocabulary that drafts tokens; None: none."
    )
    lookup: bool = option_field(
        False,
        "Draft what followed the same n-gram in the prompt or the answer: for summaries and edits.",
        "--lookup/--no-lookup",
    )
    draft_max: int = option_field(
        16,
        "Most draft tokens per step, fewer where that is faster; 0: none.",
        "--draft-max",
        "--draft",
        "--draft-n",
        "--spec-draft-n-max",
        low=0,
        high=64,
    )
    draft_min: int = option_field(
        0,
        "Fewest draft tokens that are verified.",
        "--draft-min",
        "--draft-n-min",
        "--spec-draft-n-min",
        low=0,
    )
    past: int = option_field(
        0, "Tokens of earlier conversations of the same salt that lookup searches too.", low=0
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.draft_min > self.draft_max:
            raise RequestError(
                f"draft_min is {self.draft_min}: expected draft_max, {self.draft_max}, at most"
            )
        if self.past and not self.lookup:
            raise RequestError(f"past is {self.past}: expected lookup beside it")

    @property
    def active(self) -> bool:
        """Whether tokens are drafted at all."""
        return self.draft_max > 0 and (self.lookup or self.draft_model is not None)
