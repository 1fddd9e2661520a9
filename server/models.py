"""The server's models by name: loaded on the first request, leased by requests, and unloaded after an idle
time or when another model needs the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

from satchel.errors import SatchelError
from satchel.runtime.api.async_model import AsyncModel
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadProgress
from satchel.runtime.engine.stats import EngineStats
from satchel.server.alias import Alias
from satchel.server.catalog import Catalog, Served
from satchel.server.log import LOG
from satchel.server.pools import Pools
from satchel.server.problem import Problem
from satchel.server.telemetry import SpanRecorder

UNLOADED, LOADING, READY, FAILED = "unloaded", "loading", "loaded", "failed"
LOOK = 0.5  # seconds between two checks for idle models
COUNTING = 2.0  # seconds for the last counters of a model; a worker process that hangs gives none
ShowLoad = Callable[[str], AbstractContextManager[LoadProgress]]


@contextmanager
def _unseen(name: str) -> Iterator[LoadProgress]:
    yield lambda done, total: None


def pool_tokens(model: Model, stats: EngineStats) -> dict[str, int]:
    """Tokens of the KV cache that a model's requests share, and those in use, prefixes of ended requests
    among them.
    """
    used = (stats.kv_blocks - stats.kv_free) * model.cache.block
    return {"kv_tokens": model.capacity, "kv_tokens_used": used}


class ServedModel:
    """A model by name, loaded or not.

    keep: idle seconds until the model is unloaded; 0: never. Requests may set it for one load.
    done, total: bytes read so far, and in all, of a load in progress.
    users: the number of requests that use it now.
    replaced: the entry of its name before the catalog was changed.
    """

    def __init__(self, served: Served, replaced: ServedModel | None = None) -> None:
        self.name, self.path, self.options, self.keep = served.name, served.path, served.options, served.idle
        self.served = served
        self.model: AsyncModel | None = None
        self._past: EngineStats | None = None  # the counters of its earlier loads
        self._told: EngineStats | None = None  # the last counters of all loads
        self._leaving: AsyncModel | None = None  # a model whose counters are not in `_past` yet
        self._replaced = replaced
        self.state, self.done, self.total, self.users = UNLOADED, 0, 0, 0
        self.error, self.tried = "", False
        # LoRA scales by adapter index, for requests that name none; None: as they were loaded.
        self.adapters: Mapping[int, float] | None = None
        # (caller's salt, slot id) -> (tokens, salt) of the last request in that slot. A caller sees its own.
        self.slots: dict[tuple[str, int], tuple[list[int], str]] = {}
        self.used = time.monotonic()
        self.progress: LoadProgress | None = None  # also told of a load in progress
        self._lock = asyncio.Lock()

    @property
    def created(self) -> int:
        """The modification time of its file, in seconds since 1970; 0 without a file."""
        with suppress(OSError):
            return int(self.path.stat().st_mtime)
        return 0

    @property
    def size(self) -> int:
        """The size of its file in bytes; 0 without a file."""
        with suppress(OSError):
            return self.path.stat().st_size
        return 0

    @property
    def coming(self) -> bool:
        """Whether the model is loading, or will be preloaded without a request."""
        return self.state == LOADING or (self.served.preload and not self.tried)

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self.users else time.monotonic() - self.used

    @property
    def expires(self) -> float | None:
        """Seconds until the model is unloaded; None where it stays loaded or is not loaded."""
        return max(0.0, self.keep - self.idle_seconds) if self.keep and self.state == READY else None

    async def loaded(self) -> AsyncModel:
        """The model; the first request for it loads it."""
        async with self._lock:
            if self.model is None:
                self.state, self.error, self.done, self.total = LOADING, "", 0, 0
                try:
                    self.model = await AsyncModel.load(self.path, self.options, progress=self._tell)
                except (SatchelError, OSError) as error:
                    self.state, self.error, self.tried = FAILED, str(error), True
                    self.keep = self.served.idle
                    raise
                except BaseException:
                    self.state, self.keep = UNLOADED, self.served.idle
                    raise
                self.state, self.tried, self.used = READY, True, time.monotonic()
            return self.model

    def _tell(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self.progress is not None:
            self.progress(done, total)

    async def counters(self) -> EngineStats | None:
        """The engine's counters over all loads, which never go back; None where there was no load. The gauges
        of a model that is not loaded are 0.
        """
        model, found, replaced = self.model or self._leaving, self._past, self._replaced
        if model is not None:
            try:
                found = self._told = (await model.stats()).after(found)
            except SatchelError:  # it is being closed, or its worker process is lost
                found = self._told.ended() if self._told else found
        earlier = await replaced.counters() if replaced else None
        return found.after(earlier) if found else earlier and earlier.ended()

    async def take_over(self, replaced: ServedModel) -> None:
        """Unloads the entry that it has replaced after its last request, and goes on with its counters."""
        await _when_unused(replaced)
        counted = await replaced.counters()
        self._replaced = None
        if counted:
            self._past = self._past.after(counted) if self._past else counted
            self._told = self._told and self._told.after(counted)

    async def unload(self) -> None:
        """Unloads the model; requests in progress end with an error. The next load stays as configured."""
        async with self._lock:
            model, self.model, self.state = self.model, None, UNLOADED
            self.keep = self.served.idle
            self.slots.clear()
            if model is not None:
                await self._close(model)

    async def _close(self, model: AsyncModel) -> None:
        """Closes the model once its counters are kept."""
        self._leaving, counted = model, self._told or self._past
        try:
            counted = (await asyncio.wait_for(model.stats(), COUNTING)).after(self._past)
        except (SatchelError, TimeoutError):
            pass  # the last ones that were told
        finally:
            self._past, self._told, self._leaving = counted and counted.ended(), None, None
            await model.close()
        LOG.info("%s: unloaded", self.name)


class Lease:
    """The use of a model by one request.

    name: the model's name in GET /models.
    wanted: the name in the request.
    failed: whether the engine failed.
    """

    def __init__(self, entry: ServedModel, model: AsyncModel, wanted: str, alias: Alias | None) -> None:
        self.entry, self.model, self.alias = entry, model, alias
        self.name, self.wanted, self.failed = entry.name, wanted or entry.name, False
        self.began = time.monotonic()


class Models:
    """All models of the server. A request that names none gets the first, or the alias that this is a version
    of, so that an upgrade is judged by such requests too.

    budget: the limit on the sum of loaded model files, in bytes; 0: none.
    pools: threads for work of requests outside the engine.
    show_load: shows the progress of a preload, by its model's name.
    """

    def __init__(
        self,
        catalog: Catalog,
        budget: int = 0,
        spans: SpanRecorder | None = None,
        show_load: ShowLoad = _unseen,
    ) -> None:
        self.spans = spans or SpanRecorder(None)
        self.entries = {name: ServedModel(served) for name, served in catalog.models.items()}
        self.aliases = {name: Alias(name, table) for name, table in catalog.aliases.items()}
        self.budget, self.pools, self.show_load = budget, Pools(), show_load
        self.draining = False  # the server is stopping
        self._room = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    def drain(self) -> None:
        """Called when the server is told to stop: readiness probes fail from now on."""
        self.draining = True

    @property
    def default(self) -> str:
        """The name that a request without one means; "" where there are no models."""
        first = next(iter(self.entries), "")
        return next((name for name, alias in self.aliases.items() if first in alias.records), first)

    def entry(self, name: str) -> ServedModel:
        """The entry of this name; "" is the default, an alias gives its version with the largest weight. A
        Problem where no model has the name.
        """
        name = name or self.default
        if name in self.aliases:
            return self.entries[self.aliases[name].main]
        found = self.entries.get(name) or self.entries.get(name.removesuffix(":latest"))
        if found is None:
            there = ", ".join([*self.entries, *self.aliases]) or "none"
            line = f"the model {name!r:.100} does not exist: there is {there}"
            raise Problem("missing", line, "model", "model_not_found")
        return found

    @asynccontextmanager
    async def use(self, name: str, user: str = "") -> AsyncIterator[Lease]:
        """Leases the model of this name, loading it where needed. user: gets the same version of an alias
        each time.
        """
        name = name or self.default
        alias = self.aliases.get(name)
        entry = self.entries[alias.choose(user)] if alias else self.entry(name)
        entry.users += 1
        lease: Lease | None = None
        try:
            if entry.model is None:
                async with self._room:
                    await self._make_room(entry)
                    await entry.loaded()
            lease = Lease(entry, await entry.loaded(), name, alias)
            yield lease
        finally:
            entry.users -= 1
            entry.used = time.monotonic()
            if alias:
                failed = lease is None or lease.failed
                alias.record(entry.name, failed, time.monotonic() - lease.began if lease else 0.0)

    @asynccontextmanager
    async def look(self, name: str) -> AsyncIterator[Lease]:
        """Leases the model without loading it or extending its idle time, for requests that only read state.
        Waits for a load in progress. A Problem where the model is not loaded.
        """
        entry = self.entry(name)
        while entry.model is None and entry.coming:
            await asyncio.sleep(LOOK / 10)
        if entry.model is None:
            line = f"{entry.name} is not loaded: a request for an answer loads it, or POST /models/load"
            raise Problem("conflict", line, "model", "model_not_loaded")
        entry.users += 1
        try:
            yield Lease(entry, entry.model, name, None)
        finally:
            entry.users -= 1

    async def _make_room(self, entry: ServedModel) -> None:
        """Unloads idle models, least recently used first, until this one fits the budget. A Problem where all
        others are in use.
        """
        if not self.budget:
            return
        while self._taken(entry) + entry.size > self.budget:
            idle = [e for e in self._others(entry) if not e.users]
            if not idle:
                taken, most = self._taken(entry) / 1e9, self.budget / 1e9
                line = f"{entry.name} does not fit: {taken:.2f} of {most:.2f} GB are in use: try again later"
                raise Problem("busy", line, "model", "no_memory", retry_after=5)
            await min(idle, key=lambda e: e.used).unload()

    def _others(self, entry: ServedModel) -> Iterator[ServedModel]:
        return (e for e in self.entries.values() if e is not entry and e.model is not None)

    def _taken(self, entry: ServedModel) -> int:
        return sum(e.size for e in self._others(entry))

    async def tend(self) -> None:
        """Unloads idle models in an endless loop."""
        while True:
            await asyncio.sleep(LOOK)
            await self.unload_idle()

    async def unload_idle(self) -> None:
        """Unloads each model whose idle time is over."""
        for entry in list(self.entries.values()):
            if entry.state == READY and entry.keep and not entry.users and entry.idle_seconds > entry.keep:
                await entry.unload()

    async def preload(self) -> None:
        """Loads the models marked `preload`, one after the other. A failure is logged; the next request for
        the model tries again.
        """
        for entry in list(self.entries.values()):
            if entry.served.preload:
                try:
                    with self.show_load(entry.name) as entry.progress:
                        async with self.use(entry.name):
                            pass
                except (SatchelError, OSError, Problem) as error:
                    entry.tried = True
                    LOG.error("%s: %s", entry.name, error)
                finally:
                    entry.progress = None

    def change(self, catalog: Catalog) -> list[str]:
        """Switches to another catalog while requests go on, and returns what changed.

        A model that was removed, or whose options changed, is unloaded after its last request. Models that
        requests added stay.
        """
        added = {n: e.served for n, e in self.entries.items() if e.served.added}
        wanted, changes = {**added, **catalog.models}, []
        replaced: dict[str, ServedModel] = {}
        for name, entry in list(self.entries.items()):
            served = wanted.get(name)
            if served is None or (served.path, served.options) != (entry.path, entry.options):
                del self.entries[name]
                if served is None:
                    self._leave(_when_unused(entry))
                else:
                    replaced[name] = ServedModel(served, entry)
                    self._leave(replaced[name].take_over(entry))
                changes.append(f"{name}: {'changed' if served else 'removed'}")
            else:
                entry.served, entry.keep = served, served.idle
        there = {**self.entries, **replaced}
        order = {n: there.get(n) or ServedModel(s) for n, s in {**catalog.models, **wanted}.items()}
        changes += [f"{n}: added" for n in order if n not in self.entries and f"{n}: changed" not in changes]
        self.entries = order
        kept = {n: a for n, a in self.aliases.items() if catalog.aliases.get(n) == a.table}
        self.aliases = {n: kept.get(n) or Alias(n, t) for n, t in catalog.aliases.items()}
        return changes

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        leaving = asyncio.create_task(work)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    @property
    def ready(self) -> bool:
        """Whether every model marked `preload` has been loaded, or has failed to load."""
        return all(e.tried for e in self.entries.values() if e.served.preload)

    async def close(self) -> None:
        for task in list(self._leaving):
            task.cancel()
        for entry in self.entries.values():
            await entry.unload()
        self.pools.close()


async def _when_unused(entry: ServedModel) -> None:
    while entry.users:
        await asyncio.sleep(LOOK)
    await entry.unload()
