"""The model store: names of models to files of this machine, and how files get here.

`Store` is the face; the commands and the server use nothing else of this package.
"""

from satchel.store.store import Store
from satchel.store.stored import Progress, StoredModel, Watch

__all__ = ["Progress", "Store", "StoredModel", "Watch"]
