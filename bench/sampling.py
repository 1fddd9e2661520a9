"""Cost of sampling a token on one core: the sample op alone, by sampling chain and distribution of logits.

    python bench/sampling.py [--vocabulary 152064] [--rounds 30]

"peaked" logits are those of a confident model (60 tokens near the best); "flat" ones are normally distributed
with standard deviation 2, so that some 50,000 tokens share 95 % of the probability.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from satchel.runtime import ops
from satchel.runtime.compiler.lower import probe
from satchel.runtime.device.device import (
    SAMPLING,
    Device,
    pointer,
)
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array, Graph, Type
from satchel.runtime.plan import BufferSpec
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.record import record

STEP = 4  # HAL_STEP in hal.h
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHAINS = {
    "default (top-k 40, top-p, min-p, temperature)": Sampling(seed=1),
    "greedy": Sampling(temperature=0, seed=1),
    "temperature alone": Sampling(**{**OFF, "seed": 1}),
    "top-p 0.95": Sampling(**{**OFF, "top_p": 0.95, "seed": 1}),
    "min-p 0.05": Sampling(**{**OFF, "min_p": 0.05, "seed": 1}),
    "top-k 5000": Sampling(**{**OFF, "top_k": 5000, "seed": 1}),
    "typical 0.9": Sampling(**{**OFF, "typical_p": 0.9, "seed": 1}),
    "top-n-sigma 1": Sampling(**{**OFF, "top_n_sigma": 1.0, "seed": 1}),
    "default and penalties": Sampling(repeat_penalty=1.1, seed=1),
}


def spreads(vocabulary: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    peaked = rng.standard_normal(vocabulary).astype(np.float32) * 2 - 4
    near = rng.integers(0, vocabulary, 60)
    peaked[near] = 8 + 3 * rng.standard_normal(60)
    return {"peaked": peaked, "flat": rng.standard_normal(vocabulary).astype(np.float32) * 2}


def measure(device: Device, logits: Array, sampling: Sampling, rounds: int) -> list[float]:
    """Seconds of each run of the op on one row."""
    v, graph = len(logits), Graph()

    def leaf(name: str, shape: tuple[int, ...], format: str) -> object:
        return graph.node("input", (), Type(shape, format), name)

    operands = [
        leaf("logits", (1, v), "f32"),
        leaf("ring", (1, 4096), "i32"),
        leaf("slot", (1,), "i32"),
        leaf("pos", (1,), "i32"),
        leaf("params", (1, SAMPLING.itemsize), "i8"),
    ]
    segment = probe(ops.sample(*operands), "cpu")  # type: ignore[arg-type]
    segment = replace(segment, buffers=(*segment.buffers, BufferSpec("step", STEP, 64)))
    data = [np.zeros(1, np.int32), logits, np.arange(4096, dtype=np.int32), np.zeros(1, np.int32)]
    data += [np.full(1, 4000, np.int32), np.frombuffer(record(sampling).tobytes(), np.uint8)]
    data.append(np.zeros(64, np.uint8))
    buffers = [device.alloc(max(64, b.size), b.usage) for b in segment.buffers]
    for buffer, array in zip(buffers, data, strict=True):
        buffer.write(0, np.ascontiguousarray(array))
    step = bytearray(64)
    program, block, times = device.compile(segment, buffers), pointer(step), []
    for _ in range(rounds):
        started = time.perf_counter()
        program.run(block, len(step))
        program.wait()
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=152064)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print(f"| chain, {options.vocabulary:,} tokens, one core | peaked: best, median ms | flat |")
    print("|---|---|---|")
    with find_backend("cpu").open(threads=1) as device:
        for name, sampling in CHAINS.items():
            cells = []
            for logits in spreads(options.vocabulary).values():
                times = measure(device, logits, sampling, options.rounds)
                cells.append(f"{min(times) * 1e3:.3f}, {float(np.median(times)) * 1e3:.3f}")
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
