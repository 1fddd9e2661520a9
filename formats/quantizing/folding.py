"""The scales of a file's folds, each found when one of its tensors is first asked for.

Some rows of a fold's matrices are all that is read for it, and its scales are all that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.formats.quantizing.calibration import Calibration
from satchel.formats.quantizing.fold import Fold, find_folds
from satchel.formats.quantizing.plan import FormatChoice
from satchel.formats.source import Source
from satchel.quant import FORMATS
from satchel.quant.fold import Sample, best_scales, scale_hessian
from satchel.quant.format import F32
from satchel.quant.gptq import Hessian
from satchel.quant.pack import quietly

SAMPLE = 64  # rows of each matrix that scales are tried on
CHUNK = 1 << 20  # elements read at a time


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a tensor's numbers are multiplied by. columns: (K,); rows: (rows,); None: by 1."""

    columns: F32 | None = None
    rows: F32 | None = None

    def apply(self, x: F32, first: int) -> F32:
        """Rows (n, K) of which the first has this number."""
        if self.rows is not None:
            x = x * self.rows[first : first + len(x), None]
        return x if self.columns is None else x * self.columns

    def importance(self, found: F32 | None) -> F32 | None:
        """Mean squares (..., K) of the columns' inputs once these are divided."""
        if found is None or self.columns is None:
            return found
        return np.asarray(found / np.square(self.columns), np.float32)

    def hessian(self, found: Hessian | None) -> Hessian | None:
        return found if found is None or self.columns is None else scale_hessian(found, self.columns)


@dataclass(frozen=True, slots=True)
class Reader:
    """Samples of a matrix; squares: (K,), the mean squares of its columns."""

    samples: Sequence[Sample]
    squares: F32


def possible_folds(
    source: Source, choices: Sequence[FormatChoice], calibration: Calibration
) -> tuple[Fold, ...]:
    """What may be folded, by names and shapes alone; see find_folds for errors."""
    return find_folds(source, choices, {c.name for c in choices if calibration.diagonal(c.name) is not None})


class Folding:
    """The folds of a file. found: scales of those that were asked for, None where there are better none."""

    def __init__(
        self,
        source: Source,
        choices: Sequence[FormatChoice],
        calibration: Calibration,
        pool: ThreadPoolExecutor,
    ) -> None:
        folds = possible_folds(source, choices, calibration)
        self.source, self.calibration, self.pool = source, calibration, pool
        self.choices = {c.name: c for c in choices}
        self.makers: Mapping[str, Fold] = {name: fold for fold in folds for name in fold.makers}
        self.readers: Mapping[str, Fold] = {name: fold for fold in folds for name in fold.readers}
        self.found: dict[Fold, F32 | None] = {}

    def scaling(self, choice: FormatChoice) -> Scaling | None:
        """What becomes of a tensor; None where it stays as it is."""
        columns = self._scales(self.readers.get(choice.name))
        made = self._scales(self.makers.get(choice.name))
        if columns is not None:
            columns = self.readers[choice.name].spread(columns)
        if made is None:
            return None if columns is None else Scaling(columns)
        divided = np.asarray(1 / made, np.float32)
        return Scaling(columns, divided) if len(choice.shape) > 1 else Scaling(divided)

    def _scales(self, fold: Fold | None) -> F32 | None:
        """Of the makers' rows."""
        if fold is None:
            return None
        if fold not in self.found:
            self.found[fold] = self._search(fold)
        return self.found[fold]

    def _search(self, fold: Fold) -> F32 | None:
        encoded = [c for name in fold.readers if (c := self.choices[name]).target != "f32"]
        readers = [self._read(choice) for choice in encoded]
        samples = [sample for reader in readers for sample in reader.samples]
        inputs, weights = (
            fold.pool(np.mean(squares, axis=0))
            for squares in ([s.importance for s in samples], [reader.squares for reader in readers])
        )
        return best_scales(samples, inputs, weights, fold.spread, self.pool.map)

    def _read(self, choice: FormatChoice) -> Reader:
        """Samples are rows at equal distances; those of a stack go by matrix."""
        found = self.calibration.diagonal(choice.name)
        if found is None:
            raise ValueError(f"{choice.name}: expected importance, got none")
        importance, hessian = found.reshape(-1, choice.shape[-1]), self.calibration.hessian(choice.name)
        total = choice.elements // choice.shape[-1]
        count = min(total, SAMPLE)
        wanted = np.arange(count) * total // count
        rows, squares = self._rows(choice, wanted)
        matrix = wanted // choice.shape[-2] % len(importance)
        fmt = FORMATS[choice.target]
        samples = [
            Sample(fmt, rows[matrix == i], total / count, importance[i], hessian) for i in np.unique(matrix)
        ]
        return Reader(samples, squares)

    @quietly
    def _rows(self, choice: FormatChoice, wanted: npt.NDArray[np.intp]) -> tuple[F32, F32]:
        """Rows by number, in order, (n, K), and the mean squares of all rows' columns (K,)."""
        fmt, row = FORMATS[choice.source], choice.shape[-1]
        parts, first, squares = [], 0, np.zeros(row)
        for chunk in self.source.chunks(choice.name, max(1, CHUNK // row) * fmt.row_bytes(row)):
            x = fmt.decode(np.frombuffer(chunk, fmt.dtype).reshape(-1, row // fmt.block))
            parts.append(x[wanted[(wanted >= first) & (wanted < first + len(x))] - first])
            squares += np.square(x).sum(axis=0, dtype=np.float64)
            first += len(x)
        return np.concatenate(parts), (squares / first).astype(np.float32)
