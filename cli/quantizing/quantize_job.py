"""One quantization run: shows the plan, checks the disk space, writes the file, and reports the result."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.cli.console import err, note
from satchel.cli.quantizing.table import print_table, shown
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.formats.quantize import Calibration, Dry, QuantizeOptions, QuantizeReport
    from satchel.formats.source import Source


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    """The source, the target and the options of a run."""

    source: Source
    target: Path
    calibration: Calibration | None = None
    metadata: Mapping[str, str | int] | None = None  # keys added to the source's
    keep_split: bool = False
    dry: bool = False
    threads: int | None = None
    awq: bool = False

    def plan(self, settings: QuantizeOptions) -> Dry:
        from satchel.formats.quantize import plan

        return plan(
            self.source,
            self.target,
            replace(settings, importance=self.calibration is not None),
            keep_split=self.keep_split,
            metadata=self._metadata(),
            awq=self.awq,
        )

    def first_file(self, settings: QuantizeOptions) -> Path:
        """The path to open for reading the result: of a split set, the first part."""
        return self.plan(settings).files[0][0]

    def run(self, settings: QuantizeOptions) -> QuantizeReport:
        """Writes the file; with `dry` only shows the plan."""
        planned = self.plan(settings)
        if self.awq and self.calibration is not None:
            from satchel.formats.quantizing.awq import possible_mappings

            possible_mappings(self.source, planned.choices, self.calibration)
        report: QuantizeReport = planned
        if not self.dry:
            self._make_room(planned)
            report = self._write(settings, planned)
        print_table(err(), report)
        for path, size in planned.files:
            would = " (not written)" if self.dry else ""
            note(f"{path}: {size:,} bytes{would}")
        return report

    def _write(self, settings: QuantizeOptions, planned: Dry) -> QuantizeReport:
        from satchel.formats.quantize import write

        with shown(err(), planned.bytes_after, len(planned.choices)) as (advance, started):
            return write(
                self.source,
                self.target,
                settings,
                keep_split=self.keep_split,
                metadata=self._metadata(),
                importance=self.calibration,
                awq=self.awq,
                threads=self.threads,
                progress=advance,
                started=started,
            )

    def _metadata(self) -> dict[str, str | int]:
        return dict(self.metadata or {})

    def _make_room(self, planned: Dry) -> None:
        """Removes temporary files of killed runs. RequestError where the disk space does not suffice."""
        from satchel.formats.gguf.atomic import find_abandoned

        for path, _ in planned.files:
            for old in find_abandoned(path):
                note(f"{old.name}: left by a run that was killed; removed, quantizing starts again")
                old.unlink(missing_ok=True)
        folder = self.target.resolve().parent
        if not folder.is_dir():
            raise RequestError(f"{self.target}: expected an existing folder, got none; create {folder}")
        free = shutil.disk_usage(folder).free
        if free < planned.file_bytes:
            raise RequestError(
                f"{self.target}: needs {planned.file_bytes:,} bytes, the disk has {free:,} free"
            )
