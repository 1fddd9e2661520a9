"""Predicts the time of a step under a placement, from the measured speed of each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.sizes import Sizes, Tensor
from satchel.runtime.weights.expert_cache.layout import ExpertCacheLayout

PROMPT = 512  # tokens of the step that is predicted
LONG, ANSWER = 2048, 512  # tokens of the reference prompt and answer
# Seconds of the host at each crossing, besides the copy: it waits for one device and begins with the next;
# and what a token finds in a processor's caches of weights that all have room there, because the token before
# has read them. Found by the runs in docs/placement.md.
HANDOVER = 4e-5
KEPT = 0.25


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured speed of a device on a model's shapes. Pairs are for a step of one token and of
    PROMPT tokens.
    """

    layer: tuple[float, float]  # seconds of an average layer
    head: tuple[float, float]  # seconds of the head
    link: float  # bytes per second between host and device memory
    latency: float  # seconds of a small copy
    start: float = 0.0  # fixed seconds of each turn of the device
    host: float = 0.0  # seconds of Python per step
    direct: float = 0.0  # bytes per second from locked pages to device memory; 0: it has none
    caches: int = 0  # bytes of a processor's last-level caches, out of which nothing was read while measuring


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of a placement."""

    decode: float  # seconds of a step of one token
    prompt: float  # seconds of a step of PROMPT tokens
    whole: float = 0.0  # seconds of a prompt of LONG tokens; 0: as many as its steps of PROMPT

    @property
    def tg(self) -> float:
        """Text generation: tokens per second."""
        return 1 / self.decode

    @property
    def pp(self) -> float:
        """Prompt processing: tokens per second."""
        return PROMPT / self.prompt

    @property
    def seconds(self) -> float:
        """Seconds of the reference prompt and answer; the fastest placement minimizes this."""
        return self.long + ANSWER * self.decode

    @property
    def long(self) -> float:
        """Seconds of the reference prompt."""
        return self.whole or self.prompt * LONG / PROMPT


def predict(
    placement: Placement, sizes: Sizes, speeds: Mapping[str, Speed], cached: ExpertCacheLayout | None = None
) -> Prediction:
    """Sum over the parts, each at its device's speed, plus each turn's start and the copies between devices.
    For a layer with cached experts, both devices work at the same time. A processor finds some of what each
    token reads, all but experts, in its caches.
    """
    crossed = list(crossings(placement, sizes))
    turns = [_sampling(placement), *(there for _, there in crossed)]
    begun = sum(speeds[name].start for name in turns) + speeds[turns[0]].host
    times = [begun, begun]
    mean_read, mean_macs = means(sizes)
    layers = {} if cached is None else cached.layers
    missed = _missed(placement, sizes, speeds)
    for t in sizes.tensors:
        home = placement.weight(t.name, t.label)
        parts = [(speeds[home], 1.0)]
        if cached is not None and t.expert and t.label in layers:
            share = layers[t.label].count / layers[t.label].experts
            parts = [(parts[0][0], 1 - share), (speeds[layers[t.label].device], share)]
        if t.label.startswith("blk."):
            read, macs = t.read / mean_read, t.macs / mean_macs / (PROMPT if _picked(t, sizes) else 1)
            read *= 1 if t.expert else missed[home]
            times[0] += max(part * speed.layer[0] * read for speed, part in parts)
            times[1] += max(part * speed.layer[1] * macs for speed, part in parts)
    head = speeds[placement.label("output")]
    for i, tokens in enumerate((1, PROMPT)):
        times[i] += head.head[i] + sum(
            HANDOVER
            + speeds[a].latency
            + speeds[b].latency
            + tokens * 4 * sizes.width / min(speeds[a].link, speeds[b].link)
            for a, b in crossed
        )
    return Prediction(*times)


def _missed(placement: Placement, sizes: Sizes, speeds: Mapping[str, Speed]) -> dict[str, float]:
    """By device, the share of what each token reads that is not in its caches since the token before. Of what
    is twice as large as these nothing is left: it was replaced before it is read again.
    """
    read: dict[str, float] = {}
    for t in sizes.tensors:
        home = placement.weight(t.name, t.label)
        read[home] = read.get(home, 0) + t.read
    fits = {name: 2 * speeds[name].caches / max(1.0, size) - 1 for name, size in read.items()}
    return {name: 1 - KEPT * min(1.0, max(0.0, share)) for name, share in fits.items()}


def _picked(t: Tensor, sizes: Sizes) -> bool:
    """Whether the tensor sees only the output rows: it follows the last layer's attention."""
    return t.label == f"blk.{sizes.layers - 1}" and (".ffn_" in t.name or ".attn_output." in t.name)


def means(sizes: Sizes) -> tuple[float, float]:
    """Bytes that a token reads of an average layer, and its multiply-adds."""
    inner = [t for t in sizes.tensors if t.label.startswith("blk.")]
    read, macs = sum(t.read for t in inner), sum(t.macs for t in inner)
    return read / sizes.layers or 1.0, macs / sizes.layers or 1.0


def crossings(placement: Placement, sizes: Sizes) -> Iterator[tuple[str, str]]:
    """(source, target) devices of each crossing of a token's activations, in order."""
    at = _sampling(placement)
    experts = {t.label: placement.weight(t.name, t.label) for t in sizes.tensors if t.expert}
    for stop in _stops(placement, sizes, experts):
        if stop != at:
            yield at, stop
        at = stop


def _sampling(placement: Placement) -> str:
    """The device that samples; a step begins and ends there."""
    return placement.states.get("tokens", placement.label("output"))


def _stops(placement: Placement, sizes: Sizes, experts: Mapping[str, str]) -> Iterator[str]:
    yield placement.label("embed")
    for i in range(sizes.layers):
        label = f"blk.{i}"
        home = placement.label(label)
        yield home
        yield placement.states.get(f"k.{i}", home)
        yield home
        yield experts.get(label, home)
    yield placement.label("output")
