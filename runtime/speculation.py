"""The user's options of speculative decoding. They change the speed of an answer, never its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from satchel.errors import RequestError

MOST = 64


@dataclass(frozen=True, slots=True)
class Speculation:
    """Options of speculative decoding."""

    draft_model: str | Path | None = None  # a smaller model with the same vocabulary; None: none
    lookup: bool = False  # draft what followed the same n-gram in the prompt or the answer
    draft_max: int = 16  # most draft tokens per step; 0: no drafts
    draft_min: int = 0  # shorter drafts are not tried
    past: int = 0  # tokens of earlier conversations, per salt, that lookup searches as well

    def __post_init__(self) -> None:
        if not 0 <= self.draft_max <= MOST:
            raise RequestError(f"draft_max is {self.draft_max}: it must lie between 0 and {MOST}")
        if not 0 <= self.draft_min <= self.draft_max:
            raise RequestError(
                f"draft_min is {self.draft_min}: it must lie between 0 and draft_max, {self.draft_max}"
            )
        if self.past < 0 or (self.past and not self.lookup):
            raise RequestError(f"past is {self.past}: it must be 0 or more, and needs lookup")

    @property
    def active(self) -> bool:
        return self.draft_max > 0 and (self.lookup or self.draft_model is not None)
