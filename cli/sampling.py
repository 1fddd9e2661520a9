"""Sampling options of the command line: names, defaults and meaning are llama.cpp's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from satchel.cli.groups import flag_values, flags_of, option, wrong
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.sampling.options import LETTERS, ORDER, Sampling

KNOWN = "".join(LETTERS)


@dataclass(frozen=True, slots=True)
@flags_of(Sampling)
class SamplingOptions:
    """How tokens are drawn: the flags of Sampling's fields, and options that only the command line has."""

    dry_breakers: Annotated[
        list[str] | None,
        option(
            "--dry-sequence-breaker",
            metavar="TEXT",
            help=r"Text at which a repetition ends; may be repeated; none: no text. Default: \n : \" *",
        ),
    ] = None
    samplers: Annotated[
        str, option("--samplers", env="SAMPLERS", help="Stages in the order in which they run.")
    ] = ";".join(ORDER)
    sequence: Annotated[
        str,
        option(
            "--sampler-seq",
            "--sampling-seq",
            env="SAMPLER_SEQ",
            help=f"The same by letters: {KNOWN}.",
        ),
    ] = ""
    bias: Annotated[
        list[str] | None,
        option(
            "-l",
            "--logit-bias",
            metavar="ID+N",
            help="Added to a token's logit, as in 15043+1 or 15043-inf; may be repeated.",
        ),
    ] = None

    def sampling(self) -> Sampling:
        """These options as the library has them."""
        values = flag_values(self, Sampling) | {"samplers": self._stages()}
        values["logit_bias"] = dict(bias_of(text) for text in self.bias or ())
        if self.dry_breakers:
            values["dry_breakers"] = () if self.dry_breakers == ["none"] else tuple(self.dry_breakers)
        try:
            return Sampling(**values)
        except RequestError as error:
            raise UsageError(str(error)) from None

    def _stages(self) -> tuple[str, ...]:
        if not self.sequence:
            return tuple(name.strip() for name in self.samplers.split(";") if name.strip())
        unknown = next((letter for letter in self.sequence if letter not in LETTERS), None)
        if unknown is not None:
            raise wrong("--sampler-seq", f"{unknown!r} is no sampler: there are {KNOWN}")
        return tuple(LETTERS[letter] for letter in self.sequence)


def bias_of(text: str) -> tuple[int, float]:
    """(token, amount) of ID+N or ID-N."""
    at = next((i for i, c in enumerate(text) if c in "+-" and i), len(text))
    try:
        token, amount = int(text[:at]), float(text[at:])
    except ValueError:
        raise wrong("-l", f"expected a token id and an amount, as in 15043+1, got {text!r}") from None
    return token, amount
