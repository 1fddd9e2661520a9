"""The user's sampling options, checked: names, defaults and order are llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from satchel.errors import RequestError
from satchel.runtime.graph import Array
from satchel.runtime.sampling.exact import MASK

ORDER = (
    "penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
LETTERS = dict(zip("edskypmxt", ORDER, strict=True))  # of --sampler-seq
ALIASES = {
    "top_n_sigma": ("top-n-sigma", "top_nsigma"),
    "typical": ("typ_p", "typical_p", "typ-p", "typical-p", "typ"),
    "temperature": ("temp",),
    "top_k": ("top-k",),
    "top_p": ("top-p", "nucleus"),
    "min_p": ("min-p",),
}
BREAKERS = ("\n", ":", '"', "*")
MOST_BIASES = 512  # tokens of logit_bias; as many places are left for what DRY takes off


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a caller asks for. temperature 0 is greedy. Off are: top_k 0, top_p 1, min_p 0, typical_p 1,
    top_n_sigma -1, dynatemp_range 0, xtc_probability 0, dry_multiplier 0, mirostat 0, penalties 1, 0, 0.

    repeat_last_n, dry_last_n: -1 is the whole context. seed: None draws one from the system. samplers: the
    stages in the order in which they run; one that is not named does not run. mirostat 1 or 2 stands for all
    stages but the temperature. logit_bias: token to what is added to its logit (-inf forbids it). allowed:
    tokens of which alone is drawn, None: all. bad_words: token sequences, or texts, that never come whole.
    min_tokens: an end token may not come before so many.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = -1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_tokens: int = 0
    samplers: tuple[str, ...] = ORDER
    dry_breakers: tuple[str, ...] = BREAKERS
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = field(default=())
    allowed: tuple[int, ...] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    # What record.py made of these options, by context: made once, for a step has no time to hash them.
    records: dict[int, Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, low, high in RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestError(f"{name} is {value}: it must lie between {low:g} and {high:g}")
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


RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 100),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repeat_penalty", 1e-6, 100),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("repeat_last_n", -1, 2**31 - 1),
    ("seed", 0, MASK),
    ("dynatemp_range", 0, 100),
    ("dynatemp_exponent", 0, 100),
    ("typical_p", 0, 1),
    ("top_n_sigma", -1, 1000),
    ("xtc_probability", 0, 1),
    ("xtc_threshold", 0, 1),
    ("dry_multiplier", 0, 100),
    ("dry_base", 0, 100),
    ("dry_allowed_length", 0, 2**31 - 1),
    ("dry_last_n", -1, 2**31 - 1),
    ("mirostat", 0, 2),
    ("mirostat_tau", 0, 100),
    ("mirostat_eta", 0, 1),
    ("min_tokens", 0, 2**31 - 1),
)


def stages(names: Iterable[str]) -> tuple[str, ...]:
    """Names of stages as they are called here. RequestError for an unknown or repeated one."""
    if isinstance(names, str):
        raise RequestError(f"samplers are {names!r}: give a list of names")
    known = {alias: name for name in ORDER for alias in (name, *ALIASES.get(name, ()))}
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
NAMES = tuple(name for name in (f.name for f in fields(Sampling)) if name in {r[0] for r in RANGES})
