"""Cost of a request with host-side sampling to the other sequences of its batch: with launch-ahead ("ahead"),
and with one step at a time ("in turn").

    python bench/host_rows.py [MODEL.gguf] [--device NAME] [--streams 16] [--tokens 128] [--rounds 3]
                              [--deterministic]

Both orders run in turns in one process. Where a row's bits depend on the row alone (one stream, the CPU, or
--deterministic), all answers of a kind must be equal. Elsewhere it depends on time which requests share a
step, and so how their numbers are rounded: answers of random weights, all about as likely, differ then.
Steps overlap only on devices with memory of their own; on the CPU both orders are the same. The test backend
`remote`, which runs on the CPU, is such a device: --device remote,
SATCHEL_BACKENDS=build/py3-*/test-backends, and SATCHEL_REMOTE_LATE_US=5000 for steps that take so long.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from one_line import errors_in_one_line

from satchel.runtime.api.model import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Launched
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.grammar import JsonSchema
from satchel.runtime.sampling import Sampling
from satchel.runtime.scheduler import Batch
from satchel.store.resolve import default_model

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# More people than fit into any answer here, so no answer ends early.
PEOPLE = JsonSchema({"type": "array", "items": PERSON, "minItems": 1000})
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "a JSON schema": {"grammar": PEOPLE},
    "log probabilities": {"logprobs": 5},
}
ORDERS = ("ahead", "in turn")


@dataclass(frozen=True, slots=True)
class Run:
    """The times of one run."""

    first: float  # seconds until the first request was answered
    every: float  # seconds until all were answered
    steps: int
    ahead: int  # steps of `steps` that were launched before the tokens of the last one were read
    answers: list[list[int]]


class Order:
    """Hooks into the launches of a model's service: counts them, and delays them where steps run one at a
    time.
    """

    def __init__(self, model: Model) -> None:
        service: Any = model.service
        self.in_turn, self.steps, self.ahead = False, 0, 0
        plan, launch, sample = service.scheduler.ahead, service.engine.launch, service.engine.sample

        def planned(batch: Batch, now: float) -> Batch:
            waits = self.in_turn and any(seq.host_sampling is not None for seq in batch)
            return {} if waits else plan(batch, now)

        def launched(entries: Sequence[BatchEntry], *, alone: bool = False) -> Launched:
            self.steps += 1
            self.ahead += not service.engine.idle()
            return launch(entries, alone=alone)

        def sampled(entries: Sequence[BatchEntry]) -> object:
            # Steps without host-side sampling go through launch().
            self.steps += any(e.host_sampling is not None for e in entries)
            return sample(entries)

        service.scheduler.ahead, service.engine.launch, service.engine.sample = planned, launched, sampled


def requests(kind: str, streams: int, tokens: int) -> list[GenerateRequest]:
    """The first is of this kind; all have the same length."""
    return [
        GenerateRequest(
            [100 + 7 * i, 200 + i, 300], tokens, Sampling(seed=i), **(KINDS[kind] if i == 0 else {})
        )
        for i in range(streams)
    ]


def measure(model: Model, order: Order, wanted: Sequence[GenerateRequest]) -> Run:
    order.steps = order.ahead = 0
    started = time.perf_counter()
    first, *others = [model.submit(r) for r in wanted]
    answers = [list(first)]
    middle = time.perf_counter()
    answers += [list(h) for h in others]
    return Run(middle - started, time.perf_counter() - started, order.steps, order.ahead, answers)


def compare(model: Model, order: Order, kind: str, streams: int, tokens: int, rounds: int) -> None:
    """Prints a row for each order. The first round is a warm-up."""
    runs: dict[str, list[Run]] = {name: [] for name in ORDERS}
    for number in range(rounds + 1):
        for name in ORDERS if number % 2 else ORDERS[::-1]:
            order.in_turn = name == "in turn"
            runs[name].append(measure(model, order, requests(kind, streams, tokens)))
    answers = [run.answers for each in runs.values() for run in each]
    same = "same" if all(a == answers[0] for a in answers) else "differ"
    for name, each in runs.items():
        own = tokens / statistics.median(r.first for r in each[1:])
        every = streams * tokens / statistics.median(r.every for r in each[1:])
        last = each[-1]
        print(f"| {kind} | {name} | {every:,.0f} | {own:,.1f} | {last.ahead} of {last.steps} | {same} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--deterministic", action="store_true", help="with kernels of which a row's bits depend on it alone"
    )
    compare_all(parser.parse_args())


def compare_all(o: argparse.Namespace) -> None:
    path, sizes = o.model or default_model(), {"slots": o.streams, "context": o.tokens + 16}
    with Model.load(path, device=o.device, deterministic=o.deterministic, **sizes) as model:
        order = Order(model)
        print(f"{o.streams} streams of {o.tokens} tokens, {Path(path).name} on {model.device.name}\n")
        print("| one of them has | steps | all, t/s | that one, t/s | launched ahead | answers |")
        print("|---|---|--:|--:|--:|---|")
        for kind in KINDS:
            compare(model, order, kind, o.streams, o.tokens, o.rounds)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
