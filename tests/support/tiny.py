"""A tiny random model of any architecture, created in memory: hyper-parameters, tensors, and cache sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import tiny_grown

from satchel.formats.gguf import Metadata
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.engine.engine import Engine
from satchel.runtime.graph import Array, Type
from satchel.runtime.layers.arch import Cache, HParams, find_arch
from satchel.runtime.weights.resident import Uploaded

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, LAYERS, CONTEXT = 256, 4, 2, 64, 512, 288, 3, 96
EXPERTS, USED, EXPERT_FFN = 7, 3, 256


@dataclass
class TinyWeights:
    """Stands in for a file's tensors: random values in the requested block formats."""

    tensors: dict[str, Array] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def type(self, name: str) -> Type | None:
        return Type(self.shapes[name], self.formats[name]) if name in self.tensors else None

    def array(self, name: str) -> Array:
        return FORMATS[self.formats[name]].decode(self.tensors[name])

    def changeable(self, name: str) -> Array:
        """The tensor's blocks as a private copy that a test may change."""
        self.tensors[name] = self.tensors[name].copy()
        return self.tensors[name]

    def put(self, name: str, values: Array, format: str = "f32") -> None:
        encode = FORMATS[format].encode
        assert encode is not None, format
        self.tensors[name] = encode(np.ascontiguousarray(values, np.float32), None)
        self.formats[name], self.shapes[name] = format, values.shape


def metadata(arch: str, **extra: object) -> Metadata:
    mixture = {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": EXPERT_FFN}
    values: dict[str, object] = {
        "block_count": LAYERS,
        "embedding_length": WIDTH,
        "context_length": CONTEXT,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        **(mixture if arch == "qwen3moe" else {}),
        **(tiny_grown.SPECS[arch].metadata if arch in tiny_grown.SPECS else {}),
        **{k.replace("__", "."): v for k, v in extra.items()},
    }
    return Metadata.of({"general.architecture": arch, **{f"{arch}.{k}": v for k, v in values.items()}})  # type: ignore[dict-item]


def weights(
    arch: str, format: str = "f32", seed: int = 0, tied: bool = True, mixed: bool = False
) -> TinyWeights:
    """Random tensors under the names that the architecture reads. mixed: V and the down projection have
    another format. Tests share the arrays, which are read-only.
    """
    sizes = (WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, LAYERS, EXPERTS, EXPERT_FFN)
    made = _weights(arch, format, seed, tied, mixed, sizes)
    return TinyWeights(dict(made.tensors), dict(made.formats), dict(made.shapes))


@lru_cache(maxsize=48)  # all architectures in one format; some 10 MB each
def _weights(
    arch: str, format: str, seed: int, tied: bool, mixed: bool, sizes: tuple[int, ...]
) -> TinyWeights:
    """sizes: values of this module's constants, which a test may change."""
    made = _random(arch, format, seed, tied, mixed)
    for array in made.tensors.values():
        array.flags.writeable = False
    return made


def _random(arch: str, format: str, seed: int, tied: bool, mixed: bool) -> TinyWeights:
    rng, w = np.random.default_rng(seed), TinyWeights()
    other = {"q4_k": "q6_k", "q8_0": "q4_0"}.get(format, format) if mixed else format
    if arch in tiny_grown.SPECS:
        tiny_grown.grow(metadata(arch), arch, w, format, seed, tied, other)
        return w

    def put(name: str, *shape: int, fmt: str = format, scale: float = 0.05, shift: float = 0.0) -> None:
        w.put(name, (rng.standard_normal(shape) * scale + shift).astype(np.float32), fmt)

    put("token_embd.weight", VOCAB, WIDTH)
    put("output_norm.weight", WIDTH, fmt="f32", scale=0.1, shift=1)
    if not tied:
        put("output.weight", VOCAB, WIDTH)
    for i in range(LAYERS):
        p = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm"):
            put(f"{p}{norm}.weight", WIDTH, fmt="f32", scale=0.1, shift=1)
        for name, rows, cols, fmt in (
            ("attn_q", HEADS * HEAD_DIM, WIDTH, format),
            ("attn_k", KV_HEADS * HEAD_DIM, WIDTH, format),
            ("attn_v", KV_HEADS * HEAD_DIM, WIDTH, other),
            ("attn_output", WIDTH, HEADS * HEAD_DIM, format),
        ):
            put(f"{p}{name}.weight", rows, cols, fmt=fmt)
        if arch == "qwen3moe":
            put(f"{p}ffn_gate_inp.weight", EXPERTS, WIDTH, fmt="f32", scale=0.2)
        kind, size, lead = ("_exps", EXPERT_FFN, (EXPERTS,)) if arch == "qwen3moe" else ("", FFN, ())
        for name, rows, cols, fmt in (
            ("ffn_gate", size, WIDTH, format),
            ("ffn_up", size, WIDTH, format),
            ("ffn_down", WIDTH, size, other),
        ):
            put(f"{p}{name}{kind}.weight", *lead, rows, cols, fmt=fmt)
        if arch == "qwen2":
            for name, rows in (("attn_q", HEADS), ("attn_k", KV_HEADS), ("attn_v", KV_HEADS)):
                put(f"{p}{name}.bias", rows * HEAD_DIM, fmt="f32")
        if arch in ("qwen3", "qwen3moe"):
            for name in ("attn_q_norm", "attn_k_norm"):
                put(f"{p}{name}.weight", HEAD_DIM, fmt="f32", scale=0.1, shift=1)
    return w


def build(arch: str, w: TinyWeights, cache: Cache, **extra: object):  # type: ignore[no-untyped-def]
    return find_arch(arch)(HParams(metadata(arch, **extra), arch), w, cache).build()


def engine(  # type: ignore[no-untyped-def]
    arch: str,
    w: TinyWeights,
    cache: Cache,
    *devices: Device,
    wanted=None,
    batch: int = 64,
    lanes: int = 0,
    **options: Any,
) -> Engine:
    """An engine over a tiny model, which owns the devices. options: others of Engine."""
    made = build(arch, w, cache)
    return Engine(made, cache, devices, Uploaded(w.tensors), wanted, batch=batch, lanes=lanes, **options)
