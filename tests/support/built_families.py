"""Random models of several families, built for the C library, and what `Engine` and a driver of the library
sample of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedded import Driver
from once import made_once
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.layers.arch import architectures, find_arch
from satchel.runtime.sampling import Sampling

# A sample, of architectures whose ops differ: plain, experts, LayerNorm with GELU, windows with soft caps,
# recurrent states, these beside attention.
FAMILIES = ("qwen3", "qwen3moe", "gpt2", "gemma2", "mamba2", "qwen3next")

DECODERS = [name for name in architectures() if find_arch(name).causal]
# Every family that generates text; those beyond the sample by night.
EVERY_FAMILY = [
    pytest.param(name, marks=() if name in FAMILIES else pytest.mark.nightly) for name in DECODERS
]


def built(path: Path) -> Path:
    target = path.with_suffix(".app.gguf")
    with open_gguf(path) as gguf:
        build(gguf, target)
    return target


def family(factory: pytest.TempPathFactory, arch: str) -> Path:
    """A random model of the architecture, built."""
    keys: dict[str, Any] = {"gemma2__attention__sliding_window": 20} if arch == "gemma2" else {}
    folder = made_once(factory, f"embed-{arch}", lambda at: built(write_model(at / "m.gguf", arch, **keys)))
    return folder / "m.app.gguf"


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 256, count)]


def wanted(
    engine: Engine,
    ids: Sequence[int],
    count: int,
    sampling: Sampling,
    cuts: Sequence[int] = (),
    slot: int = 0,
) -> list[int]:
    """What the engine samples after a prompt, cut at these places."""
    engine.rewind(slot, 0)
    parts = [ids[a:b] for a, b in zip((0, *cuts), (*cuts, len(ids)), strict=True)]
    for part in parts[:-1]:
        engine.step([BatchEntry(slot, part)])
    fed, found = parts[-1], []
    while len(found) < count:
        (token,) = engine.step([BatchEntry(slot, fed, sampling)])
        assert isinstance(token, int)
        found.append(token)
        fed = [token]
    return found


def answer(driver: Driver, ids: Sequence[int], count: int, options: dict[str, Any], seed: int) -> list[int]:
    driver.begin(0, ids, {**options, "seed": seed, "flags": 1, "max_tokens": count})
    found, _, over = driver.next(0, count + 2)  # one more piece may hold a cut character
    assert over
    driver.end(0)
    return found
