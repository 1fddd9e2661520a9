"""The op that maps expert ids to slots of an expert cache. The package itself has the products with
experts.
"""

from __future__ import annotations

import numpy as np

from satchel.runtime.graph import Array, Type
from satchel.runtime.ops.op import op


@op(lambda ids, table: Type(ids.shape, "i32"), row_wise=True, exact=True, indexes=(1, 0))
def expert_slots(ids: Array, table: Array) -> Array:
    """Slots of the experts ids (T, k) on this device: table[ids] with table (E), negative if the expert is
    not here. Expert products leave out negative slots.
    """
    return np.asarray(table[ids], np.int32)
