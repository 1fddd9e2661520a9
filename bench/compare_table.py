"""Results of bench/compare.py as a Markdown table and as JSON: medians, spread, ratios, bandwidth."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compare_seats import Outcome

PEER, OURS = "llama.cpp", "satchel"
HEADS = ("model", "test", "llama.cpp t/s", "Satchel t/s", "ratio", "GB/s", "of read bandwidth")
KNOWN_RATES = 100.0  # tokens per second above which decimals are noise


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the versions of a table."""

    date: str
    processor: str
    cores: int
    threads: int
    commit: str
    system: str


def processor(text: str) -> str:
    """The processor's name, family and model in the text of /proc/cpuinfo, since a virtual machine may hide
    the name; empty where there is none.
    """
    found = dict(re.findall(r"^(model name|cpu family|model|Hardware|CPU part)\s*:\s*(.+?)\s*$", text, re.M))
    name = found.get("model name") or found.get("Hardware") or ""
    if "cpu family" in found and "model" in found:
        name += f" (family {found['cpu family']}, model {found['model']})"
    elif not name and "CPU part" in found:
        name = f"{platform.machine()}, part {found['CPU part']}"
    return name.strip()


def machine(root: Path, threads: int) -> Machine:
    path = Path("/proc/cpuinfo")
    name = processor(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else ""
    return Machine(
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        name or platform.processor() or platform.machine(),
        os.cpu_count() or 1,
        threads,
        commit(root),
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    )


def commit(root: Path) -> str:
    """The checked-out commit, and whether the work tree differs from it; "unknown" outside of a checkout."""
    found = []
    for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            run = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
        found.append(run.stdout.strip())
    return found[0] + (" with local changes" if found[1] else "")


def ratio(outcome: Outcome) -> float | None:
    """Ratio of the medians; None where one is missing."""
    peer, ours = (outcome.samples.get(name) for name in (PEER, OURS))
    return statistics.median(ours) / statistics.median(peer) if peer and ours else None


def rate(outcome: Outcome, engine: str = OURS) -> float | None:
    """Bytes per second that decoding reads, by the byte count of Satchel's plan."""
    size = outcome.facts.get(OURS, {}).get("bytes_per_token")
    samples = outcome.samples.get(engine)
    if not size or not samples or outcome.row.prompt:
        return None
    return float(size) * statistics.median(samples)


def speed(samples: Sequence[float]) -> str:
    """Median and standard deviation, with meaningful decimals."""
    middle = statistics.median(samples)
    digits = 0 if middle >= KNOWN_RATES else 1
    spread = f" ± {statistics.stdev(samples):.{digits}f}" if len(samples) > 1 else ""
    return f"{middle:.{digits}f}{spread}"


def cell(outcome: Outcome, engine: str) -> str:
    if samples := outcome.samples.get(engine):
        return speed(samples)
    reason = outcome.failures.get(engine, "not run")
    return "crashed" if reason.startswith("ended ") else "failed"


def line(outcome: Outcome, bandwidth: float | None) -> tuple[str, ...]:
    """A row's cells, in the order of HEADS."""
    times, moved = ratio(outcome), rate(outcome)
    return (
        outcome.model,
        outcome.row.name,
        cell(outcome, PEER),
        cell(outcome, OURS),
        "" if times is None else f"{times:.2f}",
        "" if moved is None else f"{moved / 1e9:.1f}",
        "" if moved is None or not bandwidth else f"{moved / bandwidth:.0%}",
    )


def limits(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The read bandwidth by model: the largest reading between its rows."""
    found: dict[str, float] = {}
    for outcome in outcomes:
        if outcome.bandwidth:
            found[outcome.model] = max(outcome.bandwidth, found.get(outcome.model, 0.0))
    return found


def cut(outcomes: Sequence[Outcome]) -> list[str]:
    """The table's lines; only a model's first row has its name."""
    bandwidths = limits(outcomes)
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|" + "---:|" * (len(HEADS) - 2)]
    before = ""
    for outcome in outcomes:
        cells = line(outcome, bandwidths.get(outcome.model))
        shown = cells if outcome.model != before else ("", *cells[1:])
        before = outcome.model
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Why cells are empty."""
    return [f"{o.model}, {o.row.name}: {name} {why}" for o in outcomes for name, why in o.failures.items()]


def versions(outcomes: Sequence[Outcome]) -> list[str]:
    """Each engine's version and kernels."""
    said = {
        f"{facts['version']} ({facts['system']})": None
        for name in (PEER, OURS)
        for o in outcomes
        if "version" in (facts := o.facts.get(name, {}))
    }
    return list(said)


def chosen(outcomes: Sequence[Outcome]) -> str:
    """llama.cpp's fastest settings, each with the models and tests for which it won."""
    found: dict[str, list[str]] = {}
    for o in outcomes:
        if setting := o.facts.get(PEER, {}).get("setting"):
            found.setdefault(setting, []).append(f"{o.model} {o.row.name}")
    return "; ".join(f"{setting}: {', '.join(rows)}" for setting, rows in found.items())


def markdown(about: Machine, outcomes: Sequence[Outcome], notes: Sequence[str], command: str) -> str:
    """The whole page: the table and its notes."""
    read = ", ".join(f"{name} {value / 1e9:.1f} GB/s" for name, value in limits(outcomes).items())
    points = [
        f"{about.processor}, {about.cores} cores, {about.threads} threads; {about.system}",
        f"{about.date}, commit {about.commit}, `{command}`",
        *versions(outcomes),
        f"read bandwidth, over as many bytes as a step reads: {read or 'not measured'}",
        "interleaved runs, one engine at a time: median ± standard deviation of tokens per second, all "
        "sequences together; Satchel's time includes sampling, llama.cpp's ends with the logits",
    ]
    if setting := chosen(outcomes):
        points.append(f"llama.cpp's fastest settings: {setting}")
    points += [*notes, *failures(outcomes)]
    return "\n".join([*cut(outcomes), "", *(f"- {p}" for p in dict.fromkeys(points))]) + "\n"


def record(about: Machine, outcomes: Sequence[Outcome], notes: Sequence[str]) -> dict[str, Any]:
    """The results as JSON, with every sample. Rates are in bytes per second."""
    rows = [
        {
            **asdict(o),
            "medians": {name: statistics.median(s) for name, s in o.samples.items()},
            "ratio": ratio(o),
            "bytes_per_second": {name: rate(o, name) for name in o.samples},
        }
        for o in outcomes
    ]
    return {"machine": asdict(about), "bandwidth": limits(outcomes), "rows": rows, "notes": list(notes)}
