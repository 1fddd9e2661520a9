"""AWQ (Lin et al., arXiv 2306.00978): column scales that lower the rounding error of a product. As
x W^T = (x / s) (W s)^T, a column of large inputs can be rounded as if its weights were larger.

The search goes over two exponents: s grows with the inputs' root mean square, and falls with that of the
column's weights, which evens out the numbers under one block scale. The caller divides x by s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.quant.calibration.gptq import Hessian, encode_matrix, row_errors
from satchel.quant.format import F32, Format
from satchel.quant.pack import quietly

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)  # exponents of the inputs, tried with BETA
BETA = 0.5
BETAS = (0.0, 0.25, 0.75, 1.0)  # exponents of the weights, tried with the best of the inputs
SPAN = 32.0  # scales lie within this factor of their mean; inputs that are always 0 would want more
GAIN = 0.99  # scales must lower the error to this share; a smaller gain is sampling noise

Trial = tuple["Sample", F32 | None]
Run = Callable[[Callable[[Trial], float], Iterable[Trial]], Iterable[float]]
Spread = Callable[[F32], F32]


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled rows of a matrix and its target format."""

    format: Format
    x: F32  # (rows, K)
    share: float  # the number of the matrix's rows that each sampled row stands for
    importance: F32  # (K,), mean squares of the inputs
    hessian: Hessian | None  # of the inputs, or None


def power_scales(inputs: F32, weights: F32, alpha: float, beta: float) -> F32:
    """inputs ** (alpha / 2) / weights ** (beta / 2) of mean squares (K,), normalized to geometric mean 1."""
    logs = _logs(inputs) * (alpha / 2) - _logs(weights) * (beta / 2)
    reach = np.log(SPAN)
    return np.asarray(np.exp(np.clip(logs - logs.mean(), -reach, reach)), np.float32)


def _logs(squares: F32) -> npt.NDArray[np.float64]:
    """Of mean squares over their mean; columns of zeros count as very small."""
    mean = float(squares.mean(dtype=np.float64)) or 1.0
    return np.log(np.maximum(squares.astype(np.float64) / mean, 1e-8))


def scale_hessian(hessian: Hessian, scales: F32) -> Hessian:
    """The hessian of inputs that are divided by scales (K,).

    The factor needs no new decomposition: dividing rows and columns of a matrix divides the rows of its
    Cholesky factor. The order stays, as any order is sound.
    """
    ordered = scales[hessian.order]
    return Hessian(
        hessian.matrix / np.outer(scales, scales),
        hessian.order,
        hessian.feed * (ordered[:, None] / ordered),
    )


@quietly
def scaled_error(sample: Sample, scales: F32 | None) -> float:
    """Squared error of the matrix's outputs for a mean input, with columns scaled or as they are."""
    fmt, x, importance, hessian = sample.format, sample.x, sample.importance, sample.hessian
    if scales is not None:
        x, importance = x * scales, np.asarray(importance / np.square(scales), np.float32)
        hessian = None if hessian is None else scale_hessian(hessian, scales)
    error = fmt.decode(encode_matrix(fmt, x, hessian, importance)) - x
    if scales is not None:
        error /= scales
    if sample.hessian is None:
        return sample.share * float(np.sum(np.square(error) @ sample.importance, dtype=np.float64))
    rows = row_errors(np.ascontiguousarray(error.T), sample.hessian.matrix)
    return sample.share * float(np.sum(rows, dtype=np.float64))


@quietly
def best_scales(
    samples: Sequence[Sample], inputs: F32, weights: F32, spread: Spread, run: Run = map
) -> F32 | None:
    """The column scales of least output error for the matrices of `samples`, which share one input; None
    where no scaling is better.

    inputs, weights: (n,), mean squares that the scales are made of; spread: from (n,) to the columns (K,),
    where columns share scales; run: a map, maybe on threads.
    """

    def errors(tries: Sequence[F32 | None]) -> npt.NDArray[np.float64]:
        columns = [None if scales is None else spread(scales) for scales in tries]
        jobs = [(sample, scales) for scales in columns for sample in samples]
        sums = np.array(list(run(lambda job: scaled_error(*job), jobs))).reshape(len(tries), -1).sum(axis=1)
        return np.where(np.isfinite(sums), sums, np.inf)

    first = [power_scales(inputs, weights, alpha, BETA) for alpha in ALPHAS]
    plain, *found = errors([None, *first])
    alpha = ALPHAS[int(np.argmin(found))]
    second = [power_scales(inputs, weights, alpha, beta) for beta in BETAS]
    both = [*found, *errors(second)]
    best = int(np.argmin(both))
    return [*first, *second][best] if both[best] < GAIN * plain else None
