"""Limits and targets of the scheduler, as options of a load."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.runtime.load_option import SERVER, check_options, documented, load_option

SMALL = 512  # steps of at most so many tokens need no time limit


@documented
@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How many requests may wait, and how the scheduler divides a step among prompts and decoding.

    step_seconds wins over prefill_seconds: prompts get the time that it leaves, and where so many requests
    decode that a step takes longer, they take turns. alone_seconds applies once step times are known, to
    steps of more than SMALL tokens.
    """

    queue: int = load_option(
        256,
        doc="Requests that may wait.",
        least=1,
        flags=("--queue",),
        env="QUEUE",
        help="Requests of a model that may wait.",
        group=SERVER,
    )
    prefill_seconds: float = load_option(
        0.0,
        doc="Seconds that prompts may add to a step in which others decode; 0: as much as the step takes"
        " without them, so that a step at most doubles (more where many requests begin beside few).",
        least=0,
        flags=("--prefill-seconds",),
        env="PREFILL_SECONDS",
        help="Seconds that prompts may add to a decoding step; 0: as long as the step takes without them.",
        group=SERVER,
    )
    min_prefill_tokens: int = load_option(
        16,
        doc="Prompt tokens that a step takes in any case, so that prompts progress.",
        least=1,
        flags=("--min-prefill-tokens",),
        env="MIN_PREFILL_TOKENS",
        help="Prompt tokens that a step takes in any case.",
        group=SERVER,
    )
    ageing: float = load_option(
        10.0,
        doc="Seconds of waiting that raise a request's priority by one level.",
        above=0,
        flags=("--ageing",),
        env="AGEING",
        group=SERVER,
    )
    step_seconds: float = load_option(
        0.0,
        doc="Target seconds of a step in which a request decodes; 0: no target.",
        least=0,
        flags=("--step-seconds",),
        env="STEP_SECONDS",
        group=SERVER,
    )
    alone_seconds: float = load_option(
        0.0,
        doc="Target seconds of a step of prompts alone, for which a new request may wait; 0: no target.",
        least=0,
        flags=("--alone-seconds",),
        env="ALONE_SECONDS",
        help="Target seconds of a step of prompts alone; 0: 0.25, or none where -b is given.",
        group=SERVER,
    )
    shortest: bool = load_option(
        False,
        doc="Among equally urgent requests, the shortest first, by the length of the prompt and of the user's"
        " earlier answers; otherwise first come, first served.",
        flags=("--shortest/--no-shortest",),
        env="SHORTEST",
        help="Among equally urgent requests, run the shortest first.",
        group=SERVER,
    )

    def __post_init__(self) -> None:
        check_options(self)


USUAL = SchedulerLimits()
