"""Gain of saved states and of the KV cache's host memory tier: seconds to restore or move blocks, beside
seconds to compute them. `python bench/state.py -m MODEL [-n TOKENS]`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from satchel import Model
from satchel.runtime.sampling import GREEDY


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def first_token(model: Model, ids: list[int]) -> None:
    model.generate(ids, max_tokens=1, sampling=GREEDY).read()


def saved(path: Path, ids: list[int], folder: Path) -> None:
    """A restart with the state in a file, and without."""
    state = folder / "state.kv"
    with Model.load(path, context=len(ids) + 64) as model:
        first_token(model, ids[:64])  # compiles the plans
        computed = timed(lambda: first_token(model, ids))
        saving = timed(lambda: model.save_state(state, ids))
    with Model.load(path, context=len(ids) + 64) as model:
        first_token(model, [*ids[1:64], 5])
        restoring = timed(lambda: model.restore_state(state))
        rest = timed(lambda: first_token(model, ids))
    size = state.stat().st_size
    print(f"file of {len(ids)} tokens    {size / 1e6:10.1f} MB")
    print(f"first token, computed     {computed * 1e3:10.1f} ms")
    print(f"first token, restored     {rest * 1e3:10.1f} ms, after {restoring * 1e3:.1f} ms to restore")
    print(f"saving                    {saving * 1e3:10.1f} ms")


def moved(path: Path, ids: list[int]) -> None:
    """Two conversations in a pool that holds one, in turns."""
    other = ids[::-1]
    for size, name in ((0, "computed again"), (1 << 34, "moved")):
        with Model.load(path, context=len(ids) + 64, host_cache=size) as model:
            if model.engine.tier is not None:
                model.engine.tier.recompute = lambda tokens: None
            for some in (ids, other):
                first_token(model, some)
            taken = [timed(lambda turn=turn: first_token(model, turn)) for turn in (ids, other) * 3]  # type: ignore[misc]
            tier, rates = model.engine.tier, ""
            if tier is not None:
                rates = f", out {tier.out.value / 1e9:.2f} and back {tier.back.value / 1e9:.2f} GB/s"
        print(f"turn by turn, {name:14s}  {np.median(taken) * 1e3:8.1f} ms to the first token{rates}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-n", "--tokens", type=int, default=1800)
    given = parser.parse_args()
    ids = [int(i) for i in np.random.default_rng(0).integers(300, 8000, given.tokens)]
    with tempfile.TemporaryDirectory() as folder:
        saved(given.model, ids, Path(folder))
    moved(given.model, ids)


if __name__ == "__main__":
    main()
