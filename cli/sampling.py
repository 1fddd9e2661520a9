"""Sampling options: names, defaults and meaning are llama.cpp's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from satchel.cli.groups import option, wrong
from satchel.cli.main import UsageError
from satchel.quant.errors import RequestError

if TYPE_CHECKING:
    from satchel.runtime.sampling import Sampling

ORDER = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
LETTERS = "edskypmxt"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling options."""

    seed: Annotated[
        int, option("-s", "--seed", env="SEED", help="Seed of the draws; -1: another one each time.")
    ] = -1
    temperature: Annotated[
        float, option("--temp", "--temperature", env="TEMPERATURE", help="0: always the likeliest token.")
    ] = 0.8
    dynatemp_range: Annotated[
        float,
        option(
            "--dynatemp-range",
            env="DYNATEMP_RANGE",
            help="The temperature goes so far up and down with how sure the model is; 0: not at all.",
        ),
    ] = 0.0
    dynatemp_exponent: Annotated[
        float, option("--dynatemp-exp", env="DYNATEMP_EXP", help="Exponent of --dynatemp-range.")
    ] = 1.0
    top_k: Annotated[int, option("--top-k", env="TOP_K", help="Keep the k likeliest tokens; 0: all.")] = 40
    top_p: Annotated[
        float, option("--top-p", env="TOP_P", help="Keep tokens up to this probability; 1: all.")
    ] = 0.95
    min_p: Annotated[
        float, option("--min-p", env="MIN_P", help="Drop tokens below this share of the likeliest; 0: none.")
    ] = 0.05
    typical_p: Annotated[
        float,
        option("--typical", "--typical-p", env="TYPICAL_P", help="Keep the most typical tokens; 1: all."),
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        option(
            "--top-nsigma",
            "--top-n-sigma",
            env="TOP_N_SIGMA",
            help="Keep logits within n standard deviations of the best; -1: all.",
        ),
    ] = -1.0
    xtc_probability: Annotated[
        float,
        option("--xtc-probability", env="XTC_PROBABILITY", help="How often likely tokens go; 0: never."),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        option("--xtc-threshold", env="XTC_THRESHOLD", help="From which probability on."),
    ] = 0.1
    repeat_last_n: Annotated[
        int,
        option(
            "--repeat-last-n", env="REPEAT_LAST_N", help="Tokens that penalties look at; -1: the context."
        ),
    ] = 64
    repeat_penalty: Annotated[
        float,
        option(
            "--repeat-penalty", env="REPEAT_PENALTY", help="Divides the logits of repeated tokens; 1: off."
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        option("--presence-penalty", env="PRESENCE_PENALTY", help="Taken off a token that occurred; 0: off."),
    ] = 0.0
    frequency_penalty: Annotated[
        float, option("--frequency-penalty", env="FREQUENCY_PENALTY", help="The same for each time; 0: off.")
    ] = 0.0
    dry_multiplier: Annotated[
        float,
        option("--dry-multiplier", env="DRY_MULTIPLIER", help="Taken off what repeats; 0: off."),
    ] = 0.0
    dry_base: Annotated[
        float,
        option("--dry-base", env="DRY_BASE", help="By which it grows with each token."),
    ] = 1.75
    dry_allowed_length: Annotated[
        int, option("--dry-allowed-length", env="DRY_ALLOWED_LENGTH", help="Tokens that may be repeated.")
    ] = 2
    dry_last_n: Annotated[
        int,
        option("--dry-penalty-last-n", env="DRY_PENALTY_LAST_N", help="Tokens it looks at; -1: the context."),
    ] = -1
    dry_breakers: Annotated[
        list[str] | None,
        option(
            "--dry-sequence-breaker",
            metavar="TEXT",
            help=r"Text at which a repetition ends; may be repeated; none: no text. Default: \n : \" *",
        ),
    ] = None
    mirostat: Annotated[
        int,
        option("--mirostat", env="MIROSTAT", help="1 or 2: hold the entropy of tokens at a target; 0: off."),
    ] = 0
    mirostat_eta: Annotated[
        float, option("--mirostat-lr", env="MIROSTAT_LR", help="How fast it corrects itself.")
    ] = 0.1
    mirostat_tau: Annotated[
        float, option("--mirostat-ent", env="MIROSTAT_ENT", help="Target entropy (tau), in bits.")
    ] = 5.0
    samplers: Annotated[
        str, option("--samplers", env="SAMPLERS", help="Stages in the order in which they run.")
    ] = ORDER
    sequence: Annotated[
        str,
        option("--sampler-seq", "--sampling-seq", env="SAMPLER_SEQ", help=f"The same by letters: {LETTERS}."),
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
        """The library's Sampling with these options."""
        from satchel.runtime.sampling import NAMES, Sampling

        values = {name: getattr(self, name) for name in NAMES if hasattr(self, name)}
        values |= {"seed": None if self.seed == -1 else self.seed, "samplers": self._stages()}
        values["logit_bias"] = dict(bias_of(text) for text in self.bias or ())
        if self.dry_breakers:
            values["dry_breakers"] = () if self.dry_breakers == ["none"] else tuple(self.dry_breakers)
        try:
            return Sampling(**values)
        except RequestError as error:
            raise UsageError(str(error)) from None

    def _stages(self) -> tuple[str, ...]:
        from satchel.runtime.sampling import LETTERS as STAGES

        if not self.sequence:
            return tuple(name.strip() for name in self.samplers.split(";") if name.strip())
        unknown = next((letter for letter in self.sequence if letter not in STAGES), None)
        if unknown is not None:
            raise wrong("--sampler-seq", f"{unknown!r} is no sampler: there are {LETTERS}")
        return tuple(STAGES[letter] for letter in self.sequence)


def bias_of(text: str) -> tuple[int, float]:
    """Parses ID+N or ID-N to (token, amount)."""
    at = next((i for i, c in enumerate(text) if c in "+-" and i), len(text))
    try:
        token, amount = int(text[:at]), float(text[at:])
    except ValueError:
        raise wrong("-l", f"expected a token id and an amount, as in 15043+1, got {text!r}") from None
    return token, amount
