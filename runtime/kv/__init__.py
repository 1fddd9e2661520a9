"""Paged KV: one pool of blocks for all slots, and a tree of what finished requests left in it.

Only numbers live here; the cached keys and values are a state of the device, addressed through the table.
"""

from satchel.runtime.kv.pages import Copy, Pages
from satchel.runtime.kv.pool import BlockPool
from satchel.runtime.kv.prefix import Miss, PrefixTree, common
from satchel.runtime.kv.recurrent import StateGroup

__all__ = ["BlockPool", "Copy", "Miss", "Pages", "PrefixTree", "StateGroup", "common"]
