"""Cost of structured output: time to compile a grammar, and time per token bitmask, on schemas of real size.

    python bench/grammar.py MODEL.gguf [--steps 2000]

MODEL: any file with a vocabulary, with weights or without. Answers are drawn from random logits through the
bitmasks, so the measured states are those that answers reach. Times are of one thread. The engine fills
bitmasks during the forward pass, with the interpreter lock released, so only the time beyond a pass delays a
token.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from grammar_cases import SCHEMAS, unpack

from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.grammar import AnyJson, Gbnf, Grammar, JsonSchema, Regex, Spec, compile_grammar

FIELDS = ("string", "integer", "number", "boolean")
LARGE = {
    "type": "object",
    "properties": {
        f"section_{i}": {
            "type": "object",
            "properties": {f"field_{j}": {"type": FIELDS[j % 4]} for j in range(12)},
            "required": [f"field_{j}" for j in range(12)],
            "additionalProperties": False,
        }
        for i in range(12)
    },
    "required": [f"section_{i}" for i in range(12)],
    "additionalProperties": False,
}
SPECS: dict[str, Spec] = {
    "person": JsonSchema(SCHEMAS["person"]),
    "people": JsonSchema(SCHEMAS["people"]),
    "linked list": JsonSchema(SCHEMAS["list"]),
    "12 x 12 fields": JsonSchema(LARGE),
    "any object": AnyJson(),
    "regex": Regex(r"[A-Z][a-z]{2,20}( [A-Z][a-z]{2,20}){1,3}, \d{4}-\d{2}-\d{2}"),
    "recursive GBNF": Gbnf('root ::= "(" root ")" | "[" (root ("," root)*)? "]" | [a-z]+'),
}
LIMIT = 400  # tokens of an answer; then a new one begins


def mask_times(tokenizer: Tokenizer, grammar: Grammar, steps: int) -> list[float]:
    """Seconds of each of `steps` bitmasks."""
    rng, count = np.random.default_rng(0), tokenizer.vocab_size
    words = np.zeros(-(-count // 32), np.uint32)
    found: list[float] = []
    constraint, made = grammar.constraint(), 0
    while len(found) < steps:
        if constraint.finished or made == LIMIT:
            constraint, made = grammar.constraint(), 0
        started = time.perf_counter()
        constraint.fill(words)
        found.append(time.perf_counter() - started)
        constraint.accept(int(rng.choice(np.flatnonzero(unpack(words, count)))))
        made += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    with open_gguf(args.model) as gguf:
        tokenizer = build_tokenizer(gguf.metadata)
    started = time.perf_counter()
    compile_grammar(tokenizer, Regex("a"))
    print(
        f"{tokenizer.vocab_size:,} tokens, read in {time.perf_counter() - started:.2f} s (once for a model)\n"
    )
    print("| form | compile ms | mask p50 us | p90 us | p99 us | max us |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, spec in SPECS.items():
        started = time.perf_counter()
        grammar = compile_grammar(tokenizer, spec)
        compiled = (time.perf_counter() - started) * 1e3
        times = np.array(mask_times(tokenizer, grammar, args.steps)) * 1e6
        row = " | ".join(f"{np.percentile(times, p):,.0f}" for p in (50, 90, 99, 100))
        print(f"| {name} | {compiled:.1f} | {row} |", flush=True)


if __name__ == "__main__":
    main()
