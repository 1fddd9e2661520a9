"""Rows of logits and sampling parameters that reach every sampling stage and every branch of its kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from one_step import Case, f32, i32

from satchel.runtime.device.device import SAMPLING
from satchel.runtime.graph import Array
from satchel.runtime.option import options_of
from satchel.runtime.sampling.chain import CODE
from satchel.runtime.sampling.options import SAMPLERS, Sampling

DEFAULT = ("penalties", "top_k", "top_p", "min_p", "temperature")
CHAINS: list[tuple[tuple[str, ...], dict[str, float]]] = [
    ((), {}),
    (("temperature",), {"temperature": 0.0}),
    (("penalties", "temperature"), {"temperature": 0.0, "repeat_penalty": 1.7, "presence_penalty": 0.5}),
    (DEFAULT, {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "frequency_penalty": 0.3}),
    (("temperature",), {"temperature": 0.3}),
    (("temperature", "top_p"), {"temperature": 1.5, "top_p": 0.5}),
    (("top_k", "temperature"), {"temperature": 0.7, "top_k": 3000}),
    (("top_k", "penalties"), {"top_k": 50, "repeat_penalty": 1.3, "repeat_last_n": 6}),
    (("min_p", "temperature"), {"temperature": 2.0, "min_p": 0.3}),
    (("min_p",), {"min_p": 1.0}),
    (("top_k",), {"top_k": 1}),
    (("top_p",), {"top_p": 0.0}),
    (("top_p",), {"top_p": 0.999}),
    (("typical",), {"typical_p": 0.4}),
    (("typical", "temperature"), {"typical_p": 0.95, "temperature": 0.5}),
    (("top_n_sigma",), {"top_n_sigma": 1.0}),
    (("top_n_sigma", "top_p"), {"top_n_sigma": 0.0, "top_p": 0.5}),
    (("xtc",), {"xtc_probability": 1.0, "xtc_threshold": 0.02}),
    (("top_k", "xtc", "temperature"), {"xtc_probability": 0.5, "xtc_threshold": 0.1, "top_k": 9}),
    (("temperature",), {"temperature": 1.0, "dynatemp_range": 0.7, "dynatemp_exponent": 1.5}),
    (("top_k", "temperature", "min_p"), {"dynatemp_range": 2.0, "top_k": 30, "min_p": 0.01}),
    (("mirostat_1",), {"mirostat_mu": 3.0}),
    (("temperature", "mirostat_1"), {"mirostat_mu": 9.5, "temperature": 0.6}),
    (("mirostat_2",), {"mirostat_mu": 2.5}),
    (("mirostat_2",), {"mirostat_mu": -1.0}),
    (("dry", "penalties", "top_n_sigma", "typical", "xtc", "top_p", "min_p", "top_k", "temperature"),
     {"typical_p": 0.9, "xtc_probability": 0.8, "xtc_threshold": 0.01, "top_p": 0.9, "min_p": 0.001,
      "top_k": 99, "top_n_sigma": 3.0, "repeat_penalty": 1.1}),
    (("temperature",), {"temperature": 0.0, "dynatemp_range": 2.0}),
    (("penalties",), {"repeat_penalty": 1.2, "frequency_penalty": 0.1, "repeat_last_n": -1}),
    (("top_k", "top_p"), {"top_k": 2**24, "top_p": 0.7}),
]  # fmt: skip
# Chains whose first stage bounds where its candidates lie, so the kernels need not look at all logits.
NEAR_CHAINS: list[tuple[tuple[str, ...], dict[str, float]]] = [
    (("top_k", "top_p", "min_p", "temperature"),
     {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
    (("top_k", "typical", "temperature"),
     {"temperature": 0.9, "dynatemp_range": 0.5, "top_k": 20, "typical_p": 0.7}),
    (("min_p", "temperature", "top_p"), {"temperature": 1.4, "min_p": 0.02, "top_p": 0.9}),
    (("temperature",), {"temperature": 0.0}),
]  # fmt: skip
NEAR_VOCABULARY = 12001
FAR_CHAINS: list[tuple[tuple[str, ...], dict[str, float]]] = [
    ((), {}),
    (("top_p",), {"top_p": 0.95}),
    (("top_p",), {"top_p": 0.9999}),
    (("top_p", "temperature"), {"top_p": 0.6, "temperature": 3.0}),
    (("top_k",), {"top_k": 5000}),
    (("typical",), {"typical_p": 0.97}),
    (("typical", "temperature"), {"typical_p": 0.3, "temperature": 2.0}),
    (("typical", "min_p"), {"typical_p": 0.3, "min_p": 0.5}),  # typical drops the best, by which min_p judges
]
USUAL = {
    "temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repeat_penalty": 1.0, "repeat_last_n": 64,
    "dynatemp_exponent": 1.0,
}  # fmt: skip
ROWS = 8


def params(rng: np.random.Generator, chain: tuple[str, ...], **options: float) -> Array:
    """One hal_sampling per row, (ROWS, bytes) int8."""
    rows, given = np.zeros((ROWS, 1), SAMPLING), {**USUAL, **options}
    for name in set(SAMPLING.names or ()) & options.keys():
        rows[name] = given[name]
    for i, name in enumerate(chain):
        rows["chain"]["stage"][..., i] = CODE[name]
        for j, option in enumerate(SAMPLERS[name].numbers if name in SAMPLERS else ()):
            rows["chain"]["numbers"][..., i, j] = given.get(option, 0)
    rows["seed"] = rng.integers(0, 2**63, (ROWS, 1), dtype=np.uint64)
    return rows.view(np.int8)


def any_numbers(rng: np.random.Generator, name: str, near_zero: bool) -> Array:
    """Params whose chain is one sampler, with other numbers in each row: random ones within the option's
    bounds, near its default or near zero. The first row has the defaults, or the least numbers.
    """
    rows = params(rng, (name,)).view(SAMPLING)
    for i, option in enumerate(options_of(Sampling)[n] for n in SAMPLERS[name].numbers):
        low, high, usual = float(option.low), float(option.high), float(option.default)
        middle, reach = (0, 3) if near_zero else (usual, max(abs(usual), 1))
        drawn = np.clip(middle + rng.uniform(-reach, reach, (ROWS, 1)), low, high)
        drawn[0] = low if near_zero else usual
        rows["chain"]["numbers"][:, :, 0, i] = np.rint(drawn) if option.kind is int else drawn
    return rows.view(np.int8)


def any_case(rng: np.random.Generator, name: str) -> Case:
    """One sampler with other numbers in each of many rows of flat logits, so that a token that is wrongly
    dropped or kept is soon drawn; every other row has ties.
    """
    times = 8
    x = f32(rng, times * ROWS, 300, scale=1)[0]
    x[::2] = np.round(x[::2] * 2) / 2
    ring, (slot, _), (pos, _) = places(rng, 300)
    rows = np.concatenate([any_numbers(rng, name, near_zero) for near_zero in (False, True) * (times // 2)])
    inputs = ((x, "f32"), ring, (np.tile(slot, times), "i32"), (np.tile(pos, times), "i32"), (rows, "i8"))
    return Case(f"any-{name}", inputs, (len(x),), "i32", bound=0)


def logits(rng: np.random.Generator, vocabulary: int) -> Array:
    """Rows of usual logits, of ties, of equal and of forbidden ones, and of a wide spread; and three from
    which no token can be sampled: one NaN at the end, one +inf among small values, nothing above -inf.
    """
    x = f32(rng, ROWS, vocabulary, scale=3)[0]
    x[1] = np.round(x[1])
    x[2] = 0
    x[3, ::2] = -np.inf
    x[4, -1] = np.nan
    x[5] *= 30
    x[6] *= 0.01
    x[6, vocabulary // 2] = np.inf
    x[7] = -np.inf
    return x


def far(rng: np.random.Generator, vocabulary: int) -> Array:
    """Rows with one top token, whose margin ranges from small to so large that no other token counts; half of
    the rows have ties.
    """
    x = f32(rng, ROWS, vocabulary, scale=1)[0]
    x[::2] = np.round(x[::2] * 2) / 2
    x[:, 17] = x.max(-1) + np.array([0, 2, 5, 8, 9, 12, 20, 40], np.float32)
    return x


def places(rng: np.random.Generator, vocabulary: int) -> tuple[tuple[Array, str], ...]:
    """ring, slot and pos."""
    ring = rng.integers(0, vocabulary, (3, 64)).astype(np.int32)
    ring[:, ::3] = 5
    return (ring, "i32"), i32(0, 1, 2, 0, 1, 2, 0, 1), i32(0, 3, 10, 11, 39, 63, 90, 200)


def sample_cases(rng: np.random.Generator) -> Iterator[Case]:
    for i, (chain, options) in enumerate(CHAINS):
        vocabulary = (300, 4099, 9001)[i % 3]
        inputs = (
            (logits(rng, vocabulary), "f32"),
            *places(rng, vocabulary),
            (params(rng, chain, **options), "i8"),
        )
        yield Case(f"{i}-{'-'.join(chain)}", inputs, (ROWS,), "i32", bound=0)
    for i, (chain, options) in enumerate(FAR_CHAINS):
        vocabulary = (7003, 6400)[i % 2]
        inputs = (
            (far(rng, vocabulary), "f32"),
            *places(rng, vocabulary),
            (params(rng, chain, **options), "i8"),
        )
        yield Case(f"far-{i}-{'-'.join(chain)}", inputs, (ROWS,), "i32", bound=0)
    for i, (chain, options) in enumerate(NEAR_CHAINS):
        for kind, x in (("usual", logits(rng, NEAR_VOCABULARY)), ("far", far(rng, NEAR_VOCABULARY))):
            records = params(rng, chain, **options)
            inputs = ((x, "f32"), *places(rng, NEAR_VOCABULARY), (records, "i8"))
            yield Case(f"near-{i}-{kind}", inputs, (ROWS,), "i32", bound=0)
    for name in SAMPLERS:
        yield any_case(rng, name)


def few_tokens(rng: np.random.Generator, vocabulary: int) -> Array:
    """Token bitmasks as a grammar makes them: of one token, of some, of all that stand together, of none."""
    allowed = np.zeros((ROWS, -(-vocabulary // 32) * 32), np.uint8)
    for row, count in zip(allowed, (1, 3, 30, 60, 1, 300, 2, 9), strict=True):
        row[rng.choice(vocabulary, count, replace=False)] = 1
    allowed[5, 700:1900] = 1
    allowed[7] = 0
    return np.packbits(allowed, axis=-1, bitorder="little").view(np.int32)


def masked_cases(rng: np.random.Generator) -> Iterator[Case]:
    for i, (chain, options) in enumerate(CHAINS):
        vocabulary = (300, 4099)[i % 2]
        bitmask = rng.integers(0, 2**32, (ROWS, -(-vocabulary // 32)), dtype=np.uint32).view(np.int32)
        edits = np.stack(
            (
                rng.integers(0, vocabulary, (ROWS, 6)).astype(np.int32),
                (rng.standard_normal((ROWS, 6)) * 4).astype(np.float32).view(np.int32),
            ),
            axis=-1,
        )
        every = params(rng, chain, **options, masked=i % 2, biases=i % 4, dry_penalties=i % 3)
        # As in a step with one constrained request: rows with nothing, with a bitmask, with both.
        some = params(rng, chain, **options)
        some[1::3] = params(rng, chain, **options, masked=1)[1::3]
        some[2::3] = params(rng, chain, **options, masked=1, biases=3)[2::3]
        for name, records in (("every", every), ("some", some)):
            inputs = (
                (logits(rng, vocabulary), "f32"),
                *places(rng, vocabulary),
                (records, "i8"),
                (bitmask, "i32"),
                (edits, "i32"),
            )
            yield Case(f"{i}-{'-'.join(chain)}-{name}", inputs, (ROWS, 2), "i32", bound=0)
    for i, (chain, options) in enumerate(NEAR_CHAINS):
        for kind, x in (("usual", logits(rng, NEAR_VOCABULARY)), ("far", far(rng, NEAR_VOCABULARY))):
            inputs = (
                (x, "f32"),
                *places(rng, NEAR_VOCABULARY),
                (params(rng, chain, **options, masked=1), "i8"),
                (few_tokens(rng, NEAR_VOCABULARY), "i32"),
                (np.zeros((ROWS, 6, 2), np.int32), "i32"),
            )
            yield Case(f"near-{i}-{kind}-masked", inputs, (ROWS, 2), "i32", bound=0)


def report_cases(rng: np.random.Generator) -> Iterator[Case]:
    for vocabulary, k in ((300, 20), (4099, 1), (64, 64), (NEAR_VOCABULARY, 20)):
        ids = rng.integers(0, vocabulary, ROWS).astype(np.int32)
        given = params(rng, (), report=1)
        given[2::3] = params(rng, (), report=0)[2::3]
        inputs = ((logits(rng, vocabulary), "f32"), (ids, "i32"))
        yield Case(f"all-{vocabulary}-{k}", inputs, (ROWS, 2 + 2 * k), args={"k": k}, bound=0)
        yield Case(
            f"asked-{vocabulary}-{k}", (*inputs, (given, "i8")), (ROWS, 2 + 2 * k), args={"k": k}, bound=0
        )
