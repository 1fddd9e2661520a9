"""Rotary embeddings by kind of scaling: from a checkpoint's configuration to the rotated head, against
transformers' stored frequencies and the formulas in float64.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rope_cases
import tiny

from satchel.errors import ModelError
from satchel.formats.convert.config import read_config
from satchel.formats.gguf import Metadata
from satchel.runtime.graph import TOKENS, Type
from satchel.runtime.layers.arch import Arch, Cache, HParams, find_arch
from satchel.runtime.layers.blocks import rope_frequencies, rotate
from satchel.runtime.ops import evaluate
from satchel.runtime.weights.sources import mappings

STORED = json.loads(rope_cases.STORED.read_text())


def converted(folder: Path, settings: dict[str, Any], context: int) -> Arch:
    """The architecture of a converted configuration, with slots of this context."""
    path = folder / "config.json"
    path.write_text(json.dumps(settings))
    model, w = read_config(path, mappings()), tiny.TinyWeights()
    for name, values in model.factors.items():
        w.put(name, values)
    return find_arch(model.arch)(HParams(Metadata.of(model.values), model.arch), w, Cache(context=context))


def stated(changes: dict[str, object], w: tiny.TinyWeights | None = None, context: int = 64) -> Arch:
    """A tiny Llama whose file has these keys; heads of 64 numbers."""
    meta = tiny.metadata("llama", **{k.replace(".", "__"): v for k, v in changes.items()})
    return find_arch("llama")(HParams(meta, "llama"), w or tiny.TinyWeights(), Cache(context=context))


def turned_size(case: str) -> int:
    dim, _, _, rope = rope_cases.CASES[case]
    return int(dim * rope.get("partial_rotary_factor", 1.0))


# --- the formulas, in float64


def formula(case: str, context: int) -> tuple[np.ndarray, float]:
    """Rotation per position of each pair, and the factor on cosine and sine."""
    _, base, trained, rope = rope_cases.CASES[case]
    n = turned_size(case)
    plain = 1 / base ** (2 * np.arange(n // 2) / n)
    kind, factor = rope["rope_type"], rope.get("factor", 1.0)
    original = rope.get("original_max_position_embeddings", trained)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "yarn":
        return yarn(plain, base, factor, original, rope), yarn_factor(factor, rope)
    if kind == "llama3":
        return llama3(plain, factor, original, rope), 1.0
    if kind == "longrope":
        listed = rope["long_factor" if context > original else "short_factor"]
        far = math.sqrt(1 + math.log(trained / original) / math.log(original)) if trained > original else 1.0
        return plain / np.array(listed), rope.get("attention_factor", far)
    return plain, 1.0


def yarn(plain: np.ndarray, base: float, factor: float, original: int, rope: dict[str, Any]) -> np.ndarray:
    """The YaRN paper, 3.2 and 3.4: by how often a pair rotates within the original context."""
    fast, slow, n = rope.get("beta_fast", 32.0), rope.get("beta_slow", 1.0), 2 * len(plain)

    def place(turns: float) -> float:
        return n * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(math.floor(place(fast)), 0), min(math.ceil(place(slow)), n - 1)
    kept = 1 - np.clip((np.arange(n // 2) - low) / (high - low or 0.001), 0, 1)
    return kept * plain + (1 - kept) * plain / factor


def yarn_factor(factor: float, rope: dict[str, Any]) -> float:
    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    if "attention_factor" in rope:
        return rope["attention_factor"]
    return grown(rope.get("mscale", 1.0)) / (grown(rope["mscale_all_dim"]) if "mscale_all_dim" in rope else 1)


def llama3(plain: np.ndarray, factor: float, original: int, rope: dict[str, Any]) -> np.ndarray:
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    found = []
    for freq in plain:
        turns = original * freq / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append((1 - share) * freq / factor + share * freq)
    return np.array(found)


def rotated(x: np.ndarray, pos: list[int], freq: np.ndarray, factor: float, style: int) -> np.ndarray:
    """x (T, H, D) with its pairs rotated as complex numbers."""
    n, y = 2 * len(freq), x.astype(np.float64)
    one, other = (slice(0, n, 2), slice(1, n, 2)) if style == 0 else (slice(0, n // 2), slice(n // 2, n))
    whole = y[..., one] + 1j * y[..., other]
    whole = whole * factor * np.exp(1j * np.array(pos)[:, None, None] * freq)
    y[..., one], y[..., other] = whole.real, whole.imag
    return y


# --- the tests


@pytest.mark.parametrize("case", STORED)
def test_a_configuration_gives_the_frequencies_of_transformers(case: str, tmp_path: Path) -> None:
    name, _, long = case.partition(",")
    context = 8192 if long else 4096
    got, factor = rope_frequencies(converted(tmp_path, rope_cases.config(name), context), turned_size(name))
    np.testing.assert_allclose(got, STORED[case]["freq"], rtol=1e-6)
    assert factor == pytest.approx(STORED[case]["factor"], rel=1e-6)


@pytest.mark.parametrize("context", [4096, 4097])
@pytest.mark.parametrize("case", rope_cases.CASES)
def test_heads_turn_as_the_formula_says(case: str, context: int, tmp_path: Path) -> None:
    """At the first positions, at the original length and beside it, and as far as any model goes."""
    a, dim = converted(tmp_path, rope_cases.config(case), context), rope_cases.CASES[case][0]
    pos = [0, 1, 2, 4095, 4096, 4097, 131072, (1 << 20) - 1]
    x = np.random.default_rng(len(case)).standard_normal((len(pos), 3, dim)).astype(np.float32)
    (got,) = evaluate(
        (rotate(a, a.input("x", Type((TOKENS, 3, dim))), 0),), {"x": x, "pos": np.array(pos, np.int32)}
    )
    freq, factor = formula(case, context)
    want = rotated(x, pos, freq, factor, a.rope_style)
    # Frequency and angle are float32: both round, in proportion to how far a pair has rotated.
    angle = np.zeros((len(pos), 1, dim))
    angle[..., : 2 * len(freq)] = (np.array(pos)[:, None] * freq.max()).reshape(-1, 1, 1)
    assert (np.abs(got - want) <= factor * 6 * (1e-6 + 2e-7 * angle)).all()
    n = 2 * len(freq)
    np.testing.assert_array_equal(got[..., n:], x[..., n:])
    np.testing.assert_allclose(got[0, :, :n], factor * x[0, :, :n], rtol=1e-6)


@pytest.mark.parametrize("length", [1, 16])
def test_hunyuans_alpha_is_a_larger_base(length: int, tmp_path: Path) -> None:
    """NTK scaling by a fixed alpha: base * alpha^(n / (n - 2))."""
    settings = rope_cases.config("default")
    settings["rope_parameters"] |= {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    got, factor = rope_frequencies(converted(tmp_path, settings, length), 64)
    base = 1e4 * 1000.0 ** (64 / 62)
    np.testing.assert_allclose(got, base ** (-np.arange(32) / 32), rtol=1e-6)
    assert factor == 1.0


def test_sections_of_a_text_are_plain_halves() -> None:
    """Qwen-VL rotates its pairs by time, height or width, section by section; a text's three are one."""
    meta = tiny.metadata("qwen35", rope__dimension_sections=[3, 3, 2, 0])
    a = find_arch("qwen35")(HParams(meta, "qwen35"), tiny.TinyWeights(), Cache(context=64))
    pos, dim, n = [0, 1, 5, 63], 64, 16
    x = np.random.default_rng(4).standard_normal((4, 2, dim)).astype(np.float32)
    (got,) = evaluate(
        (rotate(a, a.input("x", Type((TOKENS, 2, dim))), 0),), {"x": x, "pos": np.array(pos, np.int32)}
    )
    places = np.array([pos, pos, pos], np.float64)  # time, height, width
    freq = 1 / 1e4 ** (2 * np.arange(n // 2) / n)
    which = np.repeat(np.arange(3), [3, 3, 2])
    angle = places[which].T * freq
    want = x.astype(np.float64)
    first, second = x[..., : n // 2].astype(np.float64), x[..., n // 2 : n].astype(np.float64)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    want[..., : n // 2], want[..., n // 2 : n] = first * c - second * s, first * s + second * c
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_older_files_state_linear_scaling_by_another_key() -> None:
    plain, _ = rope_frequencies(stated({}), 64)
    np.testing.assert_allclose(
        rope_frequencies(stated({"rope.scale_linear": 4.0}), 64)[0] * 4, plain, rtol=1e-6
    )


def test_a_log_multiplier_undoes_yarns_factor() -> None:
    """As Ministral 3's files have it: mscale over mscale_all_dim."""
    rope = {"rope.scaling.type": "yarn", "rope.scaling.factor": 16.0}
    for multiplier, want in ((0.0, 1 + 0.1 * math.log(16)), (1.0, 1.0)):
        _, factor = rope_frequencies(stated(rope | {"rope.scaling.yarn_log_multiplier": multiplier}), 64)
        assert factor == pytest.approx(want)


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
WRONG: list[tuple[dict[str, object], str]] = [
    ({"rope.scaling.type": "linear"}, "rope.scaling.factor"),
    ({"rope.scaling.type": "yarn"}, "rope.scaling.factor"),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, "rope.scaling.factor"),
    ({"rope.scaling.type": "dynamic", "rope.scaling.factor": 2.0}, "rope.scaling.type"),
    (YARN | {"rope.freq_base": 1.0}, "rope.freq_base"),
    (YARN | {"rope.scaling.yarn_beta_fast": 0.0}, "yarn_beta_fast"),
    (YARN | {"rope.scaling.yarn_beta_slow": 0.0}, "yarn_beta_slow"),
    (YARN | {"rope.scaling.yarn_beta_fast": 0.5}, "yarn_beta_fast"),
    (YARN | {"rope.scaling.original_context_length": 0}, "original_context_length"),
    (YARN | {"rope.scaling.attn_factor": 0.0}, "attn_factor"),
    ({"rope.dimension_count": 7}, "rope.dimension_count"),
    ({"rope.dimension_count": 66}, "rope.dimension_count"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_wrong_value_is_one_error_that_names_the_key(changes: dict[str, object], said: str) -> None:
    a = stated(changes)
    with pytest.raises(ModelError, match=said) as caught:
        rotate(a, a.input("x", Type((TOKENS, 2, 64))), 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rope_freqs", "rope_factors_long"])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_factors_that_are_none_are_refused(name: str, bad: float) -> None:
    w, values = tiny.TinyWeights(), np.ones(32, np.float32)
    w.put("rope_factors_short.weight", values) if "long" in name else None
    values[3] = bad
    w.put(f"{name}.weight", values)
    with pytest.raises(ModelError, match=f"{name}.weight: expected factors above 0"):
        rope_frequencies(stated({"rope.scaling.original_context_length": 32}, w), 64)


@pytest.mark.parametrize("there", ["long", "short"])
def test_one_of_longropes_lists_alone_is_refused(there: str) -> None:
    w = tiny.TinyWeights()
    w.put(f"rope_factors_{there}.weight", np.ones(32, np.float32))
    with pytest.raises(ModelError, match="is missing"):
        rope_frequencies(stated({}, w), 64)


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("linear", {"factor": None}, "rope factor"),
    ("linear", {"factor": 0}, "rope factor"),
    ("yarn", {"factor": "4"}, "rope factor"),
    ("yarn", {"original_max_position_embeddings": -1}, "original_max_position_embeddings"),
    ("yarn", {"attention_factor": -1.0}, "attention_factor"),
    ("llama3", {"low_freq_factor": None}, "low_freq_factor"),
    ("llama3", {"high_freq_factor": 1.0}, "high_freq_factor"),
    ("longrope", {"long_factor": [1.0] * 47}, "long_factor"),
    ("longrope", {"short_factor": None}, "short_factor"),
    ("longrope part", {"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    ("default", {"rope_type": "spiral"}, "rope_type"),
]


@pytest.mark.parametrize(("case", "changes", "said"), CONFIGS)
def test_a_wrong_configuration_is_refused(
    case: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    settings = rope_cases.config(case)
    settings["rope_parameters"] |= changes
    with pytest.raises(ModelError, match=said) as caught:
        converted(tmp_path, settings, 4096)
    assert "\n" not in str(caught.value)
