"""Options of `satchel serve` that its models' requests have where they set none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from satchel.cli.grammars import GrammarOptions
from satchel.cli.groups import Given, option, wrong
from satchel.cli.options import typed
from satchel.cli.replies import ReplyOptions
from satchel.cli.sampling import SamplingOptions
from satchel.runtime.api.generate_options import GenerateOptions


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Where an answer ends."""

    given: Annotated[Mapping[str, Any], Given(GenerateOptions)] = field(default_factory=dict)
    reverse: Annotated[
        list[str] | None,
        option(
            "-r", "--reverse-prompt", metavar="TEXT", help="Stop text of requests without one; repeatable."
        ),
    ] = None

    def __post_init__(self) -> None:
        if any(not text for text in self.reverse or ()):
            raise wrong("-r", "an empty text would end every answer at once")

    def values(self) -> dict[str, Any]:
        """The given options, by names of GenerateOptions."""
        stop = {"stop": tuple(typed(text, "-r", True) for text in self.reverse)} if self.reverse else {}
        return {**self.given, **stop}


def request_defaults(
    sampling: SamplingOptions, answer: AnswerOptions, reply: ReplyOptions, grammar: GrammarOptions
) -> dict[str, Any] | None:
    """The load option `defaults` of what the user gave; None where that is nothing."""
    found = {**sampling.values(), **answer.values(), **reply.defaults()}
    if (spec := grammar.spec()) is not None:
        reply.check(raw=False, structured=True)
        found["grammar"] = spec
    return found or None
