"""What a user asks of speculation. It changes how fast an answer comes, never the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from satchel.quant import RequestError

MOST = 64


@dataclass(frozen=True, slots=True)
class Speculation:
    """draft_model: a smaller model of the same vocabulary; None: none. lookup: draft what followed the same
    n-gram in the prompt or the answer. draft_max: tokens drafted at once; 0: none ever. draft_min: fewer
    are not tried. past: tokens of earlier conversations, for each salt, in which lookup looks too.
    """

    draft_model: str | Path | None = None
    lookup: bool = False
    draft_max: int = 16
    draft_min: int = 0
    past: int = 0

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
