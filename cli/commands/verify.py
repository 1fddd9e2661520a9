"""`satchel verify [MODEL]`: all that is wrong with a model file, each with its place and what repairs it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from satchel.cli.model_argument import ModelOrBundled

if TYPE_CHECKING:
    from satchel.formats.verify import Finding
    from satchel.runtime.tasks.verify import VerifyReport

SHOWN = 8  # findings printed per check and severity; --all and --json print all


def verify(
    model: ModelOrBundled = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    values: Annotated[bool, typer.Option("--values/--no-values", help="Read the weights too.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every finding.")] = False,
) -> int:
    """Check a model file: container, meaning, weights, tokenizer, chat template.

    Exit codes: 0 nothing is wrong, 1 something is, 2 the file can't be opened.

    Examples:
        satchel verify model.gguf
    """
    from satchel.cli.chat.bar import late_bar
    from satchel.runtime.tasks.verify import verify as check
    from satchel.store.resolve import default_model

    with late_bar("reading weights", sys.stderr, in_bytes=True) as progress:
        report = check(model or default_model(), values=values, progress=progress)
    if as_json:
        typer.echo(json.dumps(described(report), indent=2, allow_nan=False))
    else:
        _print(report, every)
    return report.exit_code(strict)


def described(report: VerifyReport) -> dict[str, Any]:
    """The report as plain values for JSON."""
    return {
        "path": str(report.path),
        "parts": [str(part) for part in report.parts],
        "size": report.size,
        "tensors": report.tensors,
        "readable": report.readable,
        "errors": report.errors,
        "warnings": len(report.findings) - report.errors,
        "checked": list(report.checked),
        "left_out": dict(report.left_out),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _print(report: VerifyReport, every: bool) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for finding in report.findings:
        counts[finding.check, finding.severity] += 1
        if every or counts[finding.check, finding.severity] <= SHOWN:
            _print_finding(finding, len(report.parts) > 1)
    for (check, severity), count in counts.items():
        if not every and count > SHOWN:
            typer.echo(f"... and {count - SHOWN} {severity}s more in {check}: --all prints them")
    for check, reason in report.left_out.items():
        typer.echo(_shown(f"not checked: {check}: {reason}"))
    typer.echo(_shown(f"{report.path}: {_summary(report, report.checked)}"))


def _print_finding(finding: Finding, parts: bool) -> None:
    place = finding.subject or "file"
    if finding.offset is not None:
        place += f" at byte {finding.offset:,}"
    if parts:
        place += f" of {Path(finding.file).name}"
    typer.echo(_shown(f"{finding.severity}: {finding.check}: {place}"))
    rows = [("wanted", finding.wanted), ("found", finding.found), ("repair", finding.repair)]
    for name, text in rows:
        if text:
            typer.echo(_shown(f"    {name}: {text}"))


def _summary(report: VerifyReport, checked: Sequence[str]) -> str:
    if not report.readable:
        return "can't be opened"
    warnings = len(report.findings) - report.errors
    found = [
        f"{n} {word}{'s' * (n > 1)}" for n, word in ((report.errors, "error"), (warnings, "warning")) if n
    ]
    size = f"{report.tensors} tensors, {report.size:,} bytes"
    return f"{' and '.join(found) or 'nothing is wrong'} in {', '.join(checked)} ({size})"


def _shown(text: str) -> str:
    from satchel.cli.console import plain

    return plain(text).replace("\n", "\\n")
