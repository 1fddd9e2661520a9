"""Encodes tensors in new formats: parts of rows run on all threads, and come out in file order.

Rows are encoded independently, so neither the size of the parts nor the number of threads changes a byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from satchel.errors import RequestError
from satchel.formats.quantizing.awq import AwqScaling, Scaling
from satchel.formats.quantizing.calibration import Calibration, Diagonals, WithoutGptq
from satchel.formats.quantizing.plan import TensorPlan
from satchel.formats.source import Source
from satchel.quant import FORMATS, Format
from satchel.quant.calibration.gptq import Hessian, encode_matrix
from satchel.quant.format import F32, Blocks

__all__ = ["Calibration", "Diagonals", "EncodeTask", "TensorEncoder", "WithoutGptq"]

PART = 1 << 18  # elements that one thread encodes at a time
GPTQ_ROWS = 256  # rows of a part that GPTQ encodes
SAMPLE = 1 << 20  # elements of a tensor whose error is measured
SAFE = 2.0**14  # magnitudes below this overflow no format


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded blocks of some rows, with their error over a sample of the rows."""

    blocks: Blocks
    noise: float  # sum of squared errors of the sample
    power: float  # sum of squares of the sample


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """The parameters of one tensor's encoding; calling it encodes some rows."""

    where: str  # names the tensor in errors
    source: Format
    target: Format
    importance: F32 | None  # (matrices, K), or (1, K) for all matrices
    hessian: Hessian | None
    rows: int  # of each matrix of a stack
    every: int  # one row in `every` is in the error sample
    scaling: Scaling | None = None  # AWQ factors, applied before encoding

    def __call__(self, blocks: Blocks, first: int) -> EncodedRows:
        """Encodes rows. blocks: (n, row / block) of the source; first: the first row's number in
        the tensor.
        """
        x = self.source.decode(blocks)
        if self.scaling is not None:
            x = self.scaling.apply(x, first)
        peak = max(float(x.max()), -float(x.min()))
        if not np.isfinite(peak):
            raise RequestError(
                f"{self.where}: expected finite numbers, got NaN or infinity; convert the model again"
            )
        encoded = np.concatenate([self.encode(part, at) for part, at in self._matrices(x, first)])
        every = 1 if peak >= SAFE else self.every
        back = self.target.decode(encoded[::every])
        if not np.isfinite(back).all():
            raise RequestError(
                f"{self.where}: numbers up to {peak:.3g} overflow {self.target.name}; choose bf16 or f32"
            )
        miss = (back - x[::every]).astype(np.float64)
        return EncodedRows(
            encoded, float(np.vdot(miss, miss)), float(np.sum(np.square(x[::every], dtype=np.float64)))
        )

    def _matrices(self, x: F32, first: int) -> Iterator[tuple[F32, int]]:
        """The rows split at the ends of a stack's matrices, each piece with its matrix's number."""
        at = 0
        while at < len(x):
            matrix, row = divmod(first + at, self.rows)
            end = min(len(x), at + self.rows - row)
            yield x[at:end], matrix
            at = end

    def encode(self, x: F32, matrix: int) -> Blocks:
        """Encodes rows (n, K) of one matrix of a stack."""
        importance = None if self.importance is None else self.importance[matrix % len(self.importance)]
        if self.target.encode is None:
            raise RequestError(f"{self.where}: {self.target.name} can only be read; choose another type")
        try:
            if self.hessian is not None:
                return encode_matrix(self.target, x, self.hessian, importance)
            return self.target.encode(x, importance)
        except RequestError as error:
            raise RequestError(f"{self.where}: {error}") from None


class TensorEncoder:
    """Yields the bytes of tensors in their new formats. errors: relative RMS error by tensor."""

    def __init__(
        self, source: Source, pool: ThreadPoolExecutor, threads: int, calibration: Calibration | None
    ) -> None:
        self.source, self.pool, self.calibration = source, pool, calibration
        self.ahead = 2 * threads  # parts in flight: enough that no thread waits for the disk
        self.errors: dict[str, float] = {}
        self.awq: AwqScaling | None = None

    def use_awq(self, choices: Sequence[TensorPlan]) -> AwqScaling:
        """Turns AWQ scaling on for all further tensors. RequestError where no tensor allows it."""
        if self.calibration is None:
            raise RequestError(f"{self.source.path}: AWQ: expected importance data, got none; make it first")
        for choice in choices:
            self._importance(choice)  # raises invalid importance before any tensor is read
        self.awq = AwqScaling(self.source, choices, self.calibration, self.pool)
        return self.awq

    def check(self, choices: Sequence[TensorPlan]) -> None:
        """Raises RequestError, before writing, where a target format requires importance and
        there is none.
        """
        asked: set[str] = set()
        for choice in choices:
            if choice.changed and choice.target not in asked and self._importance(choice) is None:
                asked.add(choice.target)
                self.task(choice, None).encode(np.zeros((1, choice.shape[-1]), np.float32), 0)

    def pieces(self, choice: TensorPlan) -> Iterator[memoryview | Blocks]:
        scaling = self.awq.scaling(choice) if self.awq else None
        if not choice.changed and scaling is None:
            yield from self.source.chunks(choice.name)
            return
        noise = power = 0.0
        for piece in self._encoded(choice, scaling):
            noise, power = noise + piece.noise, power + piece.power
            yield piece.blocks
        if choice.changed:
            self.errors[choice.name] = sqrt(noise / power) if power else 0.0

    def blocks(self, choice: TensorPlan) -> Blocks:
        """The whole encoded tensor (rows, row / block), without AWQ scaling."""
        return np.concatenate([piece.blocks for piece in self._encoded(choice, None)])

    def _encoded(self, choice: TensorPlan, scaling: Scaling | None) -> Iterator[EncodedRows]:
        task, row = self.task(choice, scaling), choice.shape[-1]
        rows = GPTQ_ROWS if task.hessian else max(1, PART // row)
        size = rows * task.source.row_bytes(row)
        running: deque[Future[EncodedRows]] = deque()
        first = 0
        try:
            for chunk in self.source.chunks(choice.name, size):
                # The source reuses its buffer for the next piece.
                blocks = np.frombuffer(bytes(chunk), task.source.dtype).reshape(-1, row // task.source.block)
                running.append(self.pool.submit(task, blocks, first))
                first += len(blocks)
                if len(running) >= self.ahead:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()

    def task(self, choice: TensorPlan, scaling: Scaling | None) -> EncodeTask:
        importance = self._importance(choice)
        hessian = self.calibration.hessian(choice.name) if self.calibration else None
        if scaling is not None:
            importance, hessian = scaling.importance(importance), scaling.hessian(hessian)
        return EncodeTask(
            f"{self.source.path}: tensor {choice.name}",
            FORMATS[choice.source],
            FORMATS[choice.target],
            importance,
            hessian,
            choice.shape[-2] if len(choice.shape) > 1 else 1,
            max(1, choice.elements // SAMPLE),
            scaling,
        )

    def _importance(self, choice: TensorPlan) -> F32 | None:
        """Importance of the tensor's columns: (matrices, K), or (1, K) for all matrices."""
        found = self.calibration.diagonal(choice.name) if self.calibration else None
        if found is None:
            return None
        row, stack = choice.shape[-1], prod(choice.shape[:-2])
        if found.shape not in ((row,), (stack * row,)) or not (np.isfinite(found) & (found >= 0)).all():
            raise RequestError(
                f"importance of {choice.name}: expected {row} finite numbers from 0, got shape {found.shape}"
            )
        return found.reshape(-1, row)
