"""What a scheduler may take in, and what it aims at."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.quant import RequestError

SMALL = 512  # tokens of a step that need no aim


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """queue: requests that may wait. ageing: seconds of waiting that make a request more urgent by one level.

    prefill_seconds: what prompts may add to a step in which others decode; 0: as much as the step takes
    without, so that nobody waits more than twice as long (more where many begin beside few).
    min_prefill_tokens: prompt tokens that go into a step even so, for prompts must get on.

    step_seconds: how long a step may take where somebody waits for its next token; 0: no aim. It stands above
    prefill_seconds: prompts get what it leaves, and where so many decode that a step takes longer, they take
    turns.

    alone_seconds: how long a step may take in which nobody decodes; 0: no aim. Whoever comes waits for it. It
    holds once the times of steps are known, and for steps of more than SMALL tokens.

    shortest: of requests that are equally urgent, those go first that will be done soonest, by the length of
    their prompt and of the answers that their user had; else who came first.
    """

    queue: int = 256
    prefill_seconds: float = 0.0
    min_prefill_tokens: int = 16
    ageing: float = 10.0
    step_seconds: float = 0.0
    alone_seconds: float = 0.0
    shortest: bool = False

    def __post_init__(self) -> None:
        for name in ("queue", "min_prefill_tokens"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be 1 or more")
        if not self.ageing > 0 or not min(self.prefill_seconds, self.step_seconds, self.alone_seconds) >= 0:
            raise RequestError(f"ageing must be more than 0 seconds, the others 0 or more; got {self}")


USUAL = SchedulerLimits()
