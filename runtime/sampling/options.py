"""The user's sampling options: names, defaults and order are llama.cpp's. A field states an option once: the
command line, the server and the chat derive theirs from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from satchel.errors import RequestError
from satchel.runtime.graph import Array
from satchel.runtime.request_option import check_options, documented, options_of, request_option
from satchel.runtime.sampling.exact import MASK

BREAKERS = ("\n", ":", '"', "*")
INT_MAX = 2**31 - 1
MOST_BIASES = 512  # tokens of logit_bias; as many places are left for what DRY takes off


@dataclass(frozen=True, slots=True)
class Sampler:
    """A stage of the sampling chain. letter: its name in --sampler-seq; is_on: whether options make it change
    anything; aliases: its other names.
    """

    letter: str
    is_on: Callable[[Sampling], bool]
    aliases: tuple[str, ...] = ()


def _penalizes(s: Sampling) -> bool:
    return (s.repeat_penalty, s.presence_penalty, s.frequency_penalty) != (1, 0, 0) and s.repeat_last_n != 0


# Stages in the order in which they run; their numbers in hal.h (HAL_STAGE_) follow it.
SAMPLERS: Mapping[str, Sampler] = {
    "penalties": Sampler("e", _penalizes),
    "dry": Sampler("d", lambda s: s.dry_multiplier > 0 and s.dry_base >= 1 and s.dry_last_n != 0),
    "top_n_sigma": Sampler("s", lambda s: s.top_n_sigma >= 0, ("top-n-sigma", "top_nsigma")),
    "top_k": Sampler("k", lambda s: s.top_k > 0, ("top-k",)),
    "typical": Sampler("y", lambda s: s.typical_p < 1, ("typ_p", "typical_p", "typ-p", "typical-p", "typ")),
    "top_p": Sampler("p", lambda s: s.top_p < 1, ("top-p", "nucleus")),
    "min_p": Sampler("m", lambda s: s.min_p > 0, ("min-p",)),
    "xtc": Sampler("x", lambda s: s.xtc_probability > 0),
    "temperature": Sampler("t", lambda s: s.temperature != 1 or s.dynatemp_range > 0, ("temp",)),
}
ORDER = tuple(SAMPLERS)
LETTERS = {one.letter: name for name, one in SAMPLERS.items()}  # of --sampler-seq


@documented
@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options of one request. The stages of `samplers` run in order; mirostat 1 or 2 stands for all
    of them but the temperature.
    """

    # fmt: off
    temperature: float = request_option(
        0.8,
        "Divides the logits; 0: always the likeliest token.",
        "--temp", "--temperature",
        low=0, high=100, env="TEMPERATURE", body=("temperature",),
    )
    top_k: int = request_option(
        40,
        "Keep the k likeliest tokens; 0 and -1: all.",
        "--top-k",
        low=0, high=INT_MAX, env="TOP_K", body=("top_k",), also={-1: 0},
    )
    top_p: float = request_option(
        0.95,
        "Keep the likeliest tokens up to this cumulative probability; 1: all.",
        "--top-p",
        low=0, high=1, env="TOP_P", body=("top_p",),
    )
    min_p: float = request_option(
        0.05,
        "Drop tokens below this share of the likeliest token's probability; 0: none.",
        "--min-p",
        low=0, high=1, env="MIN_P", body=("min_p",),
    )
    repeat_penalty: float = request_option(
        1.0,
        "Divides the logits of repeated tokens; 1: off.",
        "--repeat-penalty",
        low=1e-6, high=100, env="REPEAT_PENALTY", body=("repeat_penalty", "repetition_penalty"),
    )
    presence_penalty: float = request_option(
        0.0,
        "Subtracted from the logit of a token that occurred; 0: off.",
        "--presence-penalty",
        low=-100, high=100, env="PRESENCE_PENALTY", body=("presence_penalty",),
    )
    frequency_penalty: float = request_option(
        0.0,
        "Subtracted from a token's logit for each time it occurred; 0: off.",
        "--frequency-penalty",
        low=-100, high=100, env="FREQUENCY_PENALTY", body=("frequency_penalty",),
    )
    repeat_last_n: int = request_option(
        64,
        "Last tokens that the penalties look at; -1: the whole context.",
        "--repeat-last-n",
        low=-1, high=INT_MAX, env="REPEAT_LAST_N", body=("repeat_last_n",),
    )
    seed: int | None = request_option(
        None,
        "Seed of the random draws; -1: another one for each request.",
        "-s", "--seed",
        low=0, high=MASK, env="SEED", body=("seed",), also={-1: None},
    )
    dynatemp_range: float = request_option(
        0.0,
        "Dynamic temperature goes so far up and down with the entropy; 0: off.",
        "--dynatemp-range",
        low=0, high=100, env="DYNATEMP_RANGE", body=("dynatemp_range",),
    )
    dynatemp_exponent: float = request_option(
        1.0,
        "Exponent of the normalized entropy in dynamic temperature.",
        "--dynatemp-exp",
        low=0, high=100, env="DYNATEMP_EXP", body=("dynatemp_exponent",),
    )
    typical_p: float = request_option(
        1.0,
        "Keep the most typical tokens up to this cumulative probability; 1: all.",
        "--typical", "--typical-p",
        low=0, high=1, env="TYPICAL_P", body=("typical_p",),
    )
    top_n_sigma: float = request_option(
        -1.0,
        "Keep logits within n standard deviations of the best; -1: all.",
        "--top-nsigma", "--top-n-sigma",
        low=-1, high=1000, env="TOP_N_SIGMA", body=("top_n_sigma",),
    )
    xtc_probability: float = request_option(
        0.0,
        "Probability with which XTC drops the likely tokens; 0: never.",
        "--xtc-probability",
        low=0, high=1, env="XTC_PROBABILITY", body=("xtc_probability",),
    )
    xtc_threshold: float = request_option(
        0.1,
        "Least probability of a token that XTC may drop.",
        "--xtc-threshold",
        low=0, high=1, env="XTC_THRESHOLD", body=("xtc_threshold",),
    )
    dry_multiplier: float = request_option(
        0.0,
        "Factor of the DRY penalty, which a token gets that would go on a repetition; 0: off.",
        "--dry-multiplier",
        low=0, high=100, env="DRY_MULTIPLIER", body=("dry_multiplier",),
    )
    dry_base: float = request_option(
        1.75,
        "The DRY penalty grows by this factor with each repeated token.",
        "--dry-base",
        low=0, high=100, env="DRY_BASE", body=("dry_base",),
    )
    dry_allowed_length: int = request_option(
        2,
        "Repetitions of so many tokens have no DRY penalty.",
        "--dry-allowed-length",
        low=0, high=INT_MAX, env="DRY_ALLOWED_LENGTH", body=("dry_allowed_length",),
    )
    dry_last_n: int = request_option(
        -1,
        "Last tokens in which DRY looks for repetitions; -1: the whole context.",
        "--dry-penalty-last-n",
        low=-1, high=INT_MAX, env="DRY_PENALTY_LAST_N", body=("dry_last_n", "dry_penalty_last_n"),
    )
    mirostat: int = request_option(
        0,
        "Version of Mirostat, which holds the entropy of tokens at a target: 1, 2; 0: off.",
        "--mirostat",
        low=0, high=2, env="MIROSTAT", body=("mirostat",),
    )
    mirostat_tau: float = request_option(
        5.0,
        "Target entropy (tau) of Mirostat, in bits.",
        "--mirostat-ent",
        low=0, high=100, env="MIROSTAT_ENT", body=("mirostat_tau",),
    )
    mirostat_eta: float = request_option(
        0.1,
        "Learning rate (eta) of Mirostat.",
        "--mirostat-lr",
        low=0, high=1, env="MIROSTAT_LR", body=("mirostat_eta",),
    )
    min_tokens: int = request_option(
        0,
        "No end token comes before so many tokens of the answer.",
        low=0, high=INT_MAX, body=("min_tokens",),
    )
    samplers: tuple[str, ...] = request_option(
        ORDER, "Stages in the order in which they run; a stage that is not named does not run."
    )
    dry_breakers: tuple[str, ...] = request_option(BREAKERS, "Texts at which a repetition ends for DRY.")
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = request_option(
        (), "Token to what is added to its logit; -inf bans the token."
    )
    allowed: tuple[int, ...] | None = request_option(
        None, "Tokens of which alone an answer is made; None: all."
    )
    bad_words: tuple[str | tuple[int, ...], ...] = request_option(
        (), "Token sequences, or texts, that never come whole."
    )
    # fmt: on
    # What record.py made of these options, by context: made once, for a step has no time to hash them.
    records: dict[int, Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "samplers", stages(self.samplers))
        object.__setattr__(self, "logit_bias", biases(self.logit_bias))
        object.__setattr__(self, "dry_breakers", tuple(self.dry_breakers))
        object.__setattr__(self, "bad_words", sequences(self.bad_words))
        if self.allowed is not None:
            object.__setattr__(self, "allowed", tuple(self.allowed))
            if not self.allowed:
                raise RequestError("allowed names no token: leave it out to allow all")

    def with_seed(self, seed: int) -> Sampling:
        return replace(self, seed=seed)

    @property
    def bias_pairs(self) -> tuple[tuple[int, float], ...]:
        """logit_bias as pairs."""
        return tuple(self.logit_bias.items()) if isinstance(self.logit_bias, Mapping) else self.logit_bias


def stages(names: Iterable[str]) -> tuple[str, ...]:
    """Names of stages as they are called here. RequestError for an unknown or repeated one."""
    if isinstance(names, str):
        raise RequestError(f"samplers are {names!r}: give a list of names")
    known = {alias: name for name in ORDER for alias in (name, *SAMPLERS[name].aliases)}
    found: list[str] = []
    for name in names:
        stage = known.get(name)
        if stage is None:
            raise RequestError(f"sampler {name!r} is not known: there are {', '.join(ORDER)}")
        if stage in found:
            raise RequestError(f"sampler {stage!r} is named twice: each stage runs once")
        found.append(stage)
    return tuple(found)


def biases(
    given: Mapping[int, float] | Iterable[tuple[int, float]],
) -> tuple[tuple[int, float], ...]:
    """Biases by token, in order. RequestError where there are too many, or one is no number."""
    pairs = dict(given)
    if len(pairs) > MOST_BIASES:
        raise RequestError(f"logit_bias names {len(pairs)} tokens: {MOST_BIASES} is the most")
    for token, amount in pairs.items():
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise RequestError(f"logit_bias of token {token!r}: a token is a whole number from 0 on")
        if not amount <= 1e9:  # NaN is not
            raise RequestError(f"logit_bias of token {token} is {amount}: it must be a number up to 1e9")
    return tuple(sorted((token, float(amount)) for token, amount in pairs.items()))


def sequences(words: Iterable[str | Sequence[int]]) -> tuple[str | tuple[int, ...], ...]:
    """bad_words, each text or tuple of tokens. RequestError where one is empty."""
    if isinstance(words, str):
        raise RequestError(f"bad_words are {words!r}: give a list")
    found = tuple(w if isinstance(w, str) else tuple(w) for w in words)
    if any(not w for w in found):
        raise RequestError("bad_words: an empty one would forbid every token")
    return found


GREEDY = Sampling(temperature=0, seed=0)
# Options that are numbers, and of those the whole ones.
NAMES = tuple(name for name, one in options_of(Sampling).items() if one.has_range)
WHOLE = tuple(name for name in NAMES if options_of(Sampling)[name].kind is int)
