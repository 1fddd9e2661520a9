"""Paged KV cache: one pool of blocks for all slots, and a prefix tree of the blocks that finished requests
left.

This package handles block numbers only. The keys and values are a state of the device, addressed through the
block table.
"""

from satchel.runtime.kv.pages import Copy, Pages
from satchel.runtime.kv.pool import BlockPool
from satchel.runtime.kv.prefix import Miss, PrefixTree, common
from satchel.runtime.kv.recurrent import StateGroup

__all__ = ["BlockPool", "Copy", "Miss", "Pages", "PrefixTree", "StateGroup", "common"]
