"""Options of the scheduler: how many requests wait, and how long its steps may take."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.runtime.option import SERVER, check_options, documented, option_field

SMALL = 512  # tokens of a step that no time limit makes smaller


@documented
@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How many requests wait, and how they share the steps.

    step_seconds has precedence over prefill_seconds: prompts get the time that decoding leaves. Where so many
    requests decode that a step would take longer, they take turns. alone_seconds applies once the times of
    steps have been measured, and to steps of more than SMALL tokens.
    """

    queue: int = option_field(256, "Requests of a model that may wait.", "--queue", low=1, group=SERVER)
    prefill_seconds: float = option_field(
        0.0,
        "Seconds that prompts may add to a step in which others decode; 0: as long as the step takes without"
        " them, so that decoding is at most half as fast (slower where many requests begin beside few).",
        "--prefill-seconds",
        low=0,
        group=SERVER,
    )
    min_prefill_tokens: int = option_field(
        16,
        "Prompt tokens that each step computes even if that takes longer.",
        "--min-prefill-tokens",
        low=1,
        group=SERVER,
    )
    ageing: float = option_field(
        10.0,
        "Seconds of waiting that make a request more urgent by one level.",
        "--ageing",
        above=0,
        group=SERVER,
    )
    step_seconds: float = option_field(
        0.0,
        "Most seconds of a step in which a request waits for its next token; 0: no limit.",
        "--step-seconds",
        low=0,
        group=SERVER,
    )
    alone_seconds: float = option_field(
        0.0,
        "Most seconds of a step of prompts alone, for which a new request waits; 0: no limit.",
        "--alone-seconds",
        low=0,
        help="Most seconds of a step of prompts alone; 0: 0.25, or no limit where -b is given.",
        group=SERVER,
    )
    shortest: bool = option_field(
        False,
        "Of equally urgent requests, begin the one that will end soonest, by the length of its prompt and of"
        " its user's earlier answers; without, the one that came first.",
        "--shortest/--no-shortest",
        group=SERVER,
    )

    def __post_init__(self) -> None:
        check_options(self)


DEFAULT_LIMITS = SchedulerLimits()
