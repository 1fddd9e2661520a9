"""What drafts by lookup gain for answers that are given beforehand, as if a large model wrote them.

    python bench/draft_replay.py [--tokenizer FILE.gguf] [--costs TABLE/TABLE] [--examples N] [--tokens N]
                                 [--tasks edit,patch] [--revision REV] [--articles WIKITEXT] [--texts TEXT]
                                 [--pairs FILE.jsonl] [--draft-max N] [--noise X] [--json FILE]

The scheduler and the drafter are the program's own. The engine computes nothing: it gives the next tokens of
the answer, and a step takes what a table says of its rows (draft_costs.py). So the result is how fast one
sequence would be with a model of such steps that gives this very answer, without the drafter's own time.
Examples come from the repository, and from files of yours (draft_tasks.py).

A row has tokens a step, draft tokens a step, the accepted share of these, and the speed relative to steps of
one row. An answer's first token counts to its prompt. What the drafter measures of steps has noise, from the
same seed each time.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draft_costs import TABLES, StepCosts, Tally, read_costs, write_results
from draft_tasks import Example, articles, own_examples, recorded, stories
from one_line import errors_in_one_line

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.kv import Miss, Pages
from satchel.runtime.layers.arch import Cache
from satchel.runtime.scheduler import Scheduler
from satchel.runtime.scheduler import Sequence as Request
from satchel.runtime.speculative import Speculation, Speculator
from satchel.store.resolve import default_model

BATCH, BLOCK = 512, 32
SECONDS = 2e-3  # of a step of one row: the drafter compares ratios alone
OUTLIERS, OUTLIER = 0.01, 10.0  # how often a step takes so many times as long
PROMPT = 0.015  # cost of a prompt token, in steps of one row
HEAD = (
    "| costs | task | answers | tokens | tokens a step | drafted a step | accepted | speed-up |",
    "|---|---|--:|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """An example in tokens."""

    task: str
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class Result:
    """How the answers of a task went."""

    costs: str
    task: str
    answers: int
    tally: Tally

    def row(self) -> str:
        return f"| {self.costs} | {self.task} | {self.answers} | {self.tally.cells()} |"


class ReplayEngine:
    """What a scheduler needs of an engine that computes nothing and has one slot."""

    def __init__(self, context: int) -> None:
        self.batch, self.pages = BATCH, Pages(Cache(context, slots=1, block=BLOCK))

    def begin(self, slot: int, ids: Sequence[int], salt: str = "") -> tuple[int, Miss]:
        self.rewind(slot, 0)
        return 0, Miss.COLD

    def publish(self, slot: int, ids: Sequence[int], salt: str = "") -> None:
        """Nothing is cached: each request computes its prompt."""

    def rewind(self, slot: int, length: int) -> int:
        self.pages.release(slot, length)
        return length


class Clock:
    """Seconds of steps as a service measures them: their cost with noise, and sometimes far too many, where
    the machine did something else. noise: standard deviation of the logarithm; 0: they are exact.
    """

    def __init__(self, noise: float) -> None:
        self._noise, self._drawn = noise, random.Random(0)

    def __call__(self, cost: float) -> float:
        if not self._noise:
            return SECONDS * cost
        outlier = OUTLIER if self._drawn.random() < OUTLIERS else 1.0
        return SECONDS * cost * outlier * self._drawn.lognormvariate(0.0, self._noise)


def replay(examples: Sequence[Encoded], costs: StepCosts, options: Speculation, noise: float = 0.0) -> Tally:
    """Answers one request after another, as a service does; what the drafter learns, it keeps."""
    speculator, tally, clock = Speculator(options), Tally(), Clock(noise)
    context = max(len(e.prompt) + len(e.answer) for e in examples) + 1
    scheduler = Scheduler(ReplayEngine(context), 1)
    for example in examples:
        request = Request(GenerateRequest(example.prompt, len(example.answer)), 0.0)
        scheduler.add(request)
        while not request.finish:
            batch = scheduler.plan(0.0)
            decoding = request.decoding
            batch = speculator.extend(batch, scheduler) if decoding else batch
            entry = batch[request]
            cost = costs(len(entry.ids)) if decoding else PROMPT * len(entry.ids)
            following = example.answer[request.generated : request.generated + entry.rows]
            before, seconds = request.generated, clock(cost)
            speculator.timed(batch, seconds, scheduler)
            scheduler.done(batch, following, 0.0, seconds)
            if decoding:
                tally.add(len(entry.ids) - 1, request.generated - before - 1, cost)
        speculator.forget(request)
    return tally


def gather(options: argparse.Namespace) -> list[Example]:
    """The examples that the options ask for, task by task."""
    wanted = options.tasks.split(",") if options.tasks else []
    found = list(own_examples(wanted, options.revision, options.examples))
    if options.articles:
        found += articles(options.articles, options.examples)
    if options.texts:
        found += stories(options.texts, options.examples)
    if options.pairs:
        found += recorded(options.pairs)
    wanted = wanted or list(dict.fromkeys(e.task for e in found))
    if missing := set(wanted).difference(e.task for e in found):
        raise RequestError(f"no examples of {', '.join(sorted(missing))}")
    return [e for task in wanted for e in found if e.task == task]


def encode(examples: Sequence[Example], tokenizer: Tokenizer, tokens: int) -> Iterator[Encoded]:
    """Examples in tokens, without those whose answer is a single one."""
    for example in examples:
        prompt = tokenizer.encode(example.prompt)
        answer = tokenizer.encode(example.answer, bos=False, start=False)[:tokens]
        if prompt and len(answer) > 1:
            yield Encoded(example.task, prompt, answer)


def open_tokenizer(path: Path) -> Tokenizer:
    gguf = open_gguf(path)
    try:
        return build_tokenizer(gguf.metadata, source=str(path))
    finally:
        gguf.close()


def examples_by_task(options: argparse.Namespace) -> dict[str, list[Encoded]]:
    """The examples that the options ask for, in tokens."""
    tokenizer = open_tokenizer(options.tokenizer or Path(default_model()))
    found: dict[str, list[Encoded]] = {}
    for example in encode(gather(options), tokenizer, options.tokens):
        found.setdefault(example.task, []).append(example)
    return found


def results(options: argparse.Namespace) -> Iterator[Result]:
    tasks = examples_by_task(options)
    speculation = Speculation(lookup=True, draft_max=options.draft_max)
    for name in options.costs.split("/"):
        costs = read_costs(name)
        for task, examples in tasks.items():
            yield Result(name, task, len(examples), replay(examples, costs, speculation, options.noise))


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options that say which answers are replayed, and with what."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, default=None, help="default: the bundled model's")
    parser.add_argument(
        "--costs",
        default="/".join(TABLES),
        help=f"tables with slashes between them: {', '.join(TABLES)}, or pairs as in 1:1,9:1.3,17:1.5",
    )
    parser.add_argument("--examples", type=int, default=16, help="of each task, at most")
    parser.add_argument("--tokens", type=int, default=1500, help="of an answer, from its beginning")
    parser.add_argument("--revision", default="HEAD", help="the history of edits ends with this commit")
    parser.add_argument("--articles", type=Path, help="a text in WikiText's format: the task summary")
    parser.add_argument("--texts", type=Path, help="a text: the task story")
    parser.add_argument("--pairs", type=Path, help='lines of JSON with "task", "prompt" and "answer"')
    parser.add_argument("--tasks", default="", help="these alone, with commas between them")
    parser.add_argument("--draft-max", type=int, default=16)
    parser.add_argument("--noise", type=float, default=0.05, help="of the drafter's clock; 0: none")
    parser.add_argument("--json", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    options = parser_of(__doc__).parse_args(argv)
    found = []
    print("\n".join(HEAD))
    for result in results(options):
        found.append(result)
        print(result.row(), flush=True)
    write_results(options.json, found)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
