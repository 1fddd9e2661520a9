"""Test cases of elementwise and row-wise ops, beside those in tests/cext/test_op_kernels.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from one_step import CASES, Case, case, f32


@case("layer_norm")
def _(rng: np.random.Generator) -> Iterator[Case]:
    args = {"eps": 1e-6}
    for shape in ((1, 512), (5, 77), (3, 4, 64), (40, 300), (2, 1)):
        x, w, bias = f32(rng, *shape), f32(rng, shape[-1]), f32(rng, shape[-1])
        yield Case(str(shape), (x, w), shape, args=args)
        yield Case(f"{shape} bias", (x, w, bias), shape, args=args)
    for scale in (0.0, 1e-18, 1e15):
        yield Case(f"x{scale}", (f32(rng, 2, 64, scale=scale), f32(rng, 64)), (2, 64), args=args)
    far = (f32(rng, 3, 96)[0] + np.float32(1000), "f32")
    yield Case("far from 0", (far, f32(rng, 96)), (3, 96), args=args, bound=1e-7)


def wide() -> np.ndarray:
    """Inputs over the whole range, dense around 0, where activation functions bend."""
    near = np.linspace(-6, 6, 3001, dtype=np.float32)
    far = np.array([-3e38, -1e20, -300, -90, -1e-3, -1e-20, 0, 1e-30, 1e-3, 90, 300, 1e20, 3e38], np.float32)
    return np.concatenate((near, far, np.linspace(-60, 60, 1082, dtype=np.float32))).reshape(2, -1)


@case("gelu")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for style in (0, 1):
        args = {"style": style}
        yield Case(f"{style}", (f32(rng, 5, 77, scale=2),), (5, 77), args=args)
        finite = np.clip(wide(), -300, 300)
        yield Case(f"{style} wide", ((finite, "f32"),), finite.shape, args=args)
        small = wide() * np.float32(1e-3)
        yield Case(f"{style} small", ((np.clip(small, -0.1, 0.1), "f32"),), small.shape, args=args)


@case("soft_cap")
def _(rng: np.random.Generator) -> Iterator[Case]:
    for cap in (30.0, 0.5):
        yield Case(f"{cap}", (f32(rng, 5, 77, scale=40),), (5, 77), args={"cap": cap})
        yield Case(f"{cap} wide", ((wide(), "f32"),), wide().shape, args={"cap": cap})
        small = np.clip(wide(), -1, 1) * np.float32(1e-4)
        yield Case(f"{cap} small", ((small, "f32"),), small.shape, args={"cap": cap})


__all__ = ["CASES"]
