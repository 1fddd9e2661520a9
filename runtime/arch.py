"""What every architecture shares: checked hyper-parameters, weights by name, the loop over layers, the row
pick and the head.

A file in runtime/models/ is one architecture; its name is GGUF's `general.architecture` ("-" becomes "_").
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from satchel.formats.gguf import Metadata
from satchel.quant import FORMATS, ModelError, RequestError
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime import ops
from satchel.runtime.graph import ROWS, TOKENS, Array, Graph, Node, Roots, Type

SAMPLING_BYTES = 40  # sizeof(hal_sampling); tests/runtime/test_sampling.py compares the two


class HParams:
    """Hyper-parameters of one file, read as `<arch>.<key>` with their ranges; a bad value names its key."""

    def __init__(self, metadata: Metadata, arch: str) -> None:
        self.metadata, self.arch = metadata, arch

    def uint(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 24) -> int:
        name = f"{self.arch}.{key}"
        return (
            self.metadata.get_uint(name, low=low, high=high)
            if default is None or name in self.metadata
            else default
        )

    def real(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e30) -> float:
        name = f"{self.arch}.{key}"
        return (
            self.metadata.get_float(name, low=low, high=high)
            if default is None or name in self.metadata
            else default
        )

    def text(self, key: str, default: str) -> str:
        return self.metadata.get_str(f"{self.arch}.{key}", default)

    def each_layer(self, key: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """One number a layer: the file holds an array of that length, or one number for all."""
        name = f"{self.arch}.{key}"
        if default is not None and name not in self.metadata:
            return (default,) * layers
        return self.metadata.get_uints(name, layers, low=1, high=1 << 24)


class Weights(Protocol):
    """Where an architecture finds its tensors: types by name, and values of the few small ones it computes
    with.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    def type(self, name: str) -> Type | None: ...

    def array(self, name: str) -> Array: ...


@dataclass(frozen=True, slots=True)
class Cache:
    """Sizes of what the slots keep: context tokens a slot may hold, and the shared pool of KV blocks."""

    context: int
    slots: int = 1
    block: int = 32
    blocks: int = 0  # 0: enough for every slot to be full
    format: str = "f16"

    @property
    def table_width(self) -> int:
        return -(-self.context // self.block)

    @property
    def pool(self) -> int:
        return self.blocks or self.slots * self.table_width


@dataclass(frozen=True, slots=True)
class Forward:
    """What a built architecture offers; `after` are the states as the step leaves them."""

    tokens: Node
    logits: Node
    after: Roots

    def roots(self, output: str) -> Roots:
        """Roots of a plan that gives sampled "tokens" or all "logits" of the picked rows."""
        return (self.tokens, *self.after) if output == "tokens" else (self.logits, *self.after[:-1])


class Arch:
    """Base of the architectures: a subclass says what one layer does, in terms of blocks.py."""

    rope_style = 1

    def __init__(self, hp: HParams, weights: Weights, cache: Cache) -> None:
        self.hp, self.weights, self.cache, self.graph = hp, weights, cache, Graph()
        self.used: set[str] = set()
        self.written: list[Node] = []
        self.layers = hp.uint("block_count", high=512)
        self.width = hp.uint("embedding_length")
        self.context = hp.uint("context_length", high=1 << 30)
        self.heads = hp.each_layer("attention.head_count", self.layers)
        self.kv_heads = hp.each_layer("attention.head_count_kv", self.layers, self.heads[0])
        self.head_dim = hp.uint("attention.key_length", self.width // self.heads[0], high=4096)
        self.value_dim = hp.uint("attention.value_length", self.head_dim, high=4096)
        if not self.head_dim:
            raise ModelError(
                f"{hp.arch}.attention.head_count: {self.heads[0]} heads are more than embedding_length"
                f" {self.width}; convert the model again"
            )
        self._check_cache(cache)
        self.eps = hp.real("attention.layer_norm_rms_epsilon", low=1e-12, high=1.0)
        for i, (heads, kv) in enumerate(zip(self.heads, self.kv_heads, strict=True)):
            if heads % kv:
                raise ModelError(
                    f"{hp.arch}.attention.head_count_kv: {kv} does not divide head_count {heads} (layer {i})"
                )
        rows = weights.type("token_embd.weight")
        stored = rows.shape[0] if rows is not None else None
        if isinstance(stored, int) and hp.uint("vocab_size", stored) != stored:
            raise ModelError(
                f"{hp.arch}.vocab_size is {hp.uint('vocab_size')}, token_embd.weight has {stored} rows"
            )
        self.ids, self.pos, self.slot = (
            self.input(n, Type((TOKENS,), "i32")) for n in ("ids", "pos", "slot")
        )
        self.table = self.input("table", Type((cache.slots, cache.table_width), "i32"))

    def _check_cache(self, cache: Cache) -> None:
        """RequestError where the cache's format is none, or its blocks do not fit the heads."""
        if cache.format not in CACHE_TYPES:
            raise RequestError(
                f"cache type {cache.format!r} is not known: there are {', '.join(CACHE_TYPES)}"
            )
        block = FORMATS[cache.format].block
        for dim in (self.head_dim, self.value_dim):
            if dim % block:
                raise RequestError(
                    f"a {cache.format} cache holds heads of a multiple of {block}, this model's have {dim}: "
                    "take f16"
                )

    @property
    def vocab(self) -> int:
        """Rows of the embedding: token ids are below it."""
        rows = self.weight("token_embd.weight", None, self.width).shape[0]
        return rows if isinstance(rows, int) else 0

    def layer(self, x: Node, i: int) -> Node:
        raise NotImplementedError

    def embed(self, ids: Node) -> Node:
        return ops.OPS["get_rows"](self.weight("token_embd.weight", None, self.width), ids)

    def head(self, x: Node) -> Node:
        """Logits (R, V) of picked rows (R, D); a file without output.weight reuses the embeddings."""
        tied = self.weights.type("output.weight") is None
        x = ops.OPS["rms_norm"](x, self.weight("output_norm.weight", self.width), eps=self.eps)
        return ops.OPS["linear"](
            x, self.weight("token_embd.weight" if tied else "output.weight", None, self.width)
        )

    def build(self) -> Forward:
        g, call = self.graph, ops.OPS
        ring = self.state("tokens", Type((self.cache.slots, self.cache.context + 1), "i32"))
        rows, params = (
            self.input("rows", Type((ROWS,), "i32")),
            self.input("params", Type((ROWS, SAMPLING_BYTES), "i8")),
        )
        g.label = "embed"
        ring = call["tokens_put"](ring, self.ids, self.slot, self.pos)
        x = self.embed(call["tokens_get"](ring, self.slot, self.pos))
        for i in range(self.layers):
            g.label = f"blk.{i}"
            x = self.layer(x, i)
        g.label = "output"
        logits = self.head(call["pick"](x, rows))
        slot, pos = call["pick"](self.slot, rows), call["pick"](self.pos, rows)
        tokens = call["sample"](logits, ring, slot, pos, params)
        self._reject_unused()
        return Forward(tokens, logits, (*self.written, call["tokens_put"](ring, tokens, slot, pos, shift=1)))

    def input(self, name: str, type: Type) -> Node:
        return self.graph.node("input", (), type, name)

    def state(self, name: str, type: Type) -> Node:
        return self.graph.node("state", (), type, name)

    def weight(self, name: str, *shape: int | None) -> Node:
        """The tensor of this name; its shape must be as given, None meaning any."""
        found = self.weights.type(name)
        if found is None:
            raise ModelError(
                f"{name} is missing: architecture {self.hp.arch} needs it; the file is incomplete"
            )
        if len(found.shape) != len(shape) or any(
            w not in (None, f) for w, f in zip(shape, found.shape, strict=True)
        ):
            wanted = ", ".join("any" if s is None else str(s) for s in shape)
            raise ModelError(
                f"{name}: expected shape ({wanted}), got {found.shape}; the file contradicts itself"
            )
        self.used.add(name)
        return self.graph.node("weight", (), found, name)

    def optional(self, name: str, *shape: int | None) -> Node | None:
        return self.weight(name, *shape) if self.weights.type(name) is not None else None

    def _reject_unused(self) -> None:
        extra = [n for n in self.weights.names if n not in self.used and not n.endswith(IGNORED)]
        if extra:
            raise ModelError(
                f"{extra[0]}: architecture {self.hp.arch} has no use for it ({len(extra)} such tensors); "
                "the file is of another architecture or a newer variant"
            )


# Precomputed rotary tables that old converters wrote; what they hold is computed from the hyper-parameters.
IGNORED = ("rope_freqs.weight", "rotary_emb.inv_freq", "attn_rot_embd.weight")


def architectures() -> list[str]:
    from satchel.runtime import models

    return sorted(m.name for m in pkgutil.iter_modules(models.__path__))


def find_arch(name: str, source: str = "the file") -> type[Arch]:
    """The Arch class of runtime/models/<name>.py; an unknown name lists those that exist."""
    module = name.replace("-", "_")
    path = f"satchel.runtime.models.{module}"
    if not module.isidentifier() or find_spec(path) is None:
        have = ", ".join(architectures())
        raise ModelError(f"{source}: architecture {name!r} is not supported; this version runs {have}")
    members: Mapping[str, Any] = vars(importlib.import_module(path))
    return next(
        c for c in members.values() if isinstance(c, type) and issubclass(c, Arch) and c.__module__ == path
    )
