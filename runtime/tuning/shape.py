"""The class of steps that share a tuned kernel: op, formats, and the dimensions that matter for speed."""

from __future__ import annotations

from satchel.runtime.kernels.call import KernelCall, TensorView
from satchel.runtime.kernels.trial import is_cache


def shape_of(call: KernelCall) -> str:
    """Text such as "linear f32:16x8192 < f32:16x2048 q4_k*:8192x2048"; * marks a packed weight. The numbers
    of KV blocks of the cache and of a slot are left out.
    """
    inputs = " ".join(_text(v, call, i) for i, v in enumerate(call.inputs))
    return f"{call.op} {_text(call.output, call, -1)} < {inputs}"


def _text(view: TensorView, call: KernelCall, index: int) -> str:
    paged = any(is_cache(call, i) for i in range(len(call.inputs)))
    table = paged and view.format == "i32" and len(view.shape) == 2
    shape = view.shape[1:] if is_cache(call, index) else view.shape
    sizes = "?" if table else "x".join(map(str, shape))
    return f"{view.format}{'*' if view.packed else ''}:{sizes}"
