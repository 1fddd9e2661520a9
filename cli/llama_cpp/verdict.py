"""A row of the table of llama.cpp's flags, and how its verdicts are written.

A flag means the same here, is accepted with a note that says why it has no effect, or is refused with the
reason and what to use instead.
"""

from __future__ import annotations

from dataclasses import dataclass

SAME, NOTE, REFUSED = "same", "note", "refused"
SERVE = "serve"


@dataclass(frozen=True, slots=True)
class FlagVerdict:
    """What a flag does in one program. text: a difference, the reason of a note or of a refusal."""

    kind: str = SAME
    text: str = ""
    runs: tuple[str, ...] = ()  # the command line of satchel that the flag stands for


@dataclass(frozen=True, slots=True)
class Row:
    """A flag with its spellings.

    value: an example of what follows the flag, two words where it takes two values, in brackets where it may
    be left out; "": the flag takes no value.
    cli, server: the verdicts for `satchel chat` and `satchel run`, and for `satchel serve`; None: that
    program of llama.cpp lacks the flag.
    """

    flags: tuple[str, ...]
    value: str
    cli: FlagVerdict | None
    server: FlagVerdict | None

    @property
    def is_optional(self) -> bool:
        return self.value.startswith("[")

    @property
    def values(self) -> list[str]:
        """The example's values."""
        return self.value.strip("[]").split(" ") if self.value else []


def note(text: str) -> FlagVerdict:
    return FlagVerdict(NOTE, text)


def refused(text: str) -> FlagVerdict:
    return FlagVerdict(REFUSED, text)


def runs(*command: str) -> FlagVerdict:
    return FlagVerdict(SAME, f"runs `satchel {' '.join(command)}`", command)


def same(text: str = "") -> FlagVerdict:
    return FlagVerdict(SAME, text)


def row(
    flags: str,
    value: str = "",
    both: FlagVerdict | None = None,
    *,
    cli: FlagVerdict | None = None,
    server: FlagVerdict | None = None,
) -> Row:
    """A row. both: the verdict for both programs; without any verdict, both mean the same."""
    if both is None and cli is None and server is None:
        both = same()
    return Row(tuple(flags.split()), value, cli or both, server or both)
