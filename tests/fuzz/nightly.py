"""Runs many mutated inputs, one after another: `python tests/fuzz/nightly.py [COUNT] [SEED]`.

Each must succeed or end in one of the three errors, within a second, with memory in proportion to its bytes.
The first that does not is written to the current folder and ends the run.
"""

from __future__ import annotations

import random
import resource
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import fuzz_targets
from mutate import mutate
from mutate_values import READERS, mutate_values

from satchel.errors import ModelError
from satchel.formats.gguf import open_gguf
from satchel.formats.gguf.check import Survey

HERE = Path(__file__).parent
# Percentage of inputs per target; most are GGUF files, the most common foreign input.
SHARES = {
    "gguf": 40,
    "tokenizer": 10,
    "template": 10,
    "imatrix": 4,
    "safetensors": 4,
    "editing": 2,
    "logits": 2,
    "manifest": 2,
    "state": 2,
    "requests": 6,
    "schema": 3,
    "gbnf": 2,
    "lark": 2,
    "regex": 2,
    "registry": 2,
    "lock": 1,
    "journal": 1,
    "config": 1,
    "wire": 1,
    "lora": 1,
    "peft": 1,
    "onnx": 1,
}
SECONDS = 1.0  # seconds of this process's processor time
SLOW = {
    "requests": 10.0,
    "schema": 5.0,
    "gbnf": 5.0,
    "lark": 5.0,
    "regex": 5.0,
}  # the engine's and the compiler's too
SPARE = 1 << 20  # bytes that reading a header may take beside four times the file's own
# Bytes by which the process may grow: some at first, and what the tokenizers library keeps (30 KB) of every
# byte-level vocabulary that has encoded a text, an eighth of the inputs.
GROWTH, GROWTH_EACH = 128 << 20, 6000


def corpus(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((HERE / "corpus" / target).iterdir())]


def check_memory(data: bytes) -> None:
    """Reading a container, strictly and leniently, takes memory in proportion to its bytes."""
    path = fuzz_targets.put(data)
    tracemalloc.start()
    try:
        for judge in (None, Survey()):
            try:
                (open_gguf(path) if judge is None else open_gguf(path, judge)).close()
            except ModelError:
                continue
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > 4 * len(data) + SPARE:
        raise AssertionError(f"{peak:,} bytes for a file of {len(data):,}")


def one(target: str, data: bytes) -> tuple[bool, float]:
    """Whether the input ended in an error, and the seconds that it took."""
    start = time.process_time()
    refused = fuzz_targets.run(target, data) is not None
    seconds = time.process_time() - start
    if seconds > SLOW.get(target, SECONDS):
        raise AssertionError(f"{seconds:.2f} s")
    if target == "gguf":
        check_memory(data)
    return refused, seconds


def main(count: int, seed: int) -> None:
    rand = random.Random(seed)
    shares = {target: share for target, share in SHARES.items() if not fuzz_targets.missing(target)}
    for target in sorted(SHARES.keys() - shares.keys()):
        print(f"{target}: left out: {fuzz_targets.missing(target)}")
    seeds = {target: corpus(target) for target in shares}
    refused: Counter[str] = Counter()
    done: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        (target,) = rand.choices(list(shares), list(shares.values()))
        whole = rand.choice(seeds[target])
        if target in READERS and rand.random() < 0.8:
            data = mutate_values(target, whole, rand, seeds[target])
        else:
            data = mutate(whole, rand, seeds[target], head=8192 if target == "gguf" else 0)
        try:
            failed, seconds = one(target, data)
        except BaseException:
            kept = Path(f"fuzz-{target}-{seed}-{number}")
            kept.write_bytes(data)
            print(f"{target}: input {number} of seed {seed} is kept as {kept}", file=sys.stderr)
            raise
        done[target] += 1
        refused[target] += failed
        slowest[target] = max(slowest.get(target, 0.0), seconds)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    for target in shares:
        print(f"{target}: {done[target]:,} inputs, {refused[target]:,} refused", end=", ")
        print(f"slowest {slowest.get(target, 0):.3f} s")
    print(f"{count:,} inputs of seed {seed}: the process grew by {grown / 1e6:.0f} MB")
    if grown > GROWTH + GROWTH_EACH * count:
        sys.exit(f"fuzz: expected at most {GROWTH + GROWTH_EACH * count:,} bytes more, got {grown:,}")


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:3]]
    main(*given, *(100_000, 1)[len(given) :])
