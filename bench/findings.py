"""Prints findings as a table, and writes them as Markdown and JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from compare_table import machine
from engine_rows import Finding

ROOT = Path(__file__).resolve().parents[1]


def table(findings: Sequence[Finding]) -> str:
    lines = ["| row | measured | wanted | met |", "|---|---|---|---|"]
    lines += [f"| {f.row} | {f.measured} | {f.wanted} | {f.word} |" for f in findings]
    return "\n".join(lines)


def tell(found: Sequence[Finding], options: argparse.Namespace) -> int:
    """Prints the findings, and writes the files of `options` (markdown, json). Returns the exit code."""
    there = machine(ROOT, 0)
    text = f"{table(found)}\n\n{there.date}, {there.processor}, {there.cores} cores, commit {there.commit}"
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    if options.json:
        body = {"machine": asdict(there), "findings": [asdict(f) for f in found]}
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 0 if all(f.met is not False for f in found) else 1
