"""Reads the configuration again while requests go on: in a thread, one reading at a time, for files of the
store may have to be hashed whole. The event loop only takes the result over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from satchel.errors import SatchelError
from satchel.server.catalog import Catalog
from satchel.server.log import LOG
from satchel.server.models import Models


class Reload:
    """read: the catalog as it stands now, checked; called in a thread."""

    def __init__(self, read: Callable[[], Catalog], models: Models) -> None:
        self._read, self._models = read, models
        self._next: asyncio.Task[list[str]] | None = None
        self._lock = asyncio.Lock()
        self._signalled: set[asyncio.Task[None]] = set()

    async def __call__(self) -> list[str]:
        """What changed. Callers that ask while a reading goes on share the next one, which sees all that was
        written before. SatchelError or OSError where it cannot be read; all stays as it was then.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._again())
        return await asyncio.shield(self._next)

    async def _again(self) -> list[str]:
        async with self._lock:
            self._next = None
            catalog = await asyncio.to_thread(self._read)
            told = self._models.change(catalog)
        LOG.info("the configuration was read again: %s", "; ".join(told) or "nothing changed")
        return told

    def by_signal(self) -> None:
        """By a signal nobody hears an error: it goes to the log."""
        task = asyncio.create_task(self._logged())
        self._signalled.add(task)
        task.add_done_callback(self._signalled.discard)

    async def _logged(self) -> None:
        try:
            await self()
        except (SatchelError, OSError) as error:
            LOG.error("the configuration was not read again: %s", error)
