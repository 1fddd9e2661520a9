"""The host's part of a step: processor microseconds of the engine's thread, over a device that computes
nothing (the backend `null`).

    python bench/host_steps.py [MODEL.gguf] [--sequences 1,64,128] [--tokens 400] [--rounds 3]

All sequences decode together, through the service and its handles. "a step" is all that the engine's thread
does for it: scheduling, the engine's part, and handing the tokens out; "of it the engine" is what one call of
the engine takes: positions, sampling rows and block tables, the launch, and reading the tokens. A column has
the 5th percentile of windows of WINDOW steps: what the work takes where nothing else disturbs it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from satchel.runtime.api.model import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.sampling import Sampling
from satchel.store.resolve import default_model

WINDOW = 10  # steps
PROMPT = 8  # tokens


class Clock:
    """Notes the engine's thread's processor time around each step of a model's engine in which all sequences
    decode.
    """

    def __init__(self, model: Model, sequences: int) -> None:
        self.before: list[float] = []  # the thread's seconds as each step begins
        self.inside: list[float] = []  # those that the engine takes for it
        service: Any = model.service
        sample = service.engine.sample

        def sampled(entries: Sequence[BatchEntry]) -> Any:
            began = time.thread_time()
            tokens = sample(entries)
            if len(entries) == sequences and all(len(e.ids) == 1 for e in entries):
                self.before.append(began)
                self.inside.append(time.thread_time() - began)
            return tokens

        service.engine.sample = sampled


def low(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Microseconds: the 5th percentile."""
    return float(np.percentile(seconds, 5)) * 1e6


def measure(path: Path, sequences: int, tokens: int, rounds: int) -> tuple[float, float]:
    """Microseconds of a step, and of it those of the engine."""
    steps, inside = list[float](), list[float]()
    for number in range(rounds):
        with Model.load(
            path, device="null", slots=sequences, context=tokens + PROMPT + 8, worker="thread"
        ) as model:
            clock = Clock(model, sequences)
            handles = [
                model.submit(GenerateRequest([5 + i] * PROMPT, tokens, Sampling(seed=number)))
                for i in range(sequences)
            ]
            for handle in handles:
                list(handle)
        at = np.array(clock.before[::WINDOW])
        steps += list(np.diff(at) / WINDOW)
        taken = np.array(clock.inside[: len(clock.inside) // WINDOW * WINDOW])
        inside += list(taken.reshape(-1, WINDOW).mean(1))
    return low(np.array(steps)), low(np.array(inside))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--sequences", default="1,64,128")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    path = Path(asked.model or default_model())
    print(f"{path.name}, microseconds of the engine's thread\n")
    print("| sequences | a step | of it the engine | a step, each sequence | of it the engine |")
    print("|--:|--:|--:|--:|--:|")
    for count in map(int, asked.sequences.split(",")):
        step, engine = measure(path, count, asked.tokens, asked.rounds)
        each = f"{step / count:.2f} | {engine / count:.2f}"
        print(f"| {count} | {step:.0f} | {engine:.0f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
