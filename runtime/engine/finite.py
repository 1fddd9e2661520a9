"""What a model computes must be numbers. Damaged weights give NaN or infinity, of which no answer is made:
each reader of a step's results calls these checks first.
"""

from __future__ import annotations

import numpy as np

from satchel.errors import ModelError
from satchel.runtime.graph import Array


def damaged(source: str, what: str) -> ModelError:
    """The error. source: the model's file; what: what was to be computed."""
    return ModelError(
        f"{source}: expected numbers, got NaN or infinity as {what}: the weights are damaged, or a"
        f" computation went out of range: run `satchel verify {source}`, then download or convert it again"
    )


def check_logits(rows: Array, source: str) -> None:
    """ModelError where a row of logits (n, V) has a NaN or +inf, or nothing above -inf."""
    # The largest says it all, for NaN is passed on; no array as large as the logits is made.
    if rows.size and not np.isfinite(rows.max(axis=-1)).all():
        raise damaged(source, "logits")


def check_hidden(rows: Array, source: str) -> None:
    """ModelError where a number of hidden rows (n, D) is NaN or infinite."""
    if not np.isfinite(rows).all():
        raise damaged(source, "hidden states")
