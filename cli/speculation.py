"""Options of speculative decoding, with llama.cpp's names, current and former."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.cli.model_argument import model_file
from satchel.runtime.speculation import Speculation

if TYPE_CHECKING:
    from satchel.runtime.api.reply import Stats


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """The source of draft tokens, and their number."""

    draft_model: Annotated[
        Path | None,
        option(
            "-md",
            "--draft-model",
            "--model-draft",
            "--spec-draft-model",
            env="MODEL_DRAFT",
            metavar="MODEL",
            parser=model_file,
            help="Draft model for speculative decoding: a smaller one of the same vocabulary.",
        ),
    ] = None
    options: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        usual = Speculation()
        for name in ("draft_max", "draft_min"):
            if getattr(self.options, name) != getattr(usual, name) and self.speculation() is None:
                flag = f"--{name.replace('_', '-')}"
                raise wrong(flag, "expected --lookup or --draft-model FILE beside it, which draft tokens")

    def speculation(self) -> Speculation | None:
        """The library's options; None without a source of draft tokens."""
        if not (self.options.lookup or self.draft_model):
            return None
        return replace(self.options, draft_model=self.draft_model)


def accepted(stats: Stats) -> str:
    """The share of draft tokens that were accepted, for the status line; "" without any."""
    if not stats.drafted:
        return ""
    return f"{stats.accepted} of {stats.drafted} drafted tokens accepted"
