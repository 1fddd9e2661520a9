"""The model store: names of models to files of this machine, and how files get here.

`Store` is the face; the commands and the server use nothing else of this package.
"""

from satchel.cli.store.entry import Entry, Progress, Watch
from satchel.cli.store.store import Store

__all__ = ["Entry", "Progress", "Store", "Watch"]
