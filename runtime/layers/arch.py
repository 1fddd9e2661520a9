"""Base of all architectures: checked hyper-parameters, weights by name, the loop over layers, the gather of
output rows, and the head.

A file in runtime/models/ is one architecture; its name is GGUF's `general.architecture` ("-" becomes "_").
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import Metadata, ValueType
from satchel.quant import FORMATS
from satchel.quant.cache import CACHE_TYPES
from satchel.runtime import ops
from satchel.runtime.graph import ROWS, TOKENS, Array, Graph, Node, Roots, Type, leaves
from satchel.runtime.layers.unread_keys import check_unread_keys
from satchel.runtime.sampling.logprobs import TOP

EDITS = 1024  # most logit edits per row and step
REWIND = 64  # tokens that a slot can always be rewound, beyond those of the last step
RECURRENT = 1 << 30  # pseudo-window of layers with recurrent states instead of a KV cache
PAGES = 6  # state pages per slot: those it reads, writes and sets aside, and those of the prefix tree
AdapterScales = tuple[float, ...]  # one per adapter and control vector of a model; (): none is used
SEGMENT_IDS = (
    "segment_ids"  # input of encoders with token types: 0 for tokens of the first text of a pair, then 1
)
SAMPLING_BYTES = 352  # sizeof(hal_sampling); tests/runtime/sampling/test_sampling.py compares the two
WITH_ADAPTERS = "adapters "  # prefix of an output's name: the graph with adapters


class HParams:
    """Hyper-parameters of one file, read as `<arch>.<key>` and checked against a range. An error names the
    key. all_layers: the graph has every layer, so each key that changes the results is read.
    """

    all_layers = True

    def __init__(self, metadata: Metadata, arch: str) -> None:
        self.metadata, self.arch = metadata, arch
        self.read_keys: set[str] = set()  # for check_unread_keys()

    def _name(self, key: str) -> str:
        self.read_keys.add(key)
        return f"{self.arch}.{key}"

    def uint(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 24) -> int:
        name = self._name(key)
        return (
            self.metadata.get_uint(name, low=low, high=high)
            if default is None or name in self.metadata
            else default
        )

    def real(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e30) -> float:
        name = self._name(key)
        return (
            self.metadata.get_float(name, low=low, high=high)
            if default is None or name in self.metadata
            else default
        )

    def text(self, key: str, default: str) -> str:
        return self.metadata.get_str(self._name(key), default)

    def flag(self, key: str, default: bool) -> bool:
        return self.metadata.get_bool(self._name(key), default)

    def has_key(self, key: str) -> bool:
        """Whether the file has this key."""
        return self._name(key) in self.metadata

    def has_array(self, key: str) -> bool:
        """Whether the key has a value for each layer."""
        name = self._name(key)
        return name in self.metadata and self.metadata.typed(name).type is ValueType.ARRAY

    def flags(self, key: str, layers: int) -> tuple[bool, ...]:
        """One boolean per layer."""
        found = self.metadata.get_array(self._name(key), kind="bool", length=layers)
        return tuple(bool(f) for f in found.tolist())

    def each_layer(self, key: str, layers: int, default: int | None = None, low: int = 1) -> tuple[int, ...]:
        """One number per layer: the file holds an array of that length, or one number for all layers."""
        name = self._name(key)
        if default is not None and name not in self.metadata:
            return (default,) * layers
        return self.metadata.get_uints(name, layers, low=low, high=1 << 24)


class Weights(Protocol):
    """Source of an architecture's tensors: types by name, and values of the few small ones that the graph
    embeds.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    def type(self, name: str) -> Type | None: ...

    def array(self, name: str) -> Array: ...


class Additions(Protocol):
    """Adapters and control vectors that some requests use; see runtime/adapters/adapters.py."""

    def product(self, x: Node, y: Node, weight: str) -> Node: ...

    def rows(self, ids: Node, y: Node, weight: str) -> Node: ...

    def steer(self, x: Node, layer: int) -> Node: ...

    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Cache:
    """Capacity and formats of the KV cache and of the recurrent states."""

    context: int  # most tokens of a slot
    slots: int = 1
    block: int = 32  # tokens per KV block
    blocks: int = 0  # size of the pool that the slots share; 0: enough for all to be full, or for one
    keys: str = "f16"  # format of the keys
    values: str = "f16"  # format of the values
    batch: int = 512  # most tokens of a step
    dense: bool = False  # layers with sparse attention use full attention
    unified: bool = False  # a pool without `blocks` has room for one full slot

    @property
    def table_width(self) -> int:
        return -(-self.context // self.block)

    @property
    def pool(self) -> int:
        """Blocks for layers with full attention."""
        return self.blocks or (1 if self.unified else self.slots) * self.table_width

    @property
    def capacity(self) -> int:
        """Tokens for which the pool has room."""
        return self.pool * self.block

    def pool_of(self, window: int) -> int:
        """Blocks for layers with this window; 0: full attention. Enough for all slots during a step, and for
        one window per slot in the prefix tree.
        """
        if not window:
            return self.pool
        if window == RECURRENT:
            return self.slots * min(self.table_width + 1, PAGES)
        each = -(-(window + REWIND) // self.block) + 2
        return min(self.slots * self.table_width, 2 * self.slots * each + -(-self.batch // self.block))

    @property
    def label(self) -> str:
        """The format, or both if keys and values differ."""
        return self.keys if self.keys == self.values else f"{self.keys} keys, {self.values} values"


def table_name(window: int) -> str:
    """Name of the plan input that holds the block table of layers with this window."""
    return "table.recurrent" if window == RECURRENT else f"table.{window}" if window else "table"


def windows_of(roots: Roots) -> tuple[int, ...]:
    """Windows of a graph's layer groups, ascending; 0 stands for full attention."""
    names = {n.name.partition(".")[2] for n in leaves(roots, "input") if n.name.split(".")[0] == "table"}
    return tuple(sorted(RECURRENT if name == "recurrent" else int(name or 0) for name in names)) or (0,)


@dataclass(frozen=True, slots=True)
class Forward:
    """Outputs of a built architecture."""

    tokens: Node
    logits: Node
    after: Roots  # the states after the step
    host_sampling: Roots = ()
    scores: Node | None = None
    hidden: Node | None = None  # the gathered rows (R, D) after the last norm
    with_adapters: Forward | None = None  # the same outputs with adapters
    causal: bool = True  # as Arch.causal

    @property
    def activations(self) -> int:
        """Default bits of the activations of quantized weights. Encoders take 16: their results are compared
        to the last digit, and a text costs only one step.
        """
        return 8 if self.causal else 16

    def roots(self, output: str) -> Roots:
        """Roots of the plan for an output:

        "tokens": sampled token ids.
        "logits": (R, V) of the gathered rows.
        "host_sampling": tokens with their nll_bits, logprobs, and logits that the host may change before
        sampling.
        "scores": log-probabilities of given targets.
        "hidden": the gathered rows (R, D) after the last norm.
        """
        if output.startswith(WITH_ADAPTERS) and self.with_adapters is not None:
            return self.with_adapters.roots(output.removeprefix(WITH_ADAPTERS))
        if output == "hidden" and self.hidden is not None:
            return (self.hidden, *self.after[:-1])
        if output == "tokens":
            return (self.tokens, *self.after)
        if output == "host_sampling":
            return self.host_sampling
        first = self.scores if output == "scores" and self.scores is not None else self.logits
        return (first, *self.after[:-1])


class Arch:
    """Base of the architectures. A subclass defines one layer in terms of blocks.py.

    predicting: number of layers after the last one for multi-token prediction (MTP); they are not run.
    """

    rope_style = 1  # style of the op rope
    whole_ramp = True  # YaRN's ramp begins and ends at whole pairs
    centered = False  # norms are LayerNorm, with an optional bias, instead of RMSNorm
    epsilon = ""  # GGUF's key of the norms' epsilon, if it is not the usual one of their kind
    causal = True  # False: an encoder, which reads a text in one step and generates nothing
    hybrid = False  # layers without KV heads are recurrent
    ranks = "tanh"  # activation after the first matrix of a classifier, see runtime/tasks/rerank.py

    def __init__(self, hp: HParams, weights: Weights, cache: Cache) -> None:
        self.hp, self.weights, self.cache, self.graph = hp, weights, cache, Graph()
        self.used: set[str] = set()
        self.written: list[Node] = []
        self.additions: Additions | None = None
        self.notes: tuple[str, ...] = ()  # parts of the file that are not run, for the user
        self.layers = hp.uint("block_count", high=512)
        self.predicting = hp.uint("nextn_predict_layers", 0, low=0, high=self.layers - 1)
        self.layers -= self.predicting
        if self.predicting:
            self.notes = (
                f"{self.predicting} of the file's layers are for multi-token prediction: they are not run",
            )
        self.width = hp.uint("embedding_length")
        self.context = hp.uint("context_length", high=1 << 30)
        if hp.flag("attention.causal", self.causal) != self.causal:
            raise ModelError(f"{hp.arch}.attention.causal: expected {self.causal}, got {not self.causal}")
        self._read_heads(hp)
        self._check_cache(cache)
        kind = "layer_norm_epsilon" if self.centered else "layer_norm_rms_epsilon"
        self.eps = hp.real(f"attention.{self.epsilon or kind}", low=1e-13, high=1.0)
        rows = weights.type("token_embd.weight")
        stored = rows.shape[0] if rows is not None else None
        if isinstance(stored, int) and hp.uint("vocab_size", stored) != stored:
            raise ModelError(
                f"{hp.arch}.vocab_size is {hp.uint('vocab_size')}, token_embd.weight has {stored} rows"
            )
        self.ids, self.pos, self.slot = (
            self.input(n, Type((TOKENS,), "i32")) for n in ("ids", "pos", "slot")
        )

    def _read_heads(self, hp: HParams) -> None:
        """Reads the number and size of attention heads."""
        stored = self.layers + self.predicting
        self.heads = hp.each_layer("attention.head_count", stored)[: self.layers]
        key, least = "attention.head_count_kv", 0 if self.hybrid else 1
        self.kv_heads = hp.each_layer(key, stored, self.heads[0], low=least)[: self.layers]
        self.head_dim = hp.uint("attention.key_length", self.width // self.heads[0], high=4096)
        self.value_dim = hp.uint("attention.value_length", self.head_dim, high=4096)
        if not self.head_dim:
            raise ModelError(
                f"{hp.arch}.attention.head_count: {self.heads[0]} heads are more than embedding_length"
                f" {self.width}; convert the model again"
            )
        for i, (heads, kv) in enumerate(zip(self.heads, self.kv_heads, strict=True)):
            if kv and heads % kv:
                raise ModelError(
                    f"{hp.arch}.attention.head_count_kv: {kv} does not divide head_count {heads} (layer {i})"
                )

    def _check_cache(self, cache: Cache) -> None:
        """Raises RequestError if a cache format is unknown or its blocks do not divide the heads."""
        for format, dim in ((cache.keys, self.head_dim), (cache.values, self.value_dim)):
            if format not in CACHE_TYPES:
                raise RequestError(f"cache type {format!r} is not known: there are {', '.join(CACHE_TYPES)}")
            if dim % FORMATS[format].block:
                raise RequestError(
                    f"a {format} cache holds heads of a multiple of {FORMATS[format].block}, this model's "
                    f"have {dim}: take f16"
                )

    def check_generates(self) -> None:
        """Raises RequestError if the model is an encoder, which generates no text."""
        if not self.causal:
            raise RequestError(f"a {self.hp.arch} model makes embeddings, not text: call embed() or rerank()")

    @property
    def vocab(self) -> int:
        """Vocabulary size: rows of the embedding."""
        rows = self.weight("token_embd.weight", None, self.width).shape[0]
        return rows if isinstance(rows, int) else 0

    def layer(self, x: Node, i: int) -> Node:
        raise NotImplementedError

    def window(self, i: int) -> int:
        """Sliding window of layer i: the positions that a token attends to, its own included; 0: all."""
        return 0

    def rotates(self, i: int) -> bool:
        """Whether layer i applies RoPE to queries and keys."""
        return True

    def rope_base(self, i: int) -> float:
        """RoPE base of layer i if it has its own, without the file's scaling; 0: the file's."""
        return 0.0

    def adjust(self, q: Node, k: Node, i: int) -> tuple[Node, Node]:
        """Hook: changes queries and keys of layer i after RoPE."""
        return q, k

    def alibi(self, i: int) -> float:
        """Factor on the ALiBi slopes of layer i; 0: the layer has no ALiBi."""
        return 0.0

    def chunk(self, i: int) -> int:
        """Chunk length of layer i's chunked attention; 0: it is not chunked."""
        return 0

    def recurrent_states(self, i: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the float32 recurrent states of layer i; (): the layer has attention and a KV cache."""
        return ()

    def group(self, i: int) -> int:
        """Window of layer i; 0 if it is as long as the context."""
        if self.recurrent_states(i):
            return RECURRENT
        window = self.window(i)
        return window if self.causal and window < self.cache.context else 0

    def kept(self, i: int, cache: Cache) -> tuple[tuple[int, int, str], ...]:
        """Contents of the paged cache per token in layer i: (heads, head size, format) of each tensor."""
        heads = self.kv_heads[i]
        return ((heads, self.head_dim, cache.keys), (heads, self.value_dim, cache.values))

    def table(self, window: int) -> Node:
        """Block table (S, B) of layers with this window."""
        return self.input(table_name(window), Type((self.cache.slots, self.cache.table_width), "i32"))

    def embed(self, ids: Node) -> Node:
        name = "token_embd.weight"
        x = ops.get_rows(self.weight(name, None, self.width), ids)
        return x if self.additions is None else self.additions.rows(ids, x, name)

    def added(self, x: Node, y: Node, weight: str) -> Node:
        """y = x @ w.T plus the contribution of adapters to this weight."""
        return y if self.additions is None else self.additions.product(x, y, weight)

    def norm(self, x: Node, name: str) -> Node:
        """Norm of x over its last dimension, with the weight of this name."""
        w = self.weight(f"{name}.weight", x.width)
        if not self.centered:
            return ops.rms_norm(x, w, eps=self.eps)
        bias = self.optional(f"{name}.bias", x.width)
        return ops.layer_norm(x, w, *([] if bias is None else [bias]), eps=self.eps)

    def output_norm(self, x: Node) -> Node:
        """Last norm, on the gathered rows (R, D)."""
        return self.norm(x, "output_norm")

    def head(self, x: Node) -> Node:
        """Logits (R, V) of the gathered rows (R, D). Without output.weight, the embedding is the head (tied
        weights).
        """
        tied = self.weights.type("output.weight") is None
        x, name = self.output_norm(x), "token_embd.weight" if tied else "output.weight"
        y = ops.linear(x, self.weight(name, None, self.width))
        bias = None if tied else self.optional("output.bias", y.width)
        y = y if bias is None else ops.add(y, bias)
        return y if tied else self.added(x, y, name)

    def build_with(self, additions: Additions | None) -> Forward:
        """build(), and if there are adapters, the same graph again with them."""
        plain = self.build()
        if additions is None:
            return plain
        self.written, self.additions = [], additions
        adapted = self.build()
        additions.check()
        return replace(plain, with_adapters=adapted)

    def build(self) -> Forward:
        g = self.graph
        ring = self.state("tokens", Type((self.cache.slots, self.cache.context + 1), "i32"))
        rows, params = (
            self.input("rows", Type((ROWS,), "i32")),
            self.input("params", Type((ROWS, SAMPLING_BYTES), "i8")),
        )
        g.label = "embed"
        ring = ops.tokens_put(ring, self.ids, self.slot, self.pos)
        x = self.embed(ops.tokens_get(ring, self.slot, self.pos))
        for i in range(self.layers):
            g.label = f"blk.{i}"
            x = self.layer(x, i)
            x = x if self.additions is None else self.additions.steer(x, i)
        g.label = "output"
        gathered = ops.gather_rows(x, rows)
        logits = self.head(gathered)
        slot, pos = ops.gather_rows(self.slot, rows), ops.gather_rows(self.pos, rows)
        tokens = ops.sample(logits, ring, slot, pos, params)
        self._reject_unused()
        after = (*self.written, ops.tokens_put(ring, tokens, slot, pos, shift=1))
        host_sampling = self._host_sampling(logits, ring, slot, pos, params)
        targets = self.input("targets", Type((ROWS,), "i32"))
        scores = ops.logprobs(logits, targets, k=self._top(logits))
        hidden = self.output_norm(gathered)
        return Forward(tokens, logits, after, host_sampling, scores, hidden, causal=self.causal)

    def _host_sampling(self, logits: Node, ring: Node, slot: Node, pos: Node, params: Node) -> Roots:
        """Roots of the plan whose sampling waits for the host; see runtime/engine/host_sampling.py."""
        bitmask = self.input("token_bitmask", Type((ROWS, -(-logits.width // 32)), "i32"))
        edits = self.input("edits", Type((ROWS, EDITS, 2), "i32"))
        drawn = ops.sample_masked(logits, ring, slot, pos, params, bitmask, edits)
        tokens = ops.reshape(ops.cols(drawn, start=0, size=1), shape=())
        report = ops.logprobs(logits, tokens, params, k=self._top(logits))
        put = ops.tokens_put(ring, tokens, slot, pos, shift=1)
        return (drawn, report, logits, *self.written, put)

    def _top(self, logits: Node) -> int:
        return min(TOP, logits.width)

    def input(self, name: str, type: Type) -> Node:
        return self.graph.node("input", (), type, name)

    def state(self, name: str, type: Type) -> Node:
        return self.graph.node("state", (), type, name)

    def weight(self, name: str, *shape: int | None) -> Node:
        """The tensor of this name. Its shape must match; None matches any size."""
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
        """Raises ModelError for unused tensors, and for unread keys that would change the results."""
        hp = self.hp
        notes = check_unread_keys(hp.metadata, hp.arch, hp.read_keys, self.context) if hp.all_layers else ()
        self.notes += tuple(note for note in notes if note not in self.notes)
        behind = tuple(f"blk.{self.layers + i}." for i in range(self.predicting))
        unused = (n for n in self.weights.names if n not in self.used and not n.endswith(IGNORED))
        extra = [n for n in unused if not n.startswith(behind or "/")]
        if extra:
            raise ModelError(
                f"{extra[0]}: architecture {self.hp.arch} has no use for it ({len(extra)} such tensors); "
                "the file is of another architecture or a newer variant"
            )


# Tensors that build() need not use: RoPE tables of old converters, which follow from the hyper-parameters,
# and the classifier of a reranker, which runtime/tasks/rerank.py applies.
IGNORED = (
    *("rope_freqs.weight", "rotary_emb.inv_freq", "attn_rot_embd.weight"),
    *(f"cls.{part}" for part in ("weight", "bias", "output.weight", "output.bias")),
    *(f"cls.norm.{part}" for part in ("weight", "bias")),
)


def architectures() -> list[str]:
    from satchel.runtime import models

    return sorted(m.name for m in pkgutil.iter_modules(models.__path__))


# Unsupported multimodal architectures, with the text of their error.
SEEING = {
    "clip": "the picture or sound part of a model (mmproj): give the file of its language model",
    "mllama": "a model of text and pictures (Llama 3.2 Vision): take a text model",
    **dict.fromkeys(
        ("qwen2vl", "qwen3vl", "qwen3vlmoe"), "a model of text and pictures (Qwen-VL): take a text model"
    ),
}


def find_arch(name: str, source: str = "the file") -> type[Arch]:
    """The Arch class of runtime/models/<name>.py; an unknown name lists those that exist."""
    module = name.replace("-", "_")
    path = f"satchel.runtime.models.{module}"
    if name in SEEING:
        raise ModelError(
            f"{source}: architecture {name!r} is not supported: pictures are not, and it is {SEEING[name]}"
        )
    if not module.isidentifier() or module.startswith("_") or find_spec(path) is None:
        have = ", ".join(architectures())
        raise ModelError(f"{source}: architecture {name!r} is not supported; this version runs {have}")
    members: Mapping[str, Any] = vars(importlib.import_module(path))
    return next(
        c for c in members.values() if isinstance(c, type) and issubclass(c, Arch) and c.__module__ == path
    )
