"""Trees of a draft model's likeliest tokens beside chains: how many of a model's tokens they would hold.

    python bench/draft_model_trees.py --draft-model FILE [--model FILE] [--costs TABLE/TABLE]
                                      [--drafting 0,0.1] [--rows 1,2,4,8,16] [--ranks N] [--tokens N]
                                      [--tasks chat,edit] [--json FILE]

The model answers the questions of bench/speculation.py, greedily. Then the draft model reads each answer, and
says which rank every token had among its likeliest. A path of a tree is a list of ranks: at each place the
likeliest token, or the second, and so on. It is right as far as the answer has these ranks, since the draft
model read the answer's own tokens up to there. A chain is the path of first ranks.

For each number of draft tokens the tree holds the paths that were right most often in these very answers:
its shape is the best in hindsight, and what its verification needs beside rows costs nothing, so the speed is
an upper bound. All paths together take a step of the draft model for each place (--drafting, relative to a
step of the model).

Prints, for each table of costs and cost of drafting, the best chain and the best tree.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draft_costs import TABLES, StepCosts, Tally, read_costs, write_results
from number_lists import numbers
from one_line import errors_in_one_line
from speculation import CONTEXT, TASKS, ask

from satchel.runtime.api.model import Model
from satchel.runtime.sampling import GREEDY
from satchel.store.resolve import default_model

Ranks = tuple[int, ...]
HEAD = (
    "| costs | drafting | chain | tokens a step | speed-up | tree | places | tokens a step | speed-up |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True, slots=True)
class Result:
    """How the answers went with a tree."""

    costs: str
    drafting: float
    ranks: int  # of a place; 1: a chain
    drafts: int
    places: int  # draft tokens of the longest path
    tally: Tally


def answered(model: Model, draft: Model, tasks: Sequence[str], ranks: int, tokens: int) -> list[list[int]]:
    """The draft model's rank of each token of the model's answers; `ranks`: a higher one."""
    found = []
    for question in (question for task in tasks for question in TASKS[task]):
        prompt = model.prompt_ids([{"role": "user", "content": question}])
        answer = ask(model, question, GREEDY, tokens).ids
        told = draft.prompt_logprobs([*prompt, *answer])[len(prompt) - 1 :]
        found.append([min(report.rank, ranks) for report in told])
    return found


def paths(answers: Sequence[Sequence[int]], ranks: int, most: int) -> list[Ranks]:
    """The paths of up to `most` tokens, by how often they are right behind a token of these answers. Each
    comes behind its beginnings, so the first N are a tree.
    """
    counted = Counter[Ranks]()
    for answer in answers:
        for at in range(1, len(answer)):
            for end in range(at + 1, min(at + most, len(answer)) + 1):
                if answer[end - 1] >= ranks:
                    break
                counted[tuple(answer[at:end])] += 1
    return sorted(counted, key=lambda path: (-counted[path], len(path), path))


def replay_tree(
    answers: Sequence[Sequence[int]], tree: Sequence[Ranks], costs: StepCosts, drafting: float
) -> Tally:
    """Answers one question after another, always with this tree as far as tokens are left."""
    known, places, tally = set(tree), max(map(len, tree)), Tally()
    cost = costs(1 + len(tree)) + drafting * places
    for answer in answers:
        at = 1  # the first token is the prompt's
        while at < len(answer):
            accepted = 0
            while at + accepted + 1 < len(answer) and tuple(answer[at : at + accepted + 1]) in known:
                accepted += 1
            tally.add(len(tree), accepted, cost)
            at += accepted + 1
    return tally


def results(
    answers: Sequence[Sequence[int]], ranks: int, rows: Sequence[int], tables: Sequence[str], drafting: float
) -> Iterator[Result]:
    """Chains and trees of these numbers of draft tokens."""
    for count in (1, ranks):
        found = paths(answers, count, max(rows))
        for drafts in rows:
            tree = found[:drafts]
            for name in tables:
                tally = replay_tree(answers, tree, read_costs(name), drafting)
                yield Result(name, drafting, count, len(tree), max(map(len, tree)), tally)


def row(found: Sequence[Result]) -> str:
    """The best chain and the best tree of a table and a cost of drafting."""
    chain = max((r for r in found if r.ranks == 1), key=lambda r: r.tally.speed_up)
    tree = max((r for r in found if r.ranks > 1), key=lambda r: r.tally.speed_up)
    cells = [f"{chain.costs} | {chain.drafting:g} | {chain.drafts}"]
    cells += [f"{chain.tally.tokens / chain.tally.steps:.2f} | {chain.tally.speed_up:.2f}"]
    cells += [f"{tree.drafts} | {tree.places}"]
    cells += [f"{tree.tally.tokens / tree.tally.steps:.2f} | {tree.tally.speed_up:.2f}"]
    return f"| {' | '.join(cells)} |"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=None, help="default: the bundled model")
    parser.add_argument("--draft-model", type=Path, required=True)
    parser.add_argument("--costs", default="/".join(TABLES), help="as of bench/draft_replay.py")
    parser.add_argument(
        "--drafting", default="0,0.1", help="steps of the model that one of the draft model takes"
    )
    parser.add_argument("--rows", type=numbers, default=[1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16])
    parser.add_argument("--ranks", type=int, default=4, help="tokens that a tree may have at a place")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer, at most")
    parser.add_argument("--tasks", default=",".join(TASKS), help="of bench/speculation.py")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    path = options.model or Path(default_model())
    with (
        Model.load(path, context=CONTEXT) as model,
        Model.load(options.draft_model, context=CONTEXT) as draft,
    ):
        answers = answered(model, draft, options.tasks.split(","), options.ranks, options.tokens)
    tables, found = options.costs.split("/"), list[Result]()
    first = [rank for answer in answers for rank in answer[1:]]
    shares = [f"{first.count(rank) / len(first):.0%}" for rank in range(options.ranks)]
    print(f"{len(first):,} tokens; of these are the draft model's first, second, ...: {', '.join(shares)}\n")
    print("\n".join(HEAD))
    for drafting in map(float, options.drafting.split(",")):
        of = list(results(answers, options.ranks, options.rows, tables, drafting))
        for name in tables:
            print(row([r for r in of if r.costs == name]), flush=True)
        found += of
    write_results(options.json, found)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
