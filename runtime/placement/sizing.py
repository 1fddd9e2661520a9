"""Chooses the context length: the requested one, or the model's own as far as memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.compiler.memory import stride_of
from satchel.runtime.device.device import Device
from satchel.runtime.graph import Type
from satchel.runtime.layers.arch import RECURRENT, Arch, Cache, HParams, find_arch
from satchel.runtime.weights.weights import FileWeights

SHARE_OF_MEMORY = 4  # an automatic context takes at most 1/4 of the free memory
LEAST, STEP = 512, 256


def cache_of(o: Options) -> Cache:
    """The KV cache that the options request; context 0 is chosen later."""
    keys, values = o.cache_type_k or o.cache_type, o.cache_type_v or o.cache_type
    return Cache(o.context, o.slots, keys=keys, values=values, batch=o.batch, dense=o.dense_attention)


def cache_bytes(arch: Arch, cache: Cache) -> int:
    """Bytes of the KV cache and recurrent states over all layers. Layers with a window count their smaller
    pools.
    """
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
    """The longest context up to `most`, a multiple of STEP, whose cache takes at most `budget` bytes; LEAST
    if none does.
    """
    low, high = 0, most // STEP
    while low < high:
        middle = (low + high + 1) // 2
        fits = cache_bytes(arch, replace(wanted, context=middle * STEP)) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return max(LEAST, low * STEP)


def check_room(arch: Arch, devices: Sequence[Device], weights: int) -> None:
    """Raises RequestError where the KV cache is larger than all memory of these devices. What is beyond their
    free memory alone may still work: a system gives out pages as they are written. weights: bytes of them.
    """
    infos = [d.info() for d in devices]
    needed, total = cache_bytes(arch, arch.cache), sum(info.memory_total for info in infos)
    if not total or needed <= total:
        return
    free = max(0, sum(info.memory_free for info in infos) - weights)
    fits = affordable(arch, arch.cache, arch.cache.context, free)
    raise RequestError(
        f"context {arch.cache.context}: expected a KV cache within {total / 1e9:,.2f} GB of memory, got"
        f" {needed / 1e9:,.2f} GB; a context (-c) of {fits} fits the {free / 1e9:,.2f} GB beside the weights;"
        " with a quantized cache (-ctk q8_0 -ctv q8_0) or fewer slots (-np) a longer one does"
    )


def size(gguf: GGUF, wanted: Cache, free: int) -> tuple[Arch, tuple[str, ...]]:
    """The file's architecture with its cache, and notes for the user about the choice.

    wanted: context 0 means automatic.
    free: bytes of device memory that remain beside the weights.
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
