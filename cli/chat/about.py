"""The description of the model at the start of a chat."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model

BILLION, MILLION = 10**9, 10**6


def describe(model: Model) -> tuple[str, str, str]:
    """Three lines: the name; architecture, size and type; context and device."""
    formats: Counter[str] = Counter()
    for tensor in model.gguf.tensors.values():
        formats[tensor.format] += prod(tensor.shape)
    weights, stored = formats.total(), sum(t.nbytes for t in model.gguf.tensors.values())
    arch = model.gguf.metadata.get_str("general.architecture")
    kind = formats.most_common(1)[0][0].upper()
    size = f"{weights / BILLION:.1f} B" if weights >= BILLION else f"{weights / MILLION:.1f} M"
    return (
        model_name(model),
        f"{arch} · {size} weights · {kind} · {stored / MILLION:,.1f} MB",
        f"context {model.context:,} · {where(model)}",
    )


def where(model: Model) -> str:
    """The device, or the worker process, that runs the model."""
    if model.options.worker == "process":
        return "an engine in a process of its own"
    info = model.device.info()
    variant = f" ({info.variant})" if info.variant else ""
    return f"{info.name}{variant} · {info.threads} threads"


def model_name(model: Model) -> str:
    """general.name of the file's metadata, or the file's name."""
    return model.gguf.metadata.get_str("general.name", "") or model.path.stem
