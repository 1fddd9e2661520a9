"""`satchel quantize --target-size`: searches formats, writes the file, and compares predicted and measured
divergence.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from satchel.cli.console import note
from satchel.cli.groups import wrong
from satchel.cli.progress import counted
from satchel.cli.quantizing.options import BudgetOptions, MixOptions, parse_size
from satchel.cli.quantizing.quantize_job import QuantizeJob
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.formats.gguf import GGUF
    from satchel.formats.quantize import QuantizeOptions
    from satchel.quant.recipes import Recipe
    from satchel.runtime.budget.probe import Prober, Windows
    from satchel.runtime.budget.search import FormatSearchResult
    from satchel.runtime.tasks.perplexity import Divergence

WINDOW = 512


@dataclass(frozen=True, slots=True)
class TextWindows:
    """Windows of the text."""

    tried: Windows  # formats are measured on these
    kept_back: Windows  # held out to judge the result; the same windows where the text has no more
    bos: int | None
    source: Path

    @property
    def apart(self) -> bool:
        return self.kept_back is not self.tried


def spend(job: QuantizeJob, mix: MixOptions, options: BudgetOptions) -> None:
    """Chooses formats for the requested size, quantizes as with a type, and writes the report."""
    from satchel.cli.quantizing.page import PageFacts, write_page
    from satchel.runtime.budget.probe import Prober

    gguf = _gguf(job)
    texts = _texts(gguf, options)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="satchel-") as folder:
        base, judge = Path(folder, "tried"), Path(folder, "kept-back")
        threads = job.threads or 0
        with Prober(gguf, texts.tried, texts.bos, base, threads=threads) as prober:
            found, settings = _search(job, gguf, prober, mix, options)
            if texts.apart and not job.dry:
                prober.write_base(judge, texts.kept_back)
        job.run(settings)
        written = job.first_file(settings)
        measured = None if job.dry else _measure(written, job.threads or 0, texts, base, judge, found)
    if options.rules is not None:
        _write_text(options.rules, _rules(settings.recipe, found))
        note(f"{options.rules}: the choice as rules, to be given as TYPE")
    if options.report is not None:
        seconds = time.monotonic() - started
        facts = PageFacts(str(gguf.path), str(options.text), found, measured, recipes(job, found), seconds)
        _write_text(options.report, write_page(facts))
        note(f"{options.report}: the report")


def _gguf(job: QuantizeJob) -> GGUF:
    from satchel.formats.gguf import GGUF

    if not isinstance(job.source, GGUF):
        raise RequestError(
            f"{job.source.path}: choosing by divergence runs the model, so it needs a GGUF file: "
            "convert the checkpoint first (satchel convert)"
        )
    return job.source


def _texts(gguf: GGUF, options: BudgetOptions) -> TextWindows:
    from satchel.cli.commands.perplexity import read_text
    from satchel.formats.tokenizer import build_tokenizer
    from satchel.runtime.tasks.perplexity import windows

    if options.text is None:
        raise wrong("--text", "expected a text")
    tokenizer = build_tokenizer(gguf.metadata, source=str(gguf.path))
    arch = gguf.metadata.get_str("general.architecture")
    size = min(WINDOW, gguf.metadata.get_uint(f"{arch}.context_length", WINDOW))
    cut = windows(tokenizer.encode(read_text(options.text)), size)
    specials = tokenizer.specials
    bos = specials.bos if specials.add_bos else None
    # Windows spread over the whole text, because adjacent ones are similar; every other one is held out.
    count = min(2 * options.windows, len(cut))
    spread = cut[[i * len(cut) // count for i in range(count)]]
    tried = spread[::2]
    return TextWindows(tried, spread[1::2] if count > 1 else tried, bos, options.text)


def _search(
    job: QuantizeJob, gguf: GGUF, prober: Prober, mix: MixOptions, options: BudgetOptions
) -> tuple[FormatSearchResult, QuantizeOptions]:
    from satchel.formats.quantize import QuantizeOptions, find_recipe
    from satchel.formats.quantizing.plan import find_overrides, head_of
    from satchel.runtime.budget.search import FormatSearch

    shapes = {name: info.shape for name, info in gguf.tensors.items() if 0 not in info.shape}
    held = find_overrides(shapes, mix.overrides())
    if mix.leave_output:
        held[head_of(shapes)] = gguf.tensors[head_of(shapes)].format
    with counted("measuring") as progress:
        search = FormatSearch(
            gguf,
            prober,
            calibration=job.calibration,
            wanted=options.formats,
            held=held,
            threads=job.threads,
            progress=progress,
        )
        same = {name: gguf.tensors[name].format for name in search.candidates}
        settings = QuantizeOptions(find_recipe("F16"), requantize=mix.requantize, formats=same)
        planned = job.plan(settings)
        fixed = planned.file_bytes - sum(search.bytes_in(name, f) for name, f in same.items())
        if options.size is not None:
            limit = parse_size(options.size)
        else:
            elements = sum(choice.elements for choice in planned.choices)
            limit = planned.file_bytes - planned.bytes_after + int((options.bpw or 0) * elements / 8)
        found = search.run(limit, fixed, options.seconds)
    if not search.gptq:
        note("errors were measured without GPTQ, for time; the file has it (--search-time allows more)")
    return found, replace(settings, recipe=_nearest(found), formats=found.formats)


def _nearest(found: FormatSearchResult) -> Recipe:
    """The recipe whose base format has most weights: its number becomes general.file_type."""
    import numpy as np

    from satchel.formats.quantize import find_recipe
    from satchel.quant.recipes import RECIPES

    weights: dict[str, int] = {}
    for row in found.rows:
        weights[row.chosen.format] = weights.get(row.chosen.format, 0) + int(np.prod(row.shape))
    base = max(weights, key=lambda name: weights[name])
    named = [r for r in RECIPES.values() if r.base == base]
    return next((r for r in named if r.name.endswith("_M")), named[0] if named else find_recipe(base))


def _measure(
    written: Path, threads: int, texts: TextWindows, base: Path, judge: Path, found: FormatSearchResult
) -> Divergence:
    """Measures the finished file's divergence, and prints it with the prediction to stderr."""
    from satchel.formats.logits import open_logits
    from satchel.runtime.budget.probe import measure_file

    same = measure_file(written, open_logits(base), texts.bos, threads)
    note(f"divergence predicted {found.predicted:.5f}, measured {same.kld_mean:.5f} on the windows tried")
    if not texts.apart:
        return same
    other = measure_file(written, open_logits(judge), texts.bos, threads)
    said = f"{other.kld_mean:.5f} +/- {other.kld_error:.5f} on {len(texts.kept_back)} others of the text"
    note(f"divergence {said}; same top token {100 * other.same_top:.2f} %")
    return other


def recipes(job: QuantizeJob, found: FormatSearchResult) -> dict[str, tuple[int, float]]:
    """(file bytes, predicted divergence) of the named recipes that the search covers."""
    from satchel.formats.quantize import QuantizeOptions
    from satchel.quant.recipes import RECIPES

    told: dict[str, tuple[int, float]] = {}
    for name, recipe in RECIPES.items():
        if recipe.quantized:
            choices = job.plan(QuantizeOptions(recipe, requantize=True)).choices
            predicted = found.predict({c.name: c.target for c in choices})
            if predicted is not None and predicted not in told.values():
                told[name] = predicted
    return told


def _rules(recipe: Recipe, found: FormatSearchResult) -> str:
    from satchel.formats.quantizing.rules import write_rules

    return write_rules(recipe.name, found.formats)


def _write_text(path: Path, text: str) -> None:
    from satchel.formats.gguf.atomic import replace_files

    def fill(file: IO[bytes]) -> None:
        file.write(text.encode())

    replace_files([(path, fill)])
