"""The model store: maps model names to local files, and downloads models.

`Store` is the interface of this package.
"""

from satchel.cli.store.store import Store
from satchel.cli.store.stored import Progress, StoredModel, Watch

__all__ = ["Progress", "Store", "StoredModel", "Watch"]
