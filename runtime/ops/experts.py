"""The op that tells which of a token's experts are held here; those on experts' products are in ops.py."""

from __future__ import annotations

import numpy as np

from satchel.runtime.graph import Array, Type
from satchel.runtime.ops.op import op


@op(lambda ids, table: Type(ids.shape, "i32"), row_wise=True, exact=True, indexes=(1, 0))
def expert_slots(ids: Array, table: Array) -> Array:
    """Where experts ids (T, k) are held, by a table (E) of places; below 0: not here. Products of such
    places leave out what is below 0.
    """
    return np.asarray(table[ids], np.int32)
