"""Predicts the time of a step under a placement, from the measured speed of each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.sizes import Sizes, Tensor
from satchel.runtime.weights.expert_cache.layout import ExpertCacheLayout

PROMPT = 512  # tokens of the prompt that is predicted
ANSWER = 128  # tokens of an answer that a placement is chosen for


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a device with a model's shapes: seconds of a layer of the mean size and of the head, for a step of
    one token and for one of PROMPT. link: bytes a second between the host's memory and the device's;
    latency: seconds of a crossing of little; start: of what each of its turns costs besides, whatever is
    done in it; host: of what a step costs the interpreter.
    """

    layer: tuple[float, float]
    head: tuple[float, float]
    link: float
    latency: float
    start: float = 0.0
    host: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a step of one token, and of one of PROMPT tokens."""

    decode: float
    prompt: float

    @property
    def tg(self) -> float:
        """Tokens a second of an answer."""
        return 1 / self.decode

    @property
    def pp(self) -> float:
        """Tokens a second of a prompt."""
        return PROMPT / self.prompt

    @property
    def seconds(self) -> float:
        """Of a prompt and an answer: what a placement is chosen by."""
        return self.prompt + ANSWER * self.decode


def predict(
    placement: Placement, sizes: Sizes, speeds: Mapping[str, Speed], cached: ExpertCacheLayout | None = None
) -> Prediction:
    """Parts one after another, each at its device's speed, the start of each turn of a device, and what
    crosses between them. Of a layer with cached experts both devices have a part at the same time.
    """
    crossed = list(crossings(placement, sizes))
    turns = [_sampling(placement), *(there for _, there in crossed)]
    begun = sum(speeds[name].start for name in turns) + speeds[turns[0]].host
    times = [begun, begun]
    mean_read, mean_macs = _means(sizes)
    layers = {} if cached is None else cached.layers
    for t in sizes.tensors:
        parts = [(speeds[placement.weight(t.name, t.label)], 1.0)]
        if cached is not None and t.expert and t.label in layers:
            share = layers[t.label].count / layers[t.label].experts
            parts = [(parts[0][0], 1 - share), (speeds[layers[t.label].device], share)]
        if t.label.startswith("blk."):
            read, macs = t.read / mean_read, t.macs / mean_macs / (PROMPT if _picked(t, sizes) else 1)
            times[0] += max(part * speed.layer[0] * read for speed, part in parts)
            times[1] += max(part * speed.layer[1] * macs for speed, part in parts)
    head = speeds[placement.label("output")]
    for i, tokens in enumerate((1, PROMPT)):
        times[i] += head.head[i] + sum(
            speeds[a].latency
            + speeds[b].latency
            + tokens * 4 * sizes.width / min(speeds[a].link, speeds[b].link)
            for a, b in crossed
        )
    return Prediction(*times)


def _picked(t: Tensor, sizes: Sizes) -> bool:
    """Whether rows that nobody reads never come to this tensor: behind the last layer's attention."""
    return t.label == f"blk.{sizes.layers - 1}" and (".ffn_" in t.name or ".attn_output." in t.name)


def _means(sizes: Sizes) -> tuple[float, float]:
    """Bytes read and multiply-adds of a mean layer."""
    inner = [t for t in sizes.tensors if t.label.startswith("blk.")]
    read, macs = sum(t.read for t in inner), sum(t.macs for t in inner)
    return read / sizes.layers or 1.0, macs / sizes.layers or 1.0


def crossings(placement: Placement, sizes: Sizes) -> Iterator[tuple[str, str]]:
    """From which device to which a token's values go, in order."""
    at = _sampling(placement)
    experts = {t.label: placement.weight(t.name, t.label) for t in sizes.tensors if t.expert}
    for stop in _stops(placement, sizes, experts):
        if stop != at:
            yield at, stop
        at = stop


def _sampling(placement: Placement) -> str:
    """The device that knows the last token: a step begins and ends there."""
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
