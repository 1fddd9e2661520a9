"""/api/pull, /api/create, /api/copy and /api/delete, which change the store and the served models. /api/push
and blob uploads are refused with a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from satchel.errors import RequestError, SatchelError
from satchel.server.bodies import BodyRoute
from satchel.server.catalog import Served, without_draft_model
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.generation import Caller
from satchel.server.models import Models, ServedModel
from satchel.server.problem import Problem
from satchel.server.pulls import Pulls
from satchel.server.roles import ADMIN, needs
from satchel.server.route import caller_of, in_pool, models_of, pulls_of, unknown_fields
from satchel.server.stream import LINES, Stream, line, unless_gone
from satchel.store import Progress, Store
from satchel.store.create import create as create_model
from satchel.store.meant import pasted
from satchel.store.modelfile import Modelfile

router = APIRouter(route_class=BodyRoute)
SUCCESS: JsonObject = {"status": "success"}


class ModelNameBody(Body):
    """A body that names a model."""

    model: str = Field(default="", max_length=1000)
    # The older name of `model`.
    name: str = Field(default="", max_length=1000)

    @property
    def named(self) -> str:
        found = self.model or self.name
        if not found:
            raise Problem("invalid", "model is missing: name one", "model")
        return found


class PullBody(ModelNameBody):
    insecure: bool = False
    stream: bool = True


class CreateBody(ModelNameBody):
    """A model that is made of a served one."""

    from_: str = Field(alias="from", min_length=1, max_length=1000)
    parameters: dict[str, str | int | float | list[str]] = Field(default_factory=dict)
    system: str = Field(default="", max_length=100_000)
    license: str | list[str] = ""
    stream: bool = True
    template: str = ""
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    messages: list[dict[str, Any]] | None = None
    quantize: str | None = None

    def recipe(self, source: ServedModel) -> Modelfile:
        """The recipe of the body. A Problem for what cannot be made here."""
        for field in ("files", "adapters", "quantize"):
            if getattr(self, field):
                line = f"{field} is not supported: `satchel quantize` and `satchel convert` make model files"
                raise Problem("unsupported", line, field)
        unused = [field.upper() for field in ("template",) if getattr(self, field)]
        parameters = [(key, str(value)) for key, value in self.parameters.items()]
        licence = self.license if isinstance(self.license, str) else "\n".join(self.license)
        unused += ["MESSAGE"] if self.messages else []
        return Modelfile(str(source.path), parameters, self.system, licence, unused)


class CopyBody(Body):
    source: str = Field(min_length=1, max_length=1000)
    destination: str = Field(min_length=1, max_length=200)


@router.post("/api/pull")
@needs(ADMIN)
async def pull(request: Request, body: PullBody) -> Response:
    unknown_fields(request, body)
    if body.insecure:
        raise Problem("unsupported", "insecure is not supported: models come over https", "insecure")
    caller, pulls = caller_of(request), pulls_of(request)
    pulls.check(caller.client)
    work = ServerPull(models_of(request), body.named, pulls, caller)
    if body.stream:
        return Stream(work.lines(), work.close, LINES)
    await unless_gone(request, work.read())
    return JSONResponse(SUCCESS)


class ServerPull:
    """A pull by the server: into the store, then among the served models."""

    def __init__(self, models: Models, name: str, pulls: Pulls, caller: Caller) -> None:
        self.models, self._source = models, store_name(name)
        # A pasted address names the model as the store does.
        self.name = (self._source if "://" in name else name).removesuffix(":latest")
        self._reports: asyncio.Queue[Progress | None] = asyncio.Queue()
        self._ended, self._pulls, self._caller = False, pulls, caller

    async def lines(self) -> AsyncIterator[bytes]:
        async for progress in self._events():
            yield line(progress)

    async def read(self) -> None:
        try:
            async for _ in self._events():
                pass
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends the pull at its next progress report, where the client is gone. It can be resumed."""
        self._ended = True

    async def _events(self) -> AsyncIterator[JsonObject]:
        yield {"status": "pulling manifest"}
        loop = asyncio.get_running_loop()

        def watch(progress: Progress | None) -> None:
            if self._ended and progress is not None:
                raise RequestError("the client hung up")
            loop.call_soon_threadsafe(self._reports.put_nowait, progress)

        fetching = self.models.pools.run("pull", partial(self._fetch, watch), self._caller.user)
        task = asyncio.create_task(fetching)
        task.add_done_callback(self._over)
        while (progress := await self._latest()) is not None:
            yield _step(progress)
        path = await task
        yield {"status": "verifying sha256 digest"}
        yield {"status": "writing manifest"}
        serve(self.models, self.name, path)
        yield SUCCESS

    def _over(self, task: asyncio.Task[Path]) -> None:
        """Called when the pull has ended, or never began. Nobody awaits the task of a client that hung up."""
        self._reports.put_nowait(None)
        if not task.cancelled():
            task.exception()  # asyncio logs errors that nothing retrieves

    async def _latest(self) -> Progress | None:
        """The newest progress report: a slow client skips reports. None after the last one."""
        found = await self._reports.get()
        while found is not None and not self._reports.empty():
            later = self._reports.get_nowait()
            if later is None:
                self._reports.put_nowait(None)  # for the next call
                break
            found = later
        return found

    def _fetch(self, watch: Callable[[Progress | None], None]) -> Path:
        try:
            with self._pulls.begun(self._caller.client) as policy:
                return Store(policy=policy).pull(self._source, watch)
        finally:
            watch(None)


def _step(progress: Progress) -> JsonObject:
    digest = f"sha256:{progress.sha256}" if progress.sha256 else progress.file
    short = digest.removeprefix("sha256:")[:12] if progress.sha256 else digest
    event = {"status": f"pulling {short}", "digest": digest, "completed": progress.done}
    return {**event, "total": progress.total} if progress.total else event


def store_name(name: str) -> str:
    """The store's name for a model name of an Ollama client. A Problem for a URL, which only the CLI may
    pull.
    """
    name = pasted(name)
    if "://" in name:
        line = "an address cannot be pulled through the server: use `satchel pull` where it runs"
        raise Problem("unsupported", line, "model")
    return name if name.partition(":")[0] in ("hf", "ollama") else f"ollama:{name}"


def serve(models: Models, name: str, path: Path) -> None:
    """Adds the model to the served ones, with the default model's options except its adapters, control
    vectors and draft model.
    """
    like = models.entry("")
    options = replace(without_draft_model(like.options), adapters=(), control_vectors=())
    models.entries[name] = ServedModel(Served(name, path, options, like.served.idle, added=True))


@router.post("/api/copy")
@needs(ADMIN)
async def copy(request: Request, body: CopyBody) -> Response:
    unknown_fields(request, body)
    models, name = models_of(request), body.destination.removesuffix(":latest")
    source = models.entry(body.source)
    if name in models.entries or name in models.aliases:
        raise Problem("conflict", f"a model {name!r:.100} exists: delete it first", "destination")
    made = await in_pool(request, "file", partial(Store().copy, _stored(source), name))
    serve(models, name, made.path)
    return Response()


@router.delete("/api/delete")
@needs(ADMIN)
async def delete(request: Request, body: ModelNameBody) -> Response:
    unknown_fields(request, body)
    models = models_of(request)
    entry = models.entry(body.named)
    if len(models.entries) == 1:
        raise Problem("conflict", f"{entry.name} is the only model here: it stays", "model")
    if entry.users:
        raise Problem("conflict", f"{entry.name}: {entry.users} requests use it: try again later", "model")
    removed = await in_pool(request, "file", partial(Store().remove, _stored(entry)))
    pulls_of(request).deleted(removed.name)
    del models.entries[entry.name]
    await entry.unload()
    return Response()


def _stored(entry: ServedModel) -> str:
    """The store's name of a served file, or its path where it is not in the store."""
    with suppress(SatchelError, OSError):
        found = next((e for e in Store().list() if e.path == entry.path and e.name == entry.name), None)
        found = found or next((e for e in Store().list() if e.path == entry.path), None)
        if found:
            return found.name
    return str(entry.path)


@router.post("/api/push")
@needs(ADMIN)
async def push() -> JsonObject:
    raise Problem("unsupported", "models cannot be pushed from here")


@router.post("/api/create")
@needs(ADMIN)
async def create(request: Request, body: CreateBody) -> Response:
    warnings = unknown_fields(request, body)
    models, name = models_of(request), body.named.removesuffix(":latest")
    if name in models.entries or name in models.aliases:
        raise Problem("conflict", f"a model {name!r:.100} exists: delete it first", "model")
    recipe = body.recipe(models.entry(body.from_))
    made, notes = await in_pool(request, "file", partial(create_model, Store(offline=True), name, recipe))
    serve(models, name, made.path)
    said = {**SUCCESS, **({"warnings": [*warnings, *notes]} if warnings or notes else {})}
    if not body.stream:
        return JSONResponse(said)
    return Response(line({"status": "writing manifest"}) + line(said), media_type=LINES)


@router.head("/api/blobs/{digest}")
@needs(ADMIN)
async def find_blob(digest: str) -> Response:
    return Response(status_code=404)


@router.post("/api/blobs/{digest}")
@needs(ADMIN)
async def take_blob(digest: str) -> JsonObject:
    raise Problem("unsupported", "blobs are not taken: models come by /api/pull")
