"""Chooses the context length, the requested one or the model's own as far as memory allows, and the size of
the KV cache that the slots share.
"""

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
from satchel.runtime.placement.options import ONE_CONTEXT, KVBudget, read_kv_budget
from satchel.runtime.weights.weights import FileWeights

SHARE_OF_MEMORY = 4  # an automatic context takes at most 1/4 of the free memory
LEAST, STEP = 512, 256
AUTO_BUDGET = KVBudget()


def cache_of(o: Options) -> Cache:
    """The KV cache that the options request; context 0 is chosen later, and a pool of a given size too."""
    keys, values = o.cache_type_k or o.cache_type, o.cache_type_v or o.cache_type
    unified = read_kv_budget(o.kv_budget).word == ONE_CONTEXT
    return Cache(
        o.context,
        o.slots,
        keys=keys,
        values=values,
        batch=o.batch,
        dense=o.dense_attention,
        unified=unified,
    )


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


def blocks_within(arch: Arch, budget: KVBudget) -> int:
    """Blocks of the pool that a budget of tokens or bytes has room for. 0 where no layer attends to all
    positions: the cache then has the same size whatever the pool's is. RequestError where not one block fits.
    """
    one, two = (cache_bytes(arch, replace(arch.cache, blocks=n)) for n in (1, 2))
    each = two - one
    if not each:
        return 0
    if budget.tokens is not None:
        return -(-budget.tokens // arch.cache.block)
    left = (budget.bytes or 0) - (one - each)
    if left < each:
        raise RequestError(
            f"kv_budget is {budget.word}: expected at least {one / 1e6:,.1f} MB, room for"
            f" {arch.cache.block} tokens beside the windows and states of {arch.cache.slots} slots; raise it,"
            " or load fewer slots"
        )
    return left // each


def check_room(arch: Arch, devices: Sequence[Device], weights: int) -> None:
    """Raises RequestError where the KV cache is larger than all memory of these devices. What is beyond their
    free memory alone may still work: a system gives out pages as they are written. weights: bytes of them.
    """
    infos = [d.info() for d in devices]
    needed, total = cache_bytes(arch, arch.cache), sum(info.memory_total for info in infos)
    if not total or needed <= total:
        return
    free = max(0, sum(info.memory_free for info in infos) - weights)
    if arch.cache.blocks:
        raise RequestError(
            f"kv_budget: expected a KV cache within {total / 1e9:,.2f} GB of memory, got"
            f" {needed / 1e9:,.2f} GB; lower it to the {free / 1e9:,.2f} GB beside the weights"
        )
    fits = affordable(arch, arch.cache, arch.cache.context, free)
    raise RequestError(
        f"context {arch.cache.context}: expected a KV cache within {total / 1e9:,.2f} GB of memory, got"
        f" {needed / 1e9:,.2f} GB; a context (-c) of {fits} fits the {free / 1e9:,.2f} GB beside the weights;"
        " with a quantized cache (-ctk q8_0 -ctv q8_0) or fewer slots (-np) a longer one does"
    )


def size(
    gguf: GGUF, wanted: Cache, free: int, budget: KVBudget = AUTO_BUDGET
) -> tuple[Arch, tuple[str, ...]]:
    """The file's architecture with its cache, and notes for the user about the choice.

    wanted: context 0 means automatic.
    free: bytes of device memory that remain beside the weights. budget: the size of the pool, where the user
    gives one; an automatic context is as long as it has room for.

    Raises RequestError where the budget has no room for the context that the user wants.
    """
    name = gguf.metadata.get_str("general.architecture")
    build, hp, weights = find_arch(name, str(gguf.path)), HParams(gguf.metadata, name), FileWeights(gguf)
    trained = hp.uint("context_length", high=1 << 30)

    def with_context(context: int) -> Arch:
        arch = build(hp, weights, replace(wanted, context=context))
        blocks = blocks_within(arch, budget) if budget.limits else 0
        return build(hp, weights, replace(arch.cache, blocks=blocks)) if blocks else arch

    arch = with_context(wanted.context or trained)
    while arch.cache.capacity < arch.cache.context:
        if wanted.context:
            raise RequestError(
                f"kv_budget is {budget.word}: expected room for one conversation of {wanted.context} tokens,"
                f" got {arch.cache.capacity}; raise it, or lower the context (-c)"
            )
        arch = with_context(arch.cache.capacity)
    notes = list(arch.notes)
    if budget.limits and not arch.cache.blocks:
        notes.append("kv_budget has no effect: no layer of the model keeps keys and values of all positions")
    elif budget.limits and not wanted.context and arch.cache.context < trained:
        reason = "kv_budget has no room for more"
        notes.append(f"context is {arch.cache.context} of the model's {trained} tokens: {reason}")
    if wanted.context > trained:
        notes.append(
            f"context {wanted.context} is beyond the {trained} tokens that the model was trained for"
        )
    memory = max(0, free) // SHARE_OF_MEMORY
    if wanted.context or budget.limits or cache_bytes(arch, arch.cache) <= memory:
        return arch, tuple(notes)
    most = affordable(arch, wanted, trained, memory)
    if trained <= most:
        return arch, tuple(notes)
    reason = "a quarter of the free memory holds no more KV cache; -c sets another"
    notes.append(f"context is {most} of the model's {trained} tokens: {reason}")
    return with_context(most), tuple(notes)
