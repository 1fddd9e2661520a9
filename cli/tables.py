"""Writes rows of a benchmark in llama-bench's formats: Markdown, JSON, JSON lines or CSV, each row as soon as
it is known.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from satchel.cli.console import plain

OUTPUTS = ("md", "json", "jsonl", "csv")
NUMBERS = ("int8", "bf16", "f32")  # the number formats whose peak multiply-add rates are measured
Row = Mapping[str, Any]
# Heading, width (negative: left-aligned), text of a row's cell.
Column = tuple[str, int, Callable[[Row], str]]


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def amount(count: float) -> str:
    """A number of bytes in llama-bench's form."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"


def parameters(count: float) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"


MARKDOWN: tuple[Column, ...] = (
    ("model", -30, lambda r: r["model"]),
    ("size", 10, lambda r: amount(r["size_bytes"])),
    ("params", 10, lambda r: parameters(r["parameters"])),
    ("backend", -10, lambda r: r["backend"].upper()),
    ("threads", 7, lambda r: str(r["threads"])),
    ("test", 15, lambda r: r["test"]),
    ("t/s", 20, lambda r: f"{r['tokens_per_second']:.2f} ± {r['deviation']:.2f}"),
    ("GB/s", 8, lambda r: f"{r['gb_per_second']:.2f}" if "tg" in r["test"] else ""),
    ("of limit", 8, lambda r: share(r["share_of_limit"])),
    ("GMAC/s", 8, lambda r: f"{r['gmac_per_second']:.1f}" if "pp" in r["test"] else ""),
    ("of peak", 8, lambda r: share(r["share_of_peak"])),
    ("outside C", 9, lambda r: share(r["outside_c"])),
    ("idle us", 7, lambda r: "" if r["device_waits_us"] is None else f"{r['device_waits_us']:.0f}"),
    ("J", 7, lambda r: "" if r["joules_per_token"] is None else f"{r['joules_per_token']:.4f}"),
)
MARKDOWN_PROFILE: tuple[Column, ...] = (
    ("op", -22, lambda r: r["op"]),
    ("weights", -42, lambda r: r["weights"]),
    ("calls/token", 11, lambda r: f"{r['calls_per_token']:.2f}"),
    ("us/token", 9, lambda r: f"{r['us_per_token']:.2f}"),
    ("of time", 8, lambda r: share(r["share"])),
    ("GB/s", 7, lambda r: rate(r["gb_per_second"])),
    ("GMAC/s", 7, lambda r: rate(r["gmac_per_second"])),
    ("MAC/byte", 8, lambda r: rate(r["macs_per_byte"])),
    ("of roof", 8, lambda r: share(r["share_of_roof"])),
)
BATCHED: tuple[Column, ...] = (
    ("PP", 6, lambda r: str(r["pp"])),
    ("TG", 6, lambda r: str(r["tg"])),
    ("B", 4, lambda r: str(r["pl"])),
    ("N_KV", 6, lambda r: str(r["n_kv"])),
    ("T_PP s", 8, lambda r: f"{r['t_pp']:.3f}"),
    ("S_PP t/s", 18, lambda r: f"{r['speed_pp']:.2f} ± {r['deviation_pp']:.2f}"),
    ("T_TG s", 8, lambda r: f"{r['t_tg']:.3f}"),
    ("S_TG t/s", 18, lambda r: f"{r['speed_tg']:.2f} ± {r['deviation_tg']:.2f}"),
    ("T s", 8, lambda r: f"{r['t']:.3f}"),
    ("S t/s", 8, lambda r: f"{r['speed']:.2f}"),
)


class TableWriter:
    """Writes rows to stdout."""

    def row(self, row: Row) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Completes the output; does nothing by default."""


class Markdown(TableWriter):
    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns, self._begun = columns, False

    def _begin(self) -> None:
        """Prints the heading with the first row, so that nothing is printed where nothing was measured."""
        self._begun = True
        self._line([head for head, _, _ in self.columns])
        rule = ("-" * abs(w) if w < 0 else "-" * (w - 1) + ":" for _, w, _ in self.columns)
        print("| " + " | ".join(rule) + " |", flush=True)

    def _line(self, cells: Sequence[str]) -> None:
        padded = (
            plain(cell).ljust(-width) if width < 0 else plain(cell).rjust(width)
            for cell, (_, width, _) in zip(cells, self.columns, strict=True)
        )
        print("| " + " | ".join(padded) + " |", flush=True)

    def row(self, row: Row) -> None:
        if not self._begun:
            self._begin()
        self._line([text(row) for _, _, text in self.columns])


class JsonLinesWriter(TableWriter):
    def row(self, row: Row) -> None:
        print(json.dumps(row, ensure_ascii=False), flush=True)


class JsonWriter(TableWriter):
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def row(self, row: Row) -> None:
        self.rows.append(row)

    def end(self) -> None:
        print(json.dumps(self.rows, indent=2, ensure_ascii=False))


class Csv(TableWriter):
    """CSV. Several numbers in one cell are separated by semicolons."""

    def __init__(self) -> None:
        self.writer: csv.DictWriter[str] | None = None

    def row(self, row: Row) -> None:
        if self.writer is None:
            self.writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            self.writer.writeheader()
        self.writer.writerow({k: ";".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()})
        sys.stdout.flush()


def writer(output: str, columns: Sequence[Column]) -> TableWriter:
    """The writer of an output format by name. columns: of the Markdown table."""
    return {"json": JsonWriter, "jsonl": JsonLinesWriter, "csv": Csv}.get(output, lambda: Markdown(columns))()
