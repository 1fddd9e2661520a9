"""Options of speculative decoding, with llama.cpp's names, current and former."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.cli.model_argument import model_file
from satchel.cli.options import hub_name, pulled
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
    draft_hub: Annotated[
        str | None,
        option(
            "-hfd",
            "-hfrd",
            "--hf-repo-draft",
            "--spec-draft-hf",
            env="SPEC_DRAFT_HF_REPO",
            metavar="USER/REPO[:QUANT]",
            help="Draft model of the Hugging Face Hub, as -hf.",
        ),
    ] = None
    options: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        usual = Speculation()
        if self.draft_model is not None and self.draft_hub is not None:
            raise wrong("-hfd", "-md names the draft model already")
        for name in ("draft_max", "draft_min"):
            if getattr(self.options, name) != getattr(usual, name) and not self._drafts:
                flag = f"--{name.replace('_', '-')}"
                raise wrong(flag, "expected --lookup or --draft-model FILE beside it, which draft tokens")

    @property
    def _drafts(self) -> bool:
        """Whether there is a source of draft tokens."""
        return bool(self.options.lookup or self.draft_model or self.draft_hub)

    def speculation(self) -> Speculation | None:
        """The library's options; None without a source of draft tokens. A draft model of the Hub is pulled
        unless the store has it.
        """
        if not self._drafts:
            return None
        hub = hub_name(self.draft_hub) if self.draft_hub else ""
        return replace(self.options, draft_model=pulled(hub) if hub else self.draft_model)


def accepted(stats: Stats) -> str:
    """The share of draft tokens that were accepted, for the status line; "" without any."""
    if not stats.drafted:
        return ""
    return f"{stats.accepted} of {stats.drafted} drafted tokens accepted"
