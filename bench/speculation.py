"""Gain of speculative decoding: speed relative to the same model without it, and the acceptance rate of draft
tokens.

    python bench/speculation.py [--model FILE] [--draft-model FILE] [--rounds N] [--tokens N]
                                [--tasks code,edit] [--markdown FILE]

Both answer each question in turns, in changing order; a row has the median of a task's ratios. The answers
must be equal, token for token. Exit code 1 where a task runs at less than 0.98 times the speed without
drafts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from satchel.runtime.api.model import Model
from satchel.runtime.api.reply import Reply
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation
from satchel.store.resolve import default_model

LEAST = 0.98
CONTEXT = 4096
LONG = {"code": 1400}  # most tokens of a task's answers, where they are to be longer than those of others
TEXTS = (
    "The harbour lies on the north side of the bay. Every morning the fishing boats leave before "
    "sunrise and come back at noon with herring and cod. In the old market hall the fish is sold by "
    "weight, and the cooks of the town come early to choose. When a storm is near, the bell of the "
    "lighthouse rings three times and all boats turn back to the harbour.",
    "Anna planted a small apple tree behind the house. In the first year it had only five leaves. In "
    "the second year a bird built a nest in it. In the third year it gave two red apples, and Anna "
    "shared them with her brother Tom. Now the tree is taller than the roof, and every autumn the "
    "whole street eats apple cake.",
)
MODULE = Path(__file__).with_name("sample_module.py").read_text(encoding="utf-8")
TASKS: dict[str, tuple[str, ...]] = {
    "code": (
        "Rename the class Article to Item in this module. Give the whole module and nothing else:\n\n"
        f"{MODULE}",
        "Add a method to Warehouse that gives the names of all articles of which no piece is left. Give the "
        f"whole module and nothing else:\n\n{MODULE}",
    ),
    "repeat": tuple(f"Repeat this text word by word:\n\n{t}" for t in TEXTS),
    "edit": tuple(f"Correct the spelling of this text and change nothing else:\n\n{t}" for t in TEXTS),
    "summarise": tuple(f"Summarise this text in the words of the text:\n\n{t}" for t in TEXTS),
    "chat": (
        "Tell me a story about a dragon who is afraid of the dark.",
        "What is the capital of France, and what can one see there?",
        "Why do people dream?",
    ),
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a task."""

    task: str
    drawn: str
    ratio: float  # speed relative to that without speculation
    rate: float  # tokens per second without it
    drafted: int
    accepted: int
    tokens: int

    def row(self) -> str:
        share = f"{self.accepted / self.drafted:.0%}" if self.drafted else "-"
        return (
            f"| {self.task} | {self.drawn} | {self.rate:.0f} | {self.ratio:.2f} | "
            f"{self.drafted / self.tokens:.2f} | {share} |"
        )


def ask(model: Model, question: str, sampling: Sampling, tokens: int) -> Reply:
    """An answer of at most so many tokens."""
    reply = model.chat([{"role": "user", "content": question}], max_tokens=tokens, sampling=sampling)
    reply.read()
    return reply


def measure(plain: Model, speculating: Model, task: str, drawn: str, rounds: int, tokens: int) -> Result:
    ratios, rates, made, drafted, accepted = [], [], 0, 0, 0
    tokens = max(tokens, LONG.get(task, 0))
    for i in range(rounds):
        sampling = GREEDY if drawn == "greedy" else Sampling(seed=i)
        for question in TASKS[task]:
            pair = (plain, speculating) if i % 2 else (speculating, plain)
            found = {id(m): ask(m, question, sampling, tokens) for m in pair}
            without, with_drafts = found[id(plain)], found[id(speculating)]
            if without.ids != with_drafts.ids:
                raise SystemExit(f"{task}, {drawn}: the answers differ")
            if len(without.ids) > 1:
                ratios.append(without.stats.decode_seconds / with_drafts.stats.decode_seconds)
                rates.append(without.stats.decode_rate)
            made += len(with_drafts.ids)
            drafted += with_drafts.stats.drafted
            accepted += with_drafts.stats.accepted
    if not ratios:
        raise SystemExit(f"{task}, {drawn}: no answer has two tokens")
    return Result(task, drawn, statistics.median(ratios), statistics.median(rates), drafted, accepted, made)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What speculative decoding gains.")
    parser.add_argument("--model", type=Path, default=None, help="default: the bundled model")
    parser.add_argument("--draft-model", type=Path, default=None, help="draft by this model, not by lookup")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--markdown", type=Path, help="write the table here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    path = options.model or Path(default_model())
    wanted = Speculation(options.draft_model, lookup=options.draft_model is None)
    lines = [
        "| task | drawn | tokens/s without | speed-up | drafted a token | accepted |",
        "|---|---|---|---|---|---|",
    ]
    slow = False
    with (
        Model.load(path, context=CONTEXT) as plain,
        Model.load(path, context=CONTEXT, speculation=wanted) as speculating,
    ):
        for model in (plain, speculating):
            ask(model, "Hello", GREEDY, 32)
        for task in options.tasks.split(","):
            for drawn in ("greedy", "sampled"):
                result = measure(plain, speculating, task, drawn, options.rounds, options.tokens)
                slow |= result.ratio < LEAST
                lines.append(result.row())
                print(result.row(), file=sys.stderr)
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
