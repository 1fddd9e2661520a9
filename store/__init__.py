"""The model store: maps model names to local files, and downloads models.

`Store` is the interface of this package.
"""

from satchel.store.store import Store
from satchel.store.stored import Progress, StoredModel, Watch

__all__ = ["Progress", "Store", "StoredModel", "Watch"]
