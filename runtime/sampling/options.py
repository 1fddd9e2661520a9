"""Sampling options and the sampler chain: names, defaults and order are llama.cpp's.

Each option is one field of Sampling (runtime/option.py), from which its flag, its field in request bodies,
its range check and its setting in the chat are derived. Each stage of the chain is one entry of SAMPLERS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from satchel.errors import RequestError
from satchel.runtime.graph import Array
from satchel.runtime.option import check_options, documented, option_field, options_of, texts_of
from satchel.runtime.sampling.exact import MASK

BREAKERS = ("\n", ":", '"', "*")
INT_MAX = 2**31 - 1
MOST_BIASES = 512  # tokens of logit_bias; a row has room for as many DRY penalties beside them


@dataclass(frozen=True, slots=True)
class Sampler:
    """A stage of the sampler chain."""

    letter: str  # its name in --sampler-seq
    is_on: Callable[[Sampling], bool]  # whether the stage has an effect with these options
    numbers: tuple[str, ...] = ()  # the options that the stage computes with, at most four (hal_stage)
    aliases: tuple[str, ...] = ()
    edits: bool = False  # whether the stage changes logits of single tokens
    drops_best: bool = False  # whether the stage may drop the best candidate


def _penalizes(s: Sampling) -> bool:
    return (s.repeat_penalty, s.presence_penalty, s.frequency_penalty) != (1, 0, 0) and s.repeat_last_n != 0


PENALTIES = ("repeat_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n")

# Stages in their default order, as in SAMPLING_STAGES of cext/kernels/sample_stages.k.h. Token penalties of
# "dry" are computed on the host.
SAMPLERS: Mapping[str, Sampler] = {
    "penalties": Sampler("e", _penalizes, PENALTIES, edits=True),
    "dry": Sampler("d", lambda s: s.dry_multiplier > 0 and s.dry_base >= 1 and s.dry_last_n != 0, edits=True),
    "top_n_sigma": Sampler(
        "s", lambda s: s.top_n_sigma >= 0, ("top_n_sigma",), ("top-n-sigma", "top_nsigma")
    ),
    "top_k": Sampler("k", lambda s: s.top_k > 0, ("top_k",), ("top-k",)),
    "typical": Sampler(
        "y",
        lambda s: s.typical_p < 1,
        ("typical_p",),
        ("typ_p", "typical_p", "typ-p", "typical-p", "typ"),
        drops_best=True,
    ),
    "top_p": Sampler("p", lambda s: s.top_p < 1, ("top_p",), ("top-p", "nucleus")),
    "min_p": Sampler("m", lambda s: s.min_p > 0, ("min_p",), ("min-p",)),
    "xtc": Sampler(
        "x", lambda s: s.xtc_probability > 0, ("xtc_probability", "xtc_threshold"), drops_best=True
    ),
    "temperature": Sampler(
        "t",
        lambda s: s.temperature != 1 or s.dynatemp_range > 0,
        ("temperature", "dynatemp_range", "dynatemp_exponent"),
        ("temp",),
    ),
}
ORDER = tuple(SAMPLERS)
LETTERS = {one.letter: name for name, one in SAMPLERS.items()}  # of --sampler-seq


@documented
@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options of one request. The stages of `samplers` run in their order. Mirostat replaces all
    stages except the temperature.
    """

    # fmt: off
    temperature: float = option_field(
        0.8,
        "Divides the logits; 0: greedy, the likeliest token.",
        "--temp", "--temperature",
        low=0, high=100, env="TEMPERATURE", body=True,
    )
    top_k: int = option_field(
        40,
        "Keep the k likeliest tokens; 0 and -1: all.",
        "--top-k",
        low=0, high=INT_MAX, body=True, also={-1: 0},
    )
    top_p: float = option_field(
        0.95,
        "Keep the likeliest tokens up to this cumulative probability (nucleus sampling); 1: all.",
        "--top-p",
        low=0, high=1, body=True,
    )
    min_p: float = option_field(
        0.05,
        "Drop tokens below this share of the likeliest token's probability; 0: none.",
        "--min-p",
        low=0, high=1, body=True,
    )
    repeat_penalty: float = option_field(
        1.0,
        "Divides positive logits of repeated tokens, and multiplies negative ones; 1: off.",
        "--repeat-penalty",
        low=1e-6, high=100, body=("repeat_penalty", "repetition_penalty"),
    )
    presence_penalty: float = option_field(
        0.0,
        "Subtracted from the logit of each token that has occurred; 0: off.",
        "--presence-penalty",
        low=-100, high=100, body=True,
    )
    frequency_penalty: float = option_field(
        0.0,
        "Subtracted from a token's logit once per occurrence; 0: off.",
        "--frequency-penalty",
        low=-100, high=100, body=True,
    )
    repeat_last_n: int = option_field(
        64,
        "Number of last tokens that the penalties count; -1: the whole context.",
        "--repeat-last-n",
        low=-1, high=INT_MAX, body=True,
    )
    seed: int | None = option_field(
        None,
        "Seed of the random numbers; -1: a new one for each request.",
        "-s", "--seed",
        low=0, high=MASK, body=True, also={-1: None},
    )
    dynatemp_range: float = option_field(
        0.0,
        "Range by which dynamic temperature raises and lowers the temperature with the entropy; 0: off.",
        "--dynatemp-range",
        low=0, high=100, body=True,
    )
    dynatemp_exponent: float = option_field(
        1.0,
        "Exponent of the normalized entropy in dynamic temperature.",
        "--dynatemp-exp",
        low=0, high=100, body=True,
    )
    typical_p: float = option_field(
        1.0,
        "Keep the locally typical tokens up to this cumulative probability; 1: all.",
        "--typical", "--typical-p",
        low=0, high=1, env="TYPICAL_P", body=True,
    )
    top_n_sigma: float = option_field(
        -1.0,
        "Keep logits within n standard deviations of the largest; -1: all.",
        "--top-nsigma", "--top-n-sigma",
        low=-1, high=1000, env="TOP_N_SIGMA", body=True,
    )
    xtc_probability: float = option_field(
        0.0,
        "Probability with which XTC (exclude top choices) drops the likeliest tokens; 0: never.",
        "--xtc-probability",
        low=0, high=1, body=True,
    )
    xtc_threshold: float = option_field(
        0.1,
        "Least probability of tokens that XTC drops.",
        "--xtc-threshold",
        low=0, high=1, body=True,
    )
    dry_multiplier: float = option_field(
        0.0,
        "Factor of the DRY penalty of tokens that would continue a repetition; 0: off.",
        "--dry-multiplier",
        low=0, high=100, body=True,
    )
    dry_base: float = option_field(
        1.75,
        "Base of the DRY penalty, which grows by this factor per repeated token.",
        "--dry-base",
        low=0, high=100, body=True,
    )
    dry_allowed_length: int = option_field(
        2,
        "Longest repetition, in tokens, without a DRY penalty.",
        "--dry-allowed-length",
        low=0, high=INT_MAX, body=True,
    )
    dry_last_n: int = option_field(
        -1,
        "Number of last tokens in which DRY searches for repetitions; -1: the whole context.",
        "--dry-penalty-last-n",
        low=-1, high=INT_MAX, body=("dry_last_n", "dry_penalty_last_n"),
    )
    mirostat: int = option_field(
        0,
        "Version of Mirostat, which keeps the entropy of the answer at a target: 1 or 2; 0: off.",
        "--mirostat",
        low=0, high=2, body=True,
    )
    mirostat_tau: float = option_field(
        5.0,
        "Target entropy (tau) of Mirostat, in bits.",
        "--mirostat-ent",
        low=0, high=100, body=True,
    )
    mirostat_eta: float = option_field(
        0.1,
        "Learning rate (eta) of Mirostat.",
        "--mirostat-lr",
        low=0, high=1, body=True,
    )
    min_tokens: int = option_field(
        0,
        "Fewest tokens of the answer before an end token.",
        low=0, high=INT_MAX, body=True,
    )
    samplers: Sequence[str] = option_field(
        ORDER, "Stages of the sampler chain in the order in which they run; others do not run."
    )
    dry_breakers: str | Sequence[str] = option_field(
        BREAKERS, "Sequence breakers of DRY: a text that a repetition does not cross, or several."
    )
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = option_field(
        (), "Additions to logits by token id; -inf bans the token."
    )
    allowed: Sequence[int] | None = option_field(
        None, "Tokens that the answer may use; None: all."
    )
    bad_words: Sequence[str | Sequence[int]] = option_field(
        (), "Token sequences, or texts, that the answer never contains."
    )
    # fmt: on
    # The hal_sampling record of these options (record.py): encoding or hashing them each step is too slow.
    record: Array | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "samplers", stages(self.samplers))
        object.__setattr__(self, "logit_bias", biases(self.logit_bias))
        object.__setattr__(self, "dry_breakers", texts_of("dry_breakers", self.dry_breakers))
        object.__setattr__(self, "bad_words", sequences(self.bad_words))
        if self.allowed is not None:
            object.__setattr__(self, "allowed", tuple(self.allowed))
            if not self.allowed:
                raise RequestError("allowed: expected one token or more, got none; leave it out to allow all")

    def with_seed(self, seed: int) -> Sampling:
        """A copy with this seed."""
        return replace(self, seed=seed)

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """logit_bias as pairs."""
        return tuple(self.logit_bias.items()) if isinstance(self.logit_bias, Mapping) else self.logit_bias


class SamplingKwargs(TypedDict, total=False):
    """The fields of Sampling as keyword arguments; a test keeps the two equal."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    seed: int | None
    dynatemp_range: float
    dynatemp_exponent: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    min_tokens: int
    samplers: Sequence[str]
    dry_breakers: str | Sequence[str]
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...]
    allowed: Sequence[int] | None
    bad_words: Sequence[str | Sequence[int]]


def stages(names: Iterable[str]) -> tuple[str, ...]:
    """Names of stages, without aliases. Raises RequestError for an unknown or a repeated one."""
    if isinstance(names, str):
        raise RequestError(f"samplers: expected a list of names, got {names!r:.60}")
    known = {alias: name for name in ORDER for alias in (name, *SAMPLERS[name].aliases)}
    found: list[str] = []
    for name in names:
        stage = known.get(name)
        if stage is None:
            raise RequestError(f"samplers: expected names of {', '.join(ORDER)}, got {name!r:.60}")
        if stage in found:
            raise RequestError(f"samplers: expected each stage once, got {stage!r} twice; leave one out")
        found.append(stage)
    return tuple(found)


def biases(
    given: Mapping[int, float] | Iterable[tuple[int, float]],
) -> tuple[tuple[int, float], ...]:
    """Biases sorted by token id. Raises RequestError for too many, or for one that is not a number."""
    pairs = dict(given)
    if len(pairs) > MOST_BIASES:
        raise RequestError(f"logit_bias: expected {MOST_BIASES} tokens at most, got {len(pairs)}")
    for token, amount in pairs.items():
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise RequestError(f"logit_bias: expected token ids from 0 on, got {token!r:.60}")
        if not amount <= 1e9:  # NaN is not
            raise RequestError(f"logit_bias of token {token}: expected a number up to 1e9, got {amount}")
    return tuple(sorted((token, float(amount)) for token, amount in pairs.items()))


def sequences(words: Iterable[str | Sequence[int]]) -> tuple[str | tuple[int, ...], ...]:
    """bad_words as texts and tuples of token ids. Raises RequestError for an empty one."""
    if isinstance(words, str):
        raise RequestError(f"bad_words: expected a list, got {words!r:.60}")
    found = tuple(w if isinstance(w, str) else tuple(w) for w in words)
    if any(not w for w in found):
        raise RequestError("bad_words: expected a token or more in each, got an empty one; leave it out")
    return found


GREEDY = Sampling(temperature=0, seed=0)
# Names of the options with a range, and those of them that are whole numbers.
NAMES = tuple(name for name, one in options_of(Sampling).items() if one.has_range)
WHOLE = tuple(name for name in NAMES if options_of(Sampling)[name].kind is int)
