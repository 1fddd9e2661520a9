"""How much context a model gets: what was asked for, or the model's own as far as memory allows."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.compiler.memory import stride_of
from satchel.runtime.graph import Type
from satchel.runtime.layers.arch import RECURRENT, Arch, Cache, HParams, find_arch
from satchel.runtime.weights.weights import FileWeights

SHARE_OF_MEMORY = 4  # a context that nobody chose takes at most one part in so many of the free memory
LEAST, STEP = 512, 256


def cache_of(o: Options) -> Cache:
    """What the options ask of the KV cache; context 0 is still to be chosen."""
    keys, values = o.cache_type_k or o.cache_type, o.cache_type_v or o.cache_type
    return Cache(o.context, o.slots, keys=keys, values=values, batch=o.batch, dense=o.dense_attention)


def cache_bytes(arch: Arch, cache: Cache) -> int:
    """Bytes of what all slots keep, over all layers; one with a window has blocks for that."""
    total = 0
    for i in range(arch.layers):
        if states := arch.recurrent_states(i):
            total += 4 * sum(map(prod, states)) * cache.pool_of(RECURRENT)
            continue
        window = arch.window(i)
        pool = cache.pool_of(window if window < cache.context else 0)
        row = sum(h * stride_of(Type((1, dim), format)) for h, dim, format in arch.kept(i, cache))
        total += row * cache.block * pool
    return total


def affordable(arch: Arch, wanted: Cache, most: int, budget: int) -> int:
    """The longest context up to `most`, a multiple of STEP, whose cache takes no more bytes than `budget`;
    LEAST where that is none.
    """
    low, high = 0, most // STEP
    while low < high:
        middle = (low + high + 1) // 2
        fits = cache_bytes(arch, replace(wanted, context=middle * STEP)) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return max(LEAST, low * STEP)


def size(gguf: GGUF, wanted: Cache, free: int) -> tuple[Arch, tuple[str, ...]]:
    """The file's architecture with its cache, and what a user should know about the choice.

    wanted: context 0 leaves the choice to us. free: bytes of the device's memory that nobody uses and that
    the weights leave.
    """
    name = gguf.metadata.get_str("general.architecture")
    build, hp, weights = find_arch(name, str(gguf.path)), HParams(gguf.metadata, name), FileWeights(gguf)
    trained = hp.uint("context_length", high=1 << 30)

    def with_context(context: int) -> Arch:
        return build(hp, weights, replace(wanted, context=context))

    arch = with_context(wanted.context or trained)
    if wanted.context > trained:
        beyond = f"context {wanted.context} is beyond the {trained} tokens that the model was trained for"
        return arch, (*arch.notes, beyond)
    budget = max(0, free) // SHARE_OF_MEMORY
    if wanted.context or cache_bytes(arch, arch.cache) <= budget:
        return arch, arch.notes
    most = affordable(arch, wanted, trained, budget)
    if trained <= most:
        return arch, arch.notes
    reason = "a quarter of the free memory holds no more KV cache; -c sets another"
    return with_context(most), (
        *arch.notes,
        f"context is {most} of the model's {trained} tokens: {reason}",
    )
