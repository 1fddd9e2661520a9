"""Checks that a model's results are finite. Damaged weights give NaN or infinity; no answer is made from
them. Every reader of a step's results calls these checks first.
"""

from __future__ import annotations

import numpy as np

from satchel.errors import ModelError
from satchel.runtime.graph import Array


def damaged(source: str, what: str) -> ModelError:
    """The error for non-finite results. source: the model's file; what: the result."""
    return ModelError(
        f"{source}: expected numbers, got NaN or infinity as {what}: the weights are damaged, or a"
        f" computation went out of range: run `satchel verify {source}`, then download or convert it again"
    )


def check_logits(rows: Array, source: str) -> None:
    """Raises ModelError if a row of logits (n, V) has a NaN or +inf, or nothing above -inf."""
    # The maximum suffices, because it propagates NaN; it needs no temporary array of the logits' size.
    if rows.size and not np.isfinite(rows.max(axis=-1)).all():
        raise damaged(source, "logits")


def check_hidden(rows: Array, source: str) -> None:
    """Raises ModelError if an element of hidden rows (n, D) is NaN or infinite."""
    if not np.isfinite(rows).all():
        raise damaged(source, "hidden states")
