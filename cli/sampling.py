"""Sampling options of the command line: names, defaults and meaning are llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from satchel.cli.groups import Given, option, wrong
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.sampling.options import LETTERS, ORDER, Sampling

KNOWN = "".join(LETTERS)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling. The model has defaults of the options that the user does not give."""

    given: Annotated[Mapping[str, Any], Given(Sampling)] = field(default_factory=dict)
    dry_breakers: Annotated[
        list[str] | None,
        option(
            "--dry-sequence-breaker",
            metavar="TEXT",
            help=r"Sequence breaker of DRY; repeatable; none: no breaker. Default: \n : \" *",
        ),
    ] = None
    samplers: Annotated[
        str | None,
        option(
            "--samplers",
            env="SAMPLERS",
            help="Stages of the sampler chain, in the order in which they run.  [default: the model's, else"
            f" {';'.join(ORDER)}]",
        ),
    ] = None
    sequence: Annotated[
        str | None,
        option(
            "--sampler-seq",
            "--sampling-seq",
            env="SAMPLER_SEQ",
            help=f"The same as letters: {KNOWN}.",
        ),
    ] = None
    bias: Annotated[
        list[str] | None,
        option(
            "-l",
            "--logit-bias",
            metavar="ID+N",
            help="Addition to a token's logit, as in 15043+1 or 15043-inf; repeatable.",
        ),
    ] = None

    def values(self) -> dict[str, Any]:
        """The given options, by names of Sampling. UsageError for a value that they refuse."""
        found = dict(self.given)
        if self.dry_breakers:
            found["dry_breakers"] = () if self.dry_breakers == ["none"] else tuple(self.dry_breakers)
        if self.sequence or self.samplers is not None:
            found["samplers"] = self._stages()
        if self.bias:
            found["logit_bias"] = dict(bias_of(text) for text in self.bias)
        self.sampling(Sampling(), found)
        return found

    def sampling(self, base: Sampling, values: Mapping[str, Any] | None = None) -> Sampling:
        """The options of `base` with the given ones in their place."""
        try:
            return replace(base, **(self.values() if values is None else values))
        except RequestError as error:
            raise UsageError(str(error)) from None

    def _stages(self) -> tuple[str, ...]:
        if not self.sequence:
            return tuple(name.strip() for name in (self.samplers or "").split(";") if name.strip())
        unknown = next((letter for letter in self.sequence if letter not in LETTERS), None)
        if unknown is not None:
            raise wrong("--sampler-seq", f"expected letters of {KNOWN}, got {unknown!r}")
        return tuple(LETTERS[letter] for letter in self.sequence)


def bias_of(text: str) -> tuple[int, float]:
    """The token id and the addition of ID+N or ID-N."""
    at = next((i for i, c in enumerate(text) if c in "+-" and i), len(text))
    try:
        token, amount = int(text[:at]), float(text[at:])
    except ValueError:
        raise wrong("-l", f"expected a token id and an amount, as in 15043+1, got {text!r}") from None
    return token, amount
