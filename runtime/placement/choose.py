"""Chooses the placement of a model: the fastest of the candidates that fit.

A candidate puts the last layers on devices with memory of their own (`apart`), the head with them or not, and
leaves the experts of some mixture-of-experts layers on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations
from types import MappingProxyType

from satchel.errors import DeviceError, RequestError
from satchel.runtime.placement.options import PlacementOptions, TensorOverride
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import Prediction
from satchel.runtime.placement.sizes import Sizes

MIB = 1 << 20
# With whole layers on the CPU a mixture must take this share of the time or less that it takes with experts
# alone there: attention of the CPU's layers slows down with the context, which is not predicted.
CLEARLY = 0.75
PERMUTED = 4  # up to 4 devices apart, every order is tried
NO_SHARES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """One device's memory."""

    name: str
    free: int  # bytes for weights and states, without what a step needs
    apart: bool  # the device is not the CPU


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A placement to consider."""

    placement: Placement
    on: int  # layers on devices apart
    head: bool  # the head is on a device apart
    embed: bool  # the embeddings are on a device apart
    experts: int = 0  # layers whose experts stay on the CPU


Predict = Callable[[Placement], Prediction]


def choose(
    sizes: Sizes, budgets: Sequence[MemoryBudget], options: PlacementOptions, predict: Predict | None = None
) -> PlacementCandidate:
    """The fastest candidate that fits, or one almost as fast with more on devices apart; without `predict`,
    the one with the most there.

    The CPU takes the rest even if its memory is too small. Raises DeviceError if the options demand more than
    fits.
    """
    check_rules(options.rules, sizes, budgets)
    best: PlacementCandidate | None = None
    least = limit = float("inf")
    for candidate in candidates(sizes, budgets, options, orders=predict is not None):
        if best is not None and (predict is None or (options.named and _amount(candidate) != _amount(best))):
            break
        if fits(sizes.on(candidate.placement), budgets):
            seconds = predict(candidate.placement).seconds if predict else 0.0
            if sizes.mixture and candidate.on == sizes.layers:  # these come first
                limit = min(limit, CLEARLY * seconds)
            if seconds < (least if candidate.on == sizes.layers else min(least, limit)):
                best, least = candidate, seconds
    if best is None:
        raise _too_much(sizes, budgets, options)
    return best


def fits(held: Mapping[str, int], budgets: Sequence[MemoryBudget], host: bool = False) -> bool:
    """Whether devices apart have enough memory; with `host`, the CPU too."""
    options = (budget for budget in budgets if held[budget.name] and (budget.apart or host))
    return all(held[budget.name] <= budget.free for budget in options)


def _amount(candidate: PlacementCandidate) -> tuple[int, bool, bool, int]:
    """How much is on devices apart, as a sort key."""
    return candidate.on, candidate.head, candidate.embed, candidate.experts


def candidates(
    sizes: Sizes, budgets: Sequence[MemoryBudget], options: PlacementOptions, *, orders: bool = False
) -> Iterator[PlacementCandidate]:
    """The candidates that the options allow, most on devices apart first. orders: without shares in the
    options, fill several devices apart in every order.
    """
    whole, far = sizes.layers, [budget for budget in budgets if budget.apart]
    shares = shares_of(options, budgets)
    filled: list[Sequence[MemoryBudget]] = [far]
    if orders and not shares and 1 < len(far) <= PERMUTED:
        filled = list(permutations(far))
    turns = [[*order, *(budget for budget in budgets if not budget.apart)] for order in filled]
    if not far:
        counts: Sequence[int] = (0,)
    elif shares and options.layers is None and not shares.keys() <= {budget.name for budget in far}:
        counts = (sum(_quotas(shares, whole, far)),)
    elif options.layers is None:
        counts = range(whole, -1, -1)
    else:
        counts = (whole if options.everything else min(options.layers, whole),)
    for on in counts:
        for head, embed in _ends(on, whole, options):
            for experts in range(on + 1 if _may_stay(sizes, budgets, options, on) else 1):
                for turn in turns:
                    yield spread(
                        sizes,
                        turn,
                        options,
                        PlacementCandidate(Placement(""), on, head, embed, experts),
                        shares,
                    )


def _ends(on: int, whole: int, options: PlacementOptions) -> Sequence[tuple[bool, bool]]:
    """The (head, embed) choices for this number of layers."""
    if options.layers is None:
        return ((True, True), (True, False), (False, False)) if on == whole else ((on > 0, False),)
    full = options.everything or options.layers > whole
    return ((full, full),)


def _may_stay(sizes: Sizes, budgets: Sequence[MemoryBudget], options: PlacementOptions, on: int) -> bool:
    has_host = any(not budget.apart for budget in budgets)
    return sizes.mixture and has_host and options.layers is None and on == sizes.layers


def shares_of(options: PlacementOptions, budgets: Sequence[MemoryBudget]) -> dict[str, float]:
    """Each device's share of the layers, if the options give shares. Raises RequestError unless there is one
    per device.
    """
    names = options.devices or tuple(budget.name for budget in budgets if budget.apart)
    if options.split and len(names) != len(options.split):
        given = f"tensor_split has {len(options.split)} numbers, the devices are {', '.join(names)}"
        raise RequestError(f"{given}: give one for each")
    return {name: part / sum(options.split) for name, part in zip(names, options.split, strict=False)}


def _quotas(shares: Mapping[str, float], layers: int, far: Sequence[MemoryBudget]) -> list[int]:
    """Number of layers for each device apart, rounded so that they add up."""
    bounds = list(accumulate((shares[budget.name] for budget in far), initial=0.0))
    return [round(layers * b) - round(layers * a) for a, b in pairwise(bounds)]


def spread(
    sizes: Sizes,
    budgets: Sequence[MemoryBudget],
    options: PlacementOptions,
    candidate: PlacementCandidate,
    shares: Mapping[str, float] = NO_SHARES,
) -> PlacementCandidate:
    """The candidate with layers assigned: the last layers go to the first device apart, until it is full or
    has its share.
    """
    far = [budget for budget in budgets if budget.apart]
    mine = sum(shares.get(budget.name, 0.0) for budget in far) or 1.0
    quota = _quotas({name: part / mine for name, part in shares.items()}, candidate.on, far) if shares else []
    host = next((budget.name for budget in budgets if not budget.apart), far[-1].name)
    end = far[0].name if candidate.head else host
    labels = {"output": end, "embed": host}
    each = _by_label(sizes, far, host if candidate.experts else "")
    used, given, turn = {budget.name: 0 for budget in far}, [0] * len(far), 0
    if candidate.head:
        used[end] += each("output", far[0], False)
    first_expert = sizes.layers - candidate.on + candidate.experts
    for i in range(sizes.layers - 1, sizes.layers - candidate.on - 1, -1):
        label, stay = f"blk.{i}", i < first_expert
        # The embeddings go where the layer is that reads them: alone on a further device they would only
        # cost a crossing.
        with_it = ("embed",) if candidate.embed and i == 0 else ()
        while turn < len(far) - 1 and (
            given[turn] >= quota[turn]
            if quota
            else used[far[turn].name]
            + each(label, far[turn], stay)
            + sum(each(name, far[turn], False) for name in with_it)
            > far[turn].free
        ):
            turn += 1
        given[turn] += 1
        used[far[turn].name] += each(label, far[turn], stay)
        labels[label] = far[turn].name
    if candidate.embed:
        labels["embed"] = far[turn].name
    staying = (
        {f"blk.{i}" for i in range(sizes.layers - candidate.on, first_expert)}
        if candidate.experts
        else set[str]()
    )
    weights = {t.name: host for t in sizes.tensors if t.expert and t.label in staying}
    weights |= ruled(options.rules, sizes)
    states = {"tokens": end}
    if not options.kv:
        states |= dict.fromkeys((name for name in sizes.states if name != "tokens"), host)
    return PlacementCandidate(
        Placement(host, labels, weights, states),
        candidate.on,
        candidate.head,
        candidate.embed,
        candidate.experts,
    )


def _by_label(
    sizes: Sizes, far: Sequence[MemoryBudget], host: str
) -> Callable[[str, MemoryBudget, bool], int]:
    """Function that gives the bytes of a layer on a device, with its experts or without."""
    sums: dict[tuple[str, str, bool], int] = {}
    for budget in far:
        for t in sizes.tensors:
            key = (t.label, budget.name, t.expert)
            sums[key] = sums.get(key, 0) + sizes.held[budget.name][t.name]
        for label, size in sizes.states.values():
            key = (label, budget.name, False)
            sums[key] = sums.get(key, 0) + size

    def each(label: str, budget: MemoryBudget, stay: bool) -> int:
        experts = 0 if stay and host else sums.get((label, budget.name, True), 0)
        return sums.get((label, budget.name, False), 0) + experts

    return each


def ruled(rules: Sequence[TensorOverride], sizes: Sizes) -> dict[str, str]:
    """Devices of the tensors that a rule matches. The first match wins."""
    found = ((t.name, next((r.device for r in rules if r.pattern.search(t.name)), "")) for t in sizes.tensors)
    return {name: device for name, device in found if device}


def check_rules(rules: Sequence[TensorOverride], sizes: Sizes, budgets: Sequence[MemoryBudget]) -> None:
    """Raises RequestError for a rule whose device is not in use, or whose pattern matches no tensor."""
    names = [budget.name for budget in budgets]
    for rule in rules:
        if rule.device not in names:
            raise RequestError(
                f"override_tensor {rule.pattern.pattern}={rule.device}: the devices in use are"
                f" {', '.join(names)}; name others with --device"
            )
        if not any(rule.pattern.search(t.name) for t in sizes.tensors):
            raise RequestError(
                f"override_tensor {rule.pattern.pattern}={rule.device}: no tensor's name matches"
            )


def _too_much(sizes: Sizes, budgets: Sequence[MemoryBudget], options: PlacementOptions) -> DeviceError:
    """The error for options under which even the smallest candidate does not fit."""
    last = list(candidates(sizes, budgets, options))[-1]
    held = sizes.on(last.placement)
    budget = next(budget for budget in budgets if budget.apart and held[budget.name] > budget.free)
    return DeviceError(
        f"device {budget.name}: {_asked_for(options)} need {held[budget.name] / MIB:,.0f} MiB and it has"
        f" {max(0, budget.free) / MIB:,.0f} MiB: ask for fewer layers, a smaller context, or -ngl auto"
    )


def _asked_for(options: PlacementOptions) -> str:
    if options.layers is None:
        return "the tensors placed there"
    return "all layers" if options.everything else f"{options.layers} layers"
