"""`satchel perplexity`: perplexity on a text, KL divergence from another model, and accuracy in multiple
choice. Results go to stdout, the rest to stderr.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.console import note, warn
from satchel.cli.groups import option, with_options, wrong
from satchel.cli.model_argument import model_file
from satchel.cli.options import ModelOptions, open_model
from satchel.cli.progress import Counted, counted
from satchel.formats.gguf.labels import parameters
from satchel.store.resolve import default_model

if TYPE_CHECKING:
    from satchel.cli.quality.report import ModelQuality
    from satchel.runtime.api.model import Model
    from satchel.runtime.tasks.choices import Accuracy, Task
    from satchel.runtime.tasks.perplexity import Divergence, Perplexity, Window

WINDOW = 512
FILES = "Models to compare, besides that of -m."
TEXT = "The text to score; - is stdin."
BASE = "Write the log-probabilities to this file, or with --kl-divergence compare with those in it."
COMPARE = "Compare with the base; without a base file, with the first model. The text is the base's."
CHOICE = "Tasks of several endings, HellaSwag-style: JSON lines or six lines a task."


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The measurements of a run."""

    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="TEXT", help=TEXT)] = None
    chunks: Annotated[int, option("--chunks", metavar="N", help="Score N windows; -1: all.")] = -1
    base: Annotated[
        Path | None, option("--kl-divergence-base", "--save-all-logits", metavar="FILE", help=BASE)
    ] = None
    compare: Annotated[bool, option("--kl-divergence", help=COMPARE)] = False
    choice: Annotated[
        Path | None, option("--multiple-choice", "--hellaswag", metavar="FILE", help=CHOICE)
    ] = None
    tasks: Annotated[
        int,
        option("--multiple-choice-tasks", "--hellaswag-tasks", metavar="N", help="Tasks to score; 0: all."),
    ] = 0
    plot: Annotated[
        Path | None, option("--plot", metavar="FILE", help="Draw divergence by position (.svg, .png, .pdf).")
    ] = None

    def __post_init__(self) -> None:
        if self.plot is not None and not self.compare:
            raise wrong("--plot", "it draws divergence: give --kl-divergence")
        if self.tasks < 0:
            raise wrong("--multiple-choice-tasks", f"{self.tasks}: give how many, or 0 for all")
        if self.tasks and self.choice is None:
            raise wrong("--multiple-choice-tasks", "there are no tasks: give --multiple-choice FILE")


@with_options
def perplexity(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="MODEL", parser=model_file, help=FILES)
    ] = None,
    *,
    model: ModelOptions,
    score: ScoreOptions,
    as_json: Annotated[
        bool, option("--json", help="Print one JSON object; of several models, a list.")
    ] = False,
) -> None:
    """Measure perplexity on a text, divergence from another model, or accuracy in multiple choice.

    The text is cut into windows of -c tokens, 512 by default. Several models make a table.

    Examples:
        satchel perplexity model.gguf -f text.txt
    """
    from satchel.cli.quality.plot import check_plot, draw
    from satchel.cli.quality.report import as_text, json_text, table

    first = model.wanted
    paths = [*([first] if first else []), *(models or [])] or [default_model()]
    check_use(paths, score)
    if score.plot is not None:
        check_plot(score.plot)
    text = None if score.file is None else read_text(score.file)
    started = time.perf_counter()
    found = Measuring(model, score, text).run(paths)
    if as_json:
        print(json_text(found, len(paths) > 1))
    else:
        print(table(found) if len(paths) > 1 else as_text(found[0]))
    if score.plot is not None:
        draw(score.plot, found)
        note(f"{score.plot}: divergence by position")
    tokens = sum(one.ppl.tokens for one in found if one.ppl)
    note(f"{tokens:,} tokens scored in {time.perf_counter() - started:.1f} s")


def check_use(paths: list[Path], score: ScoreOptions) -> None:
    if score.compare and score.base is None and len(paths) < 2:
        raise wrong(
            "--kl-divergence", "it compares with a file: give --kl-divergence-base FILE, or several models"
        )
    if score.base is not None and not score.compare and len(paths) > 1:
        raise wrong("--kl-divergence-base", "one model's log-probabilities are written: give one model")
    if score.file is None and not (score.compare and score.base) and score.choice is None:
        raise wrong("-f", "there is no text to score: give a file")


def read_text(path: Path) -> str:
    """The file's text without one final newline, as in llama.cpp."""
    data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    text = data.decode("utf-8", errors="replace")
    if text.count("\ufffd") > data.count("\ufffd".encode()):
        warn(f"{path}: some bytes are no UTF-8; each such place is read as U+FFFD")
    return text.removesuffix("\n")


def begin(model: Model) -> int | None:
    """The BOS token at the beginning of each window; None where the tokenizer adds none."""
    specials = model.tokenizer.specials
    return specials.bos if specials.add_bos else None


class Measuring:
    """Scores models one after the other; each is loaded once."""

    show: Counted

    def __init__(self, options: ModelOptions, score: ScoreOptions, text: str | None) -> None:
        self.options, self.score, self.text = options, score, text
        self.tasks: list[Task] = []
        if score.choice is not None:
            from satchel.runtime.tasks.choices import read_tasks

            self.tasks = read_tasks(score.choice)
            self.tasks = self.tasks[: score.tasks] if score.tasks else self.tasks

    def run(self, paths: list[Path]) -> list[ModelQuality]:
        base = self.score.base
        if not self.score.compare or base is not None:
            return [self.one(path, base, self.score.compare) for path in paths]
        with tempfile.TemporaryDirectory(prefix="satchel-") as folder:
            base = Path(folder, "base")
            first = self.one(paths[0], base, False)
            return [first, *(self.one(path, base, True) for path in paths[1:])]

    def one(self, path: Path, base: Path | None, compare: bool) -> ModelQuality:
        """Measures one model. base: the file of log-probabilities, written or, with `compare`, read."""
        from satchel.cli.quality.report import ModelQuality

        started = time.perf_counter()
        context = self.context(base if compare else None)
        with open_model(self.options.at(path), context=context) as model:
            show_notes(model)
            ppl: Perplexity | None = None
            kld: Divergence | None = None
            with counted(path.name) as self.show:
                if compare and base is not None:
                    ppl, kld = self.diverge(model, base)
                elif self.text is not None:
                    ppl = self.measure(model, context, base)
                choices = self.choose(model) if self.tasks else None
            size = sum(part.size for part in model.gguf.parts)
            bits = 8 * sum(t.nbytes for t in model.gguf.tensors.values()) / max(1, parameters(model.gguf))
        return ModelQuality(path, size, bits, context, time.perf_counter() - started, ppl, kld, choices)

    def context(self, base: Path | None) -> int:
        """Tokens per window: of -c, or of the base file."""
        if base is None:
            return self.options.load.context or (WINDOW if self.text is not None else 0)
        from satchel.formats.logits import open_logits

        wanted = open_logits(base).context
        given = self.options.load.context
        if given not in (0, wanted):
            told = f"{given}: {base} has windows of {wanted} tokens; leave it out"
            raise wrong("-c", told)
        return wanted

    def measure(self, model: Model, context: int, base: Path | None) -> Perplexity:
        """Measures the perplexity of the text; with `base`, writes the log-probabilities there."""
        from satchel.runtime.tasks.perplexity import measure, windows, write_base

        cut = windows(model.tokenize(self.text or ""), context, self.score.chunks)
        vocab, bos = model.arch.vocab, begin(model)
        if base is None:
            return measure(model.engine, cut, vocab, bos, progress=self.show_perplexity)
        return write_base(base, model.engine, cut, vocab, bos, self.show_perplexity)

    def diverge(self, model: Model, path: Path) -> tuple[Perplexity, Divergence]:
        """Measures the divergence from a base file."""
        from satchel.formats.logits import open_logits
        from satchel.runtime.tasks.perplexity import diverge

        base = open_logits(path)
        if self.text is not None:
            check_text(model, self.text, base.tokens.reshape(-1), path)
        vocab, bos, chunks = model.arch.vocab, begin(model), self.score.chunks
        return diverge(model.engine, base, vocab, bos, chunks, self.show_perplexity)

    def choose(self, model: Model) -> Accuracy:
        from satchel.runtime.tasks.choices import score

        return score(model.engine, self.tasks, model.tokenize, self.show_accuracy)

    def show_perplexity(self, done: int, total: int, so_far: Perplexity) -> None:
        self.show(done, total, f"windows: PPL {so_far.ppl:.4f} +/- {so_far.ppl_error:.4f}")

    def show_accuracy(self, done: int, total: int, so_far: Accuracy) -> None:
        found = f"{100 * so_far.raw:.2f} %, {100 * so_far.normalised:.2f} % normalised"
        self.show(done, total, f"tasks: {found}")


def show_notes(model: Model) -> None:
    for line in model.notes:
        note(f"satchel: note: {line}")


def check_text(model: Model, text: str, tokens: Window, base: Path) -> None:
    """Raises RequestError where the base file is of another text."""
    from satchel.errors import RequestError

    if model.tokenize(text)[: len(tokens)] != tokens.tolist():
        raise RequestError(f"{base}: made from another text than -f gives; leave -f out, or make it again")
