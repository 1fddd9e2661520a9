"""How benches end where something is wrong: with one line that says what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from satchel.errors import SatchelError


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Ends the program with its name and the reason of a SatchelError."""
    try:
        yield
    except SatchelError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")
