"""How much context a model gets: what was asked for, or the model's own as far as memory allows."""

from __future__ import annotations

from satchel.formats.gguf import GGUF
from satchel.runtime.arch import Arch, Cache, HParams, find_arch
from satchel.runtime.compiler.memory import stride_of
from satchel.runtime.graph import Type
from satchel.runtime.weights import FileWeights

SHARE_OF_MEMORY = 4  # a context that nobody chose takes at most one part in so many of the free memory
LEAST, STEP = 512, 256


def token_bytes(arch: Arch) -> int:
    """Bytes of keys and values that one token of one slot takes, over all layers."""
    per_head = sum(stride_of(Type((1, dim), arch.cache.format)) for dim in (arch.head_dim, arch.value_dim))
    return per_head * sum(arch.kv_heads)


def size(gguf: GGUF, wanted: Cache, free: int) -> tuple[Arch, tuple[str, ...]]:
    """The file's architecture with its cache, and what a user should know about the choice.

    wanted: context 0 leaves the choice to us. free: bytes of the device's memory that nobody uses and that
    the weights leave.
    """
    name = gguf.metadata.get_str("general.architecture")
    build, hp, weights = find_arch(name, str(gguf.path)), HParams(gguf.metadata, name), FileWeights(gguf)
    trained = hp.uint("context_length", high=1 << 30)

    def with_context(context: int) -> Arch:
        return build(hp, weights, Cache(context, wanted.slots, wanted.block, wanted.blocks, wanted.format))

    arch = with_context(wanted.context or trained)
    if wanted.context > trained:
        beyond = f"context {wanted.context} is beyond the {trained} tokens that the model was trained for"
        return arch, (beyond,)
    affordable = max(0, free) // SHARE_OF_MEMORY // (token_bytes(arch) * wanted.slots) // STEP * STEP
    affordable = max(LEAST, affordable)
    if wanted.context or trained <= affordable:
        return arch, ()
    reason = "a quarter of the free memory holds no more KV cache; -c sets another"
    return with_context(affordable), (f"context is {affordable} of the model's {trained} tokens: {reason}",)
