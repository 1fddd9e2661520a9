"""Sizes of known models, for files of random weights in their shapes (make_shape.py).

A shape says what a GGUF file of the model holds: which tensors, how large, and the keys that a loader needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

SOFTMAX, SIGMOID = 1, 2  # GGUF's values of expert_gating_func


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions."""

    base: float
    dims: int = 0  # of a head that rotate; 0: all
    scaling: str = ""  # "yarn", "linear"
    factor: float = 1.0
    original: int = 0  # yarn: the context before
    log_multiplier: float = 0.0  # yarn: 0.1 mscale_all_dim, on the scores
    frequencies: bool = False  # factors of the frequencies are a tensor (Llama 3)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts in place of the feed-forward."""

    experts: int
    used: int
    ffn: int  # of an expert
    shared: int = 0  # feed-forward size of the shared expert; 0: none
    shared_count: int = 0  # experts that it stands for
    gated: bool = False  # the shared expert has a gate
    dense: int = 0  # leading layers without experts
    groups: int = 0
    groups_used: int = 0
    gating: int = 0  # SOFTMAX, SIGMOID; 0: not stated
    norm: bool | None = None  # weights are divided by their sum; None: not stated
    scale: float = 0.0  # of the weights; 0: not stated
    score_bias: bool = False  # a bias that only the selection sees
    biases: bool = False  # of the router and of the experts
    step: int = 0  # every so many layers have experts; 0: not stated


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention."""

    rank: int
    nope: int
    rope: int
    value: int
    queries: int = 0  # rank of the queries; 0: they are a plain product


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta nets, with attention in every `interval`-th layer."""

    key_heads: int
    value_heads: int
    head_dim: int
    kernel: int
    interval: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.head_dim

    @property
    def inner(self) -> int:
        return self.value_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model. source: the repository of Hugging Face whose config.json has them."""

    source: str
    arch: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope: Rope
    epsilon: float
    context: int = 32768
    whole: int = 0  # layers of the real model, where by default fewer are written
    tied: bool = True  # the output is the embedding
    biased: str = ""  # which of q, k, v and o (the output) have biases
    head_norms: bool = False  # of queries and keys
    gated: bool = False  # attention has an output gate, whose rows are beside the queries'
    sinks: bool = False
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    window: int = 0  # of attention, or its chunk; 0: none
    mixture: Mixture | None = None
    latent: Latent | None = None
    delta: DeltaNet | None = None

    def attends(self, i: int) -> bool:
        """Whether layer i has attention, not a delta net."""
        return self.delta is None or (i + 1) % self.delta.interval == 0


GEMMA_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
POST_NORMS = ("attn_norm", "post_attention_norm")
LLAMA_ROPE = Rope(5e5, frequencies=True)


def gemma3(size: str, layers: int, width: int, heads: int, kv_heads: int, ffn: int) -> Shape:
    return Shape(
        source=f"google/gemma-3-{size}-it",
        arch="gemma3",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=256,
        ffn=ffn,
        vocab=262208,
        rope=Rope(1e6, scaling="linear", factor=8.0),
        epsilon=1e-6,
        context=131072,
        head_norms=True,
        norms=GEMMA_NORMS,
        window=1024,
    )


SHAPES: Mapping[str, Shape] = {
    "llama-3.2-1b": Shape(
        source="meta-llama/Llama-3.2-1B",
        arch="llama",
        layers=16,
        width=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffn=8192,
        vocab=128256,
        rope=Rope(5e5),
        epsilon=1e-5,
    ),
    "llama-3.1-8b": Shape(
        source="meta-llama/Llama-3.1-8B",
        arch="llama",
        layers=32,
        width=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=14336,
        vocab=128256,
        rope=LLAMA_ROPE,
        epsilon=1e-5,
        context=131072,
        tied=False,
    ),
    "llama-3.3-70b": Shape(
        source="meta-llama/Llama-3.3-70B-Instruct",
        arch="llama",
        layers=80,
        width=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        ffn=28672,
        vocab=128256,
        rope=LLAMA_ROPE,
        epsilon=1e-5,
        context=131072,
        tied=False,
    ),
    "qwen2.5-0.5b": Shape(
        source="Qwen/Qwen2.5-0.5B",
        arch="qwen2",
        layers=24,
        width=896,
        heads=14,
        kv_heads=2,
        head_dim=64,
        ffn=4864,
        vocab=151936,
        rope=Rope(1e6),
        epsilon=1e-6,
        biased="qkv",
    ),
    "qwen2.5-7b": Shape(
        source="Qwen/Qwen2.5-7B-Instruct",
        arch="qwen2",
        layers=28,
        width=3584,
        heads=28,
        kv_heads=4,
        head_dim=128,
        ffn=18944,
        vocab=152064,
        rope=Rope(1e6),
        epsilon=1e-6,
        tied=False,
        biased="qkv",
    ),
    "qwen3-0.6b": Shape(
        source="Qwen/Qwen3-0.6B",
        arch="qwen3",
        layers=28,
        width=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        ffn=3072,
        vocab=151936,
        rope=Rope(1e6),
        epsilon=1e-6,
        head_norms=True,
    ),
    "qwen3-8b": Shape(
        source="Qwen/Qwen3-8B",
        arch="qwen3",
        layers=36,
        width=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=12288,
        vocab=151936,
        rope=Rope(1e6),
        epsilon=1e-6,
        context=40960,
        tied=False,
        head_norms=True,
    ),
    "qwen3-14b": Shape(
        source="Qwen/Qwen3-14B",
        arch="qwen3",
        layers=40,
        width=5120,
        heads=40,
        kv_heads=8,
        head_dim=128,
        ffn=17408,
        vocab=151936,
        rope=Rope(1e6),
        epsilon=1e-6,
        context=40960,
        tied=False,
        head_norms=True,
    ),
    "qwen3-30b-a3b": Shape(
        source="Qwen/Qwen3-30B-A3B",
        arch="qwen3moe",
        layers=48,
        width=2048,
        heads=32,
        kv_heads=4,
        head_dim=128,
        ffn=6144,
        vocab=151936,
        rope=Rope(1e6),
        epsilon=1e-6,
        context=40960,
        tied=False,
        head_norms=True,
        mixture=Mixture(128, 8, 768),
    ),
    "qwen3-next-80b-a3b": Shape(
        source="Qwen/Qwen3-Next-80B-A3B-Instruct",
        arch="qwen3next",
        layers=48,
        width=2048,
        heads=16,
        kv_heads=2,
        head_dim=256,
        ffn=5120,
        vocab=151936,
        rope=Rope(1e7, dims=64),
        epsilon=1e-6,
        context=262144,
        tied=False,
        head_norms=True,
        gated=True,
        norms=POST_NORMS,
        mixture=Mixture(512, 10, 512, shared=512, gated=True),
        delta=DeltaNet(key_heads=16, value_heads=32, head_dim=128, kernel=4, interval=4),
    ),
    "deepseek-v2-lite": Shape(
        source="deepseek-ai/DeepSeek-V2-Lite",
        arch="deepseek2",
        layers=27,
        width=2048,
        heads=16,
        kv_heads=1,
        head_dim=576,
        ffn=10944,
        vocab=102400,
        rope=Rope(1e4, 64, "yarn", 40.0, 4096, log_multiplier=0.0707),
        epsilon=1e-6,
        context=163840,
        tied=False,
        mixture=Mixture(
            64, 6, 1408, shared=2816, shared_count=2, dense=1, gating=SOFTMAX, norm=False, scale=1.0
        ),
        latent=Latent(rank=512, nope=128, rope=64, value=128),
    ),
    "deepseek-r1": Shape(
        source="deepseek-ai/DeepSeek-R1",
        arch="deepseek2",
        layers=8,
        whole=61,
        width=7168,
        heads=128,
        kv_heads=1,
        head_dim=576,
        ffn=18432,
        vocab=129280,
        rope=Rope(1e4, 64, "yarn", 40.0, 4096, log_multiplier=0.1),
        epsilon=1e-6,
        context=163840,
        tied=False,
        mixture=Mixture(
            256, 8, 2048, shared=2048, shared_count=1, dense=3, groups=8, groups_used=4, gating=SIGMOID,
            norm=True, scale=2.5, score_bias=True,
        ),
        latent=Latent(rank=512, nope=128, rope=64, value=128, queries=1536),
    ),
    "gpt-oss-20b": Shape(
        source="openai/gpt-oss-20b",
        arch="gpt-oss",
        layers=24,
        width=2880,
        heads=64,
        kv_heads=8,
        head_dim=64,
        ffn=2880,
        vocab=201088,
        rope=Rope(1.5e5, scaling="yarn", factor=32.0, original=4096),
        epsilon=1e-5,
        context=131072,
        tied=False,
        biased="qkvo",
        sinks=True,
        norms=POST_NORMS,
        window=128,
        mixture=Mixture(32, 4, 2880, biases=True),
    ),
    "gemma-3-1b": replace(
        gemma3("1b", 26, 1152, 4, 1, 6912),
        vocab=262144, rope=Rope(1e6), context=32768, window=512,
    ),
    "gemma-3-4b": gemma3("4b", 34, 2560, 8, 4, 10240),
    "gemma-3-12b": gemma3("12b", 48, 3840, 16, 8, 15360),
    "llama-4-scout": Shape(
        source="meta-llama/Llama-4-Scout-17B-16E-Instruct",
        arch="llama4",
        layers=12,
        whole=48,
        width=5120,
        heads=40,
        kv_heads=8,
        head_dim=128,
        ffn=16384,
        vocab=202048,
        rope=LLAMA_ROPE,
        epsilon=1e-5,
        context=10485760,
        tied=False,
        window=8192,
        mixture=Mixture(16, 1, 8192, shared=8192, step=1),
    ),
    # For tests: every kind of tensor in a megabyte.
    "tiny": Shape(
        source="",
        arch="llama",
        layers=2,
        width=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=512,
        vocab=16640,
        rope=Rope(1e4),
        epsilon=1e-5,
    ),
}  # fmt: skip
