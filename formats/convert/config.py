"""Converts config.json to GGUF metadata by an architecture's mapping: numbers, RoPE scaling, checks.

A key that changes the model's computation is converted or refused, never silently dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.formats.convert.jsonfile import read_json
from satchel.formats.convert.mapping import ArchMapping, Config, ConfigCheck, Key
from satchel.formats.convert.multimodal import is_multimodal, text_config, text_mapping

INT_MAX = (1 << 31) - 1
LAYERS_MAX = 512  # the runtime's limit
Factors = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The converted config.json."""

    arch: str
    mapping: ArchMapping
    config: Config
    values: dict[str, Any]  # metadata by full key
    factors: Factors  # divisors of the RoPE frequencies, (n_rot / 2,), by GGUF's tensor name
    notes: tuple[str, ...] = ()  # lines about oddities

    def uint(self, key: str, default: int = 0) -> int:
        """An integer by GGUF's key without the architecture; of a per-layer list the largest."""
        value = self.values.get(f"{self.arch}.{key}", default)
        return int(max(value) if isinstance(value, list) else value)


def find_mapping(path: Path, config: Config, mappings: Sequence[ArchMapping]) -> ArchMapping:
    """The mapping for the config's model class, or for its text model. ModelError lists the supported
    classes.
    """
    classes = config.get("architectures")
    names = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    for mapping in (m for m in mappings if m.only(config)):
        if set(names) & set(mapping.classes) or (
            not names and config.get("model_type") == mapping.model_type
        ):
            return mapping
        if set(names) & set(mapping.multimodal):
            return text_mapping(mapping)
    known = ", ".join(sorted(name for mapping in mappings for name in mapping.classes))
    got = ", ".join(map(ascii, names)) or ascii(config.get("model_type", "none"))
    if is_multimodal(config):
        raise ModelError(
            f"{path}: {got:.200} reads pictures or sound, which is not supported; take a text model of its"
            " family"
        )
    raise ModelError(
        f"{path}: architectures: expected one of {known}, got {got:.200}; this version converts these alone"
    )


def read_config(path: Path, mappings: Sequence[ArchMapping]) -> ModelConfig:
    """Converts a config.json. ModelError names the file, the key, the expected and the found value."""
    config: Config = read_json(path)
    mapping = find_mapping(path, config, mappings)
    notes = []
    if all(mapping is not known for known in mappings):
        notes.append(f"{path}: a model of pictures too: its text model alone is converted")
        config = text_config(path, config, mapping)
    reader = _Reader(path, config, mapping.arch_of(config))
    reader.whole = mapping.whole
    for guard in mapping.guards:
        reader.check(guard)
    for key in mapping.keys:
        reader.read(key)
    if mapping.extra is not None:
        mapping.extra(reader)
    head_dim = reader.head_dim() if mapping.head_dim else 0
    factors = _rope(reader, head_dim, mapping) if mapping.rope else {}
    factors = {**reader.factors, **factors}
    return ModelConfig(reader.arch, mapping, config, reader.values, factors, (*notes, *reader.notes))


class _Reader:
    """Reads one config with range checks, and collects the values under GGUF's keys."""

    def __init__(self, path: Path, config: Config, arch: str) -> None:
        self.path, self.config, self.arch = path, config, arch
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []
        self.factors: dict[str, npt.NDArray[np.float32]] = {}
        self.whole = True

    def fault(
        self, key: str, expected: str, got: object, do: str = "the checkpoint is damaged"
    ) -> ModelError:
        return ModelError(f"{self.path}: {key}: expected {expected}, got {got!a:.100}; {do}")

    def put(self, key: str, value: Any) -> None:
        self.values[f"{self.arch}.{key}"] = value

    def number(self, value: object, key: str, kind: type[int] | type[float], low: float = 0.0) -> Any:
        """`value` (of `key`) as a finite positive number of at least `low`; an integer where kind is int."""
        exact = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if kind is int and exact and low <= value <= INT_MAX and value == int(value) and value > 0:  # type: ignore[operator, call-overload]
            return int(value)  # type: ignore[call-overload]
        if kind is float and exact and low <= value <= 1e30:  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        raise self.fault(key, "a positive whole number" if kind is int else "a positive number", value)

    def check(self, guard: ConfigCheck) -> None:
        found = self.config.get(guard.key, guard.absent)
        if found not in guard.allowed:
            wanted = " or ".join(map(repr, guard.allowed))
            raise self.fault(
                guard.key, wanted, found, f"{self.arch} models of this variant are not supported"
            )

    def read(self, key: Key) -> None:
        found = next((s for s in key.sources if self.config.get(s) is not None), None)
        if found is not None:
            low = 1e-12 if key.kind is float else 1
            self.put(key.target, self.number(self.config[found], found, key.kind, low))
        elif key.default:
            self.put(key.target, self.values[f"{self.arch}.{key.default}"])
        elif not key.optional:
            raise self.fault(" or ".join(key.sources), "a number", "nothing", "the checkpoint is incomplete")

    def head_dim(self) -> int:
        """The size of a head, checked against the other dimensions; written where the config has it."""
        width, heads = (self.values[f"{self.arch}.{k}"] for k in ("embedding_length", "attention.head_count"))
        if self.values[f"{self.arch}.block_count"] > LAYERS_MAX:
            got = self.values[f"{self.arch}.block_count"]
            raise self.fault("num_hidden_layers", f"at most {LAYERS_MAX}", got)
        stated = self.config.get("head_dim")
        if stated is None:
            if width % heads:
                raise self.fault("num_attention_heads", f"a divisor of hidden_size {width}", heads)
            return int(width // heads)
        dim = int(self.number(stated, "head_dim", int, 1))
        self.put("attention.key_length", dim)
        self.put("attention.value_length", dim)
        return dim


def _rope(reader: _Reader, head_dim: int, mapping: ArchMapping) -> Factors:
    """Reads RoPE base, dimensions and scaling. Transformers 5 has them in rope_parameters, one object per
    layer type where they differ; older versions in rope_theta and rope_scaling.
    """
    config = reader.config
    stated = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(stated, Mapping):
        raise reader.fault("rope_parameters or rope_scaling", "an object", stated)
    local = config.get("rope_local_base_freq")
    if isinstance(stated.get("full_attention"), Mapping):
        near = stated.get("sliding_attention")
        local = near.get("rope_theta") if isinstance(near, Mapping) else local
        stated = stated["full_attention"]
    if local is not None:
        reader.put("rope.freq_base_swa", reader.number(local, "rope_local_base_freq", float, 1e-6))
    base = stated.get("rope_theta", config.get("rope_theta", 10000.0))
    reader.put("rope.freq_base", reader.number(base, "rope_theta", float, 1e-6))
    n_rot = _rotary_dims(reader, stated, head_dim, mapping)
    reader.put("rope.dimension_count", n_rot)
    kind = stated.get("rope_type", stated.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise reader.fault("rope_type", f"one of {known}", kind, "other scalings are not supported")
    return _SCALINGS[kind](reader, stated, n_rot)


def _rotary_dims(reader: _Reader, stated: Mapping[str, Any], head_dim: int, mapping: ArchMapping) -> int:
    """n_rot: the number of dimensions of a head that RoPE rotates."""
    found = stated.get(
        "partial_rotary_factor", reader.config.get("partial_rotary_factor", mapping.partial_rotary_factor)
    )
    if found in (1, None):
        return head_dim
    if not mapping.partial:
        raise reader.fault("partial_rotary_factor", "1", found, "rotating a part of a head is not supported")
    part = reader.number(found, "partial_rotary_factor", float, 1e-6)
    size = int(head_dim * part)
    if not 0 < size <= head_dim or size % 2:
        raise reader.fault("partial_rotary_factor", f"an even part of the {head_dim} of a head", found)
    return size


def _unscaled(reader: _Reader, stated: Mapping[str, Any], head_dim: int) -> Factors:
    return {}


def _dynamic(reader: _Reader, stated: Mapping[str, Any], head_dim: int) -> Factors:
    """Dynamic NTK scaling. With `alpha` (Hunyuan) it is a larger base at all lengths; otherwise it only
    changes texts beyond the trained context, which the runtime does not run.
    """
    alpha = stated.get("alpha")
    if alpha is not None:
        if head_dim == 2:
            raise reader.fault("alpha", "heads with more than 2 rotary numbers", head_dim)
        base = reader.values[f"{reader.arch}.rope.freq_base"]
        stretch = reader.number(alpha, "alpha", float, 1e-6) ** (head_dim / (head_dim - 2))
        reader.put("rope.freq_base", base * stretch)
        return {}
    reader.notes.append(
        f"{reader.path}: rope_type dynamic changes nothing within the trained context and is left out"
    )
    return {}


def _linear(reader: _Reader, stated: Mapping[str, Any], head_dim: int) -> Factors:
    reader.put("rope.scaling.type", "linear")
    reader.put("rope.scaling.factor", reader.number(stated.get("factor"), "rope factor", float, 1e-6))
    return {}


def _yarn(reader: _Reader, stated: Mapping[str, Any], head_dim: int) -> Factors:
    """YaRN. GGUF's attn_factor multiplies 1 + 0.1 ln(factor), the default of a config without a factor."""
    factor = reader.number(stated.get("factor"), "rope factor", float, 1e-6)
    reader.put("rope.scaling.type", "yarn")
    reader.put("rope.scaling.factor", factor)
    trained = stated.get(
        "original_max_position_embeddings", reader.config.get("original_max_position_embeddings")
    )
    if trained is None:
        trained = reader.config.get("max_position_embeddings")
    original = reader.number(trained, "original_max_position_embeddings", int, 1)
    reader.put("rope.scaling.original_context_length", original)
    for ours, theirs in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if stated.get(theirs) is not None:
            reader.put(f"rope.scaling.{ours}", reader.number(stated[theirs], theirs, float, 1e-6))
    _check_ramp(reader, head_dim, original, float(stated.get("beta_slow") or 1.0))
    usual = 1 + 0.1 * math.log(max(factor, 1.0))
    wanted = _attention_factor(reader, stated, factor, usual)
    if not math.isclose(wanted, usual):
        reader.put("rope.scaling.attn_factor", wanted / usual)
    whole = reader.whole
    if stated.get("truncate", True) is not whole:
        got = stated.get("truncate", True)
        raise reader.fault(
            "rope truncate", str(whole).lower(), got, "other borders of YaRN are not supported"
        )
    return {}


def _check_ramp(reader: _Reader, head_dim: int, original: int, slow: float) -> None:
    """Refuses a YaRN ramp that ends before it begins: even the fastest pair rotates less than `slow` times in
    the original context. There the implementations of otherwise equal formulas differ.
    """
    base, rotations = reader.values[f"{reader.arch}.rope.freq_base"], original / (2 * math.pi * slow)
    end = head_dim * math.log(rotations) / (2 * math.log(base)) if base > 1 else 0.0
    if (math.ceil(end) if reader.whole else end) < 0:
        raise reader.fault(
            "original_max_position_embeddings", f"at least {2 * math.pi * slow:.0f} for beta_slow", original
        )


def _attention_factor(reader: _Reader, stated: Mapping[str, Any], factor: float, usual: float) -> float:
    if stated.get("attention_factor") is not None:
        return float(reader.number(stated["attention_factor"], "attention_factor", float, 1e-6))
    scale, all_dim = stated.get("mscale"), stated.get("mscale_all_dim")
    if not scale or not all_dim:
        return usual
    over, under = (
        1 + 0.1 * reader.number(value, name, float) * math.log(max(factor, 1.0))
        for value, name in ((scale, "mscale"), (all_dim, "mscale_all_dim"))
    )
    return float(over / under)


def _llama3(reader: _Reader, stated: Mapping[str, Any], head_dim: int) -> Factors:
    """Llama 3.1's scaling as divisors of the frequencies: 1 for wavelengths below original / high, `factor`
    above original / low, a smooth interpolation between.
    """
    factor, low, high = (
        reader.number(stated.get(key), key, float, 1e-6)
        for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    trained = reader.number(
        stated.get("original_max_position_embeddings"), "original_max_position_embeddings", int, 1
    )
    if high <= low:
        raise reader.fault("high_freq_factor", f"more than low_freq_factor {low}", high)
    base = reader.values[f"{reader.arch}.rope.freq_base"]
    waves = 2 * np.pi * base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = (trained / waves - low) / (high - low)
    blend = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(waves < trained / high, 1.0, np.where(waves > trained / low, factor, blend))
    return {"rope_freqs.weight": divisors.astype(np.float32)}


def _longrope(reader: _Reader, stated: Mapping[str, Any], head_dim: int) -> Factors:
    """LongRoPE: one set of divisors for contexts up to the original length, another for longer ones."""
    config = reader.config
    trained = reader.number(
        config.get("original_max_position_embeddings") or stated.get("original_max_position_embeddings"),
        "original_max_position_embeddings",
        int,
        1,
    )
    ratio = reader.values[f"{reader.arch}.context_length"] / trained
    usual = math.sqrt(1 + math.log(ratio) / math.log(trained)) if ratio > 1 and trained > 1 else 1.0
    factor, mscale = stated.get("attention_factor"), stated.get("long_mscale")
    if mscale != stated.get("short_mscale"):
        got = stated.get("short_mscale")
        raise reader.fault("short_mscale", f"long_mscale's {mscale}", got, "two factors are not supported")
    factor = mscale if factor is None else factor
    reader.put("rope.scaling.original_context_length", trained)
    reader.put(
        "rope.scaling.attn_factor",
        usual if factor is None else reader.number(factor, "attention_factor", float, 1e-6),
    )
    found: dict[str, npt.NDArray[np.float32]] = {}
    for kind in ("long", "short"):
        key = f"{kind}_factor"
        listed = stated.get(key)
        if not isinstance(listed, list) or len(listed) != head_dim // 2:
            raise reader.fault(key, f"a list of {head_dim // 2} numbers", listed)
        numbers = [reader.number(value, key, float, 1e-6) for value in listed]
        found[f"rope_factors_{kind}.weight"] = np.array(numbers, np.float32)
    return found


_SCALINGS = {
    "default": _unscaled,
    "none": _unscaled,
    "dynamic": _dynamic,
    "linear": _linear,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
}
