"""A model's plans for one size of its KV cache (context and slots), compiled without loading weights: what
plan_section.py turns into tables that hold for every size.

The graph is the one of `deterministic`: latent attention keeps its absorbed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import GGUF
from satchel.runtime.compiler import compile, optimize
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.device.device import Device
from satchel.runtime.engine.states import grouped
from satchel.runtime.graph import Type, leaves
from satchel.runtime.layers.arch import Arch, Cache, HParams, find_arch, windows_of
from satchel.runtime.placement.settle import dry_places
from satchel.runtime.plan import Bucket, Plan, WeightPlace
from satchel.runtime.tasks.embedding import POOLINGS, pooling_of
from satchel.runtime.weights.packing import packable
from satchel.runtime.weights.resident import Resident
from satchel.runtime.weights.weights import FileWeights

TOKENS, MASKED = range(2)  # outputs of plans by number, as in sections.h


class PlanKind(NamedTuple):
    """What a plan computes. output: TOKENS: sampled tokens. MASKED: these with their nll_bits, under token
    bitmasks and after logit edits, which the step block holds.
    """

    output: int
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """Plans for one cache; for a model of embeddings, those of TOKENS give hidden rows.

    windows: of the layer groups, as windows_of().
    states: types by name, in the order of the state buffer; offsets, with the buffer's size as "".
    group_of: the layer group of each paged state.
    places: of the weights that the plans read.
    pooling: how rows become the vector of a text, by GGUF's number; 0: the model generates text.
    whole: it reads a text in one step. width: of its hidden rows.
    """

    arch: Arch
    cache: Cache
    windows: tuple[int, ...]
    states: Mapping[str, Type]
    offsets: Mapping[str, int]
    group_of: Mapping[str, int]
    places: Mapping[str, WeightPlace]
    plans: Mapping[PlanKind, Plan]
    vocabulary: int
    pooling: int
    whole: bool
    width: int


def compile_model(gguf: GGUF, device: Device, cache: Cache, kinds: tuple[PlanKind, ...]) -> CompiledModel:
    """Compiles the file's model on the CPU. ModelError where the file is inconsistent."""
    arch = architecture(gguf, cache)
    forward, pooling = arch.build(), pooling_number(gguf, arch)
    residency = Resident(gguf)
    targets = residency.targets([device], packable(forward))
    context = Context(tuple(targets.values()), lambda _: device.name, forward.activations, demanded=False)
    graphs = {TOKENS: optimize(forward.roots("hidden" if pooling else "tokens"), context)}
    if not pooling:
        drawn, _, _, *after = forward.host_sampling
        graphs[MASKED] = optimize((drawn, *after), context)
    optimized = graphs[TOKENS]
    for graph in graphs.values():
        if graph.assignment.moved:
            raise ModelError(f"{gguf.path}: the CPU backend lacks {', '.join(graph.assignment.moved)}")
    layouts = state_layout(optimized)
    places = dry_places(gguf, residency, targets, optimized)
    offsets = layouts[device.name]
    types = {node.name: node.type for node in leaves(optimized.roots, "state")}
    groups = enumerate(grouped(optimized.roots))
    return CompiledModel(
        arch,
        cache,
        windows_of(optimized.roots),
        {name: types[name] for name in offsets if name},
        offsets,
        {name: number for number, group in groups for name, _ in group},
        places[device.name].places,
        {kind: compile(graphs[kind.output], kind.bucket, places, layouts, gated=False) for kind in kinds},
        arch.vocab if pooling else forward.logits.width,
        pooling,
        not forward.causal,
        (forward.hidden or forward.logits).width,
    )


def pooling_number(gguf: GGUF, arch: Arch) -> int:
    """The pooling of a model of embeddings: an encoder's, or one that the file states; 0 for others."""
    stated = 1 <= gguf.metadata.get_uint(f"{arch.hp.arch}.pooling_type", 0) < len(POOLINGS)
    if arch.causal and not stated:
        return 0
    return POOLINGS.index(pooling_of(gguf.metadata, None, True, None).kind)


def architecture(gguf: GGUF, cache: Cache) -> Arch:
    """The file's architecture with this cache."""
    name = gguf.metadata.get_str("general.architecture")
    arch = find_arch(name, str(gguf.path))(HParams(gguf.metadata, name), FileWeights(gguf), cache)
    if gguf.alignment % 32:
        raise RequestError(
            f"{gguf.path}: general.alignment is {gguf.alignment}: expected a multiple of 32, so that weights "
            "are read in the mapped file; write the file anew with `satchel merge`"
        )
    return arch
