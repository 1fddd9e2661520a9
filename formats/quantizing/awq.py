"""AWQ over a file: the column scales of each mapping are searched when one of its tensors is first encoded.

The search reads a sample of rows of the mapping's consumers. Only the scales stay in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.formats.quantizing.awq_mappings import AwqMapping, find_mappings
from satchel.formats.quantizing.calibration import Calibration
from satchel.formats.quantizing.plan import TensorPlan
from satchel.formats.source import Source
from satchel.quant import FORMATS
from satchel.quant.calibration.awq import Sample, best_scales, scale_hessian
from satchel.quant.calibration.gptq import Hessian
from satchel.quant.format import F32
from satchel.quant.pack import quietly

SAMPLE = 64  # rows of each matrix on which scales are tried
CHUNK = 1 << 20  # elements read at a time


@dataclass(frozen=True, slots=True)
class Scaling:
    """The factors by which one tensor is multiplied. None: 1."""

    columns: F32 | None = None  # (K,)
    rows: F32 | None = None  # (rows,)

    def apply(self, x: F32, first: int) -> F32:
        """Scales rows x (n, K) of the tensor. first: the number of the first one."""
        if self.rows is not None:
            x = x * self.rows[first : first + len(x), None]
        return x if self.columns is None else x * self.columns

    def importance(self, found: F32 | None) -> F32 | None:
        """Mean squares (..., K) of the columns' inputs after their division by the scales."""
        if found is None or self.columns is None:
            return found
        return np.asarray(found / np.square(self.columns), np.float32)

    def hessian(self, found: Hessian | None) -> Hessian | None:
        return found if found is None or self.columns is None else scale_hessian(found, self.columns)


@dataclass(frozen=True, slots=True)
class ConsumerSamples:
    """Sampled rows of one consumer matrix."""

    samples: Sequence[Sample]
    squares: F32  # (K,): mean squares of all its rows' columns


def possible_mappings(
    source: Source, choices: Sequence[TensorPlan], calibration: Calibration
) -> tuple[AwqMapping, ...]:
    """The mappings that tensor names and shapes allow. Errors as in find_mappings."""
    return find_mappings(
        source, choices, {c.name for c in choices if calibration.diagonal(c.name) is not None}
    )


class AwqScaling:
    """The scales of a file's mappings. found: the search results so far; None: the mapping stays unscaled."""

    def __init__(
        self,
        source: Source,
        choices: Sequence[TensorPlan],
        calibration: Calibration,
        pool: ThreadPoolExecutor,
    ) -> None:
        mappings = possible_mappings(source, choices, calibration)
        self.source, self.calibration, self.pool = source, calibration, pool
        self.choices = {c.name: c for c in choices}
        self.producers: Mapping[str, AwqMapping] = {
            name: mapping for mapping in mappings for name in mapping.producers
        }
        self.consumers: Mapping[str, AwqMapping] = {
            name: mapping for mapping in mappings for name in mapping.consumers
        }
        self.found: dict[AwqMapping, F32 | None] = {}

    def scaling(self, choice: TensorPlan) -> Scaling | None:
        """The factors of a tensor; None where it stays unscaled."""
        columns = self._scales(self.consumers.get(choice.name))
        made = self._scales(self.producers.get(choice.name))
        if columns is not None:
            columns = self.consumers[choice.name].spread(columns)
        if made is None:
            return None if columns is None else Scaling(columns)
        divided = np.asarray(1 / made, np.float32)
        return Scaling(columns, divided) if len(choice.shape) > 1 else Scaling(divided)

    def _scales(self, mapping: AwqMapping | None) -> F32 | None:
        """The scales of the producers' rows, searched on first use."""
        if mapping is None:
            return None
        if mapping not in self.found:
            self.found[mapping] = self._search(mapping)
        return self.found[mapping]

    def _search(self, mapping: AwqMapping) -> F32 | None:
        encoded = [c for name in mapping.consumers if (c := self.choices[name]).target != "f32"]
        consumers = [self._read(choice) for choice in encoded]
        samples = [sample for consumer in consumers for sample in consumer.samples]
        inputs, weights = (
            mapping.pool(np.mean(squares, axis=0))
            for squares in ([s.importance for s in samples], [consumer.squares for consumer in consumers])
        )
        return best_scales(samples, inputs, weights, mapping.spread, self.pool.map)

    def _read(self, choice: TensorPlan) -> ConsumerSamples:
        """Samples rows at equal distances; of a stack of matrices, one sample per matrix."""
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
        return ConsumerSamples(samples, squares)

    @quietly
    def _rows(self, choice: TensorPlan, wanted: npt.NDArray[np.intp]) -> tuple[F32, F32]:
        """The wanted rows (n, K) in order, and the mean squares of the columns over all rows (K,)."""
        fmt, row = FORMATS[choice.source], choice.shape[-1]
        parts, first, squares = [], 0, np.zeros(row)
        for chunk in self.source.chunks(choice.name, max(1, CHUNK // row) * fmt.row_bytes(row)):
            x = fmt.decode(np.frombuffer(chunk, fmt.dtype).reshape(-1, row // fmt.block))
            parts.append(x[wanted[(wanted >= first) & (wanted < first + len(x))] - first])
            squares += np.square(x).sum(axis=0, dtype=np.float64)
            first += len(x)
        return np.concatenate(parts), (squares / first).astype(np.float32)
