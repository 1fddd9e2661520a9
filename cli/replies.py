"""Options of an answer beside its sampling: reasoning, context overflow, usage report, number of completions.

An invalid combination is a usage error, reported before a file is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from satchel.cli.groups import option, wrong
from satchel.runtime.sampling.logprobs import TOP
from satchel.runtime.words import MAX_COMPLETIONS, POLICIES

if TYPE_CHECKING:
    from satchel.runtime.sampling import Sampling

SWITCHES = {"auto": None, "on": True, "off": False}
TOGETHER = 8


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """Reasoning, context overflow and usage report."""

    reasoning: Annotated[
        str,
        option(
            "-rea",
            "--reasoning",
            env="REASONING",
            metavar="HOW",
            help="auto, on, off, an effort such as low, or the most tokens of thinking.",
        ),
    ] = "auto"
    effort: Annotated[
        str | None,
        option("--reasoning-effort", metavar="WORD", help="The same as --reasoning WORD."),
    ] = None
    budget: Annotated[
        int | None,
        option(
            "--reasoning-budget",
            env="THINK_BUDGET",
            min=-1,
            help="The same as --reasoning N; -1: no limit.",
        ),
    ] = None
    budget_message: Annotated[
        str | None,
        option(
            "--reasoning-budget-message",
            env="THINK_BUDGET_MESSAGE",
            metavar="TEXT",
            help="Text that the model reads when its thinking is spent.",
        ),
    ] = None
    on_overflow: Annotated[
        str | None,
        option(
            "--on-overflow",
            env="ON_OVERFLOW",
            metavar="POLICY",
            help="In a full context: error, shift (drop the oldest tokens), truncate-middle (of a prompt);"
            " default: shift in a conversation, error for raw text and structured output.",
        ),
    ] = None
    shift: Annotated[
        bool | None,
        option(
            "--context-shift/--no-context-shift", env="CONTEXT_SHIFT", help="The same as --on-overflow shift."
        ),
    ] = None
    report: Annotated[
        bool, option("--report", help="Print the usage report: cache, drafts, devices, bytes read.")
    ] = False

    def __post_init__(self) -> None:
        given = [
            name
            for name, is_given in (
                ("--reasoning", self.reasoning != "auto"),
                ("--reasoning-effort", self.effort is not None),
                ("--reasoning-budget", self.budget is not None),
            )
            if is_given
        ]
        if len(given) > 1:
            raise wrong(given[1], f"{given[0]} is given already, and both set the thinking")
        if not self.reasoning or not (self.reasoning.isalpha() or self.reasoning.isdecimal()):
            expected = "expected auto, on, off, a word or a number of tokens"
            raise wrong("--reasoning", f"{expected}, got {self.reasoning!r}")
        if self.effort == "":
            raise wrong("--reasoning-effort", "expected a word such as low")
        if self.on_overflow is not None and self.on_overflow not in POLICIES:
            raise wrong("--on-overflow", f"expected one of {', '.join(POLICIES)}, got {self.on_overflow}")
        if self.on_overflow is not None and self.shift is not None:
            raise wrong("--context-shift", "--on-overflow is given already")

    def check(self, *, raw: bool, structured: bool) -> None:
        """Raises a usage error for options that raw text or structured output does not support."""
        if raw and self.thinking is not None:
            raise wrong("--reasoning", "raw completion (-no-cnv) does not separate thinking")
        if structured and self.overflow == "shift":
            raise wrong("--on-overflow", "structured output cannot shift: its grammar would begin anew")

    @property
    def thinking(self) -> bool | int | str | None:
        """The `reasoning` argument of Model.chat; None: the model's default."""
        if self.effort is not None:
            return self.effort
        if self.budget is not None:
            return None if self.budget < 0 else self.budget
        if self.reasoning in SWITCHES:
            return SWITCHES[self.reasoning]
        return int(self.reasoning) if self.reasoning.isdecimal() else self.reasoning

    @property
    def overflow(self) -> str:
        """The value of GenerateOptions.on_overflow."""
        return self.on_overflow or ("shift" if self.shift else "error")

    @property
    def conversation_overflow(self) -> str:
        """`overflow` of a conversation, which shifts unless the user chooses otherwise."""
        return "shift" if self.on_overflow is None and self.shift is None else self.overflow

    def loaded(self) -> dict[str, Any] | None:
        """The load option `defaults`: what requests say of thinking besides `thinking`."""
        return None if self.budget_message is None else {"reasoning_end": self.budget_message}

    def defaults(self) -> dict[str, Any]:
        """The given options as defaults of a server's requests."""
        found = dict(self.loaded() or {})
        if self.thinking is not None:
            found["reasoning"] = self.thinking
        if self.on_overflow is not None or self.shift is not None:
            found["on_overflow"] = self.overflow
        return found


@dataclass(frozen=True, slots=True)
class CountOptions:
    """Several completions, and their log-probabilities."""

    n_completions: Annotated[
        int,
        option(
            "--n-completions",
            min=1,
            max=MAX_COMPLETIONS,
            help="Completions of the prompt, which is prefilled once.",
        ),
    ] = 1
    best_of: Annotated[
        int | None,
        option(
            "--best-of",
            min=1,
            max=MAX_COMPLETIONS,
            help="Sample N completions, print the --n-completions likeliest.",
        ),
    ] = None
    parallel: Annotated[
        int | None,
        option(
            "-np",
            "--parallel",
            env="N_PARALLEL",
            min=1,
            help=f"Completions that run at once; default: all, at most {TOGETHER}.",
        ),
    ] = None
    logprobs: Annotated[
        int,
        option(
            "--logprobs",
            min=-1,
            max=TOP,
            help="With --json: each token's log probability, and the N likeliest beside it; -1: none.",
        ),
    ] = -1

    def __post_init__(self) -> None:
        if self.best_of is not None and self.best_of < self.n_completions:
            raise wrong("--best-of", f"{self.best_of} is less than --n-completions, {self.n_completions}")

    @property
    def made(self) -> int:
        return self.n_completions if self.best_of is None else self.best_of

    @property
    def slots(self) -> int:
        """The number of engine slots that the completions need."""
        return min(self.made, self.parallel or TOGETHER)

    def check(self, sampling: Sampling, as_json: bool) -> None:
        """Raises a usage error where the other options leave nothing to print or to choose from."""
        if self.logprobs >= 0 and not as_json:
            raise wrong("--logprobs", "log probabilities are printed with --json: give that as well")
        if self.made > 1 and sampling.temperature == 0:
            raise wrong("--n-completions", "the temperature is 0, so all completions would be equal")
