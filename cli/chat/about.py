"""What a chat says of its model."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model

BILLION, MILLION = 10**9, 10**6


def describe(model: Model) -> tuple[str, str, str]:
    """Name; size and type; where it runs."""
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
    """What computes: the device, or the process that has it."""
    if model.options.worker == "process":
        return "an engine in a process of its own"
    info = model.device.info()
    variant = f" ({info.variant})" if info.variant else ""
    return f"{info.name}{variant} · {info.threads} threads"


def model_name(model: Model) -> str:
    """The name in the file, or the file's own."""
    return model.gguf.metadata.get_str("general.name", "") or model.path.stem
