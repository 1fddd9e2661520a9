"""`satchel serve [MODEL...]`: the models behind an API."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.adapters import AdapterOptions
from satchel.cli.chat.bar import late_bar
from satchel.cli.console import note
from satchel.cli.grammars import GrammarOptions
from satchel.cli.groups import Taking, with_options, wrong
from satchel.cli.model_argument import model_file
from satchel.cli.options import ModelOptions, loading
from satchel.cli.replies import ReplyOptions
from satchel.cli.request_defaults import AnswerOptions, request_defaults
from satchel.cli.sampling import SamplingOptions
from satchel.cli.serving import ServerOptions
from satchel.cli.speculation import SpeculationOptions
from satchel.errors import RequestError
from satchel.runtime.option import PARALLEL, REPLICAS, SERVER, WORKER
from satchel.store.resolve import default_model

if TYPE_CHECKING:
    from satchel.runtime.api.options import LoadProgress, Options
    from satchel.server.catalog import Catalog, Served

GB = 10**9
LOADING = Taking(
    groups=(PARALLEL, WORKER, SERVER, REPLICAS), defaults={"slots": 8, "worker": "process", "warmup": True}
)


@with_options
def serve(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MODEL ...]",
            parser=model_file,
            help="GGUF files, or names of `satchel list`; the first is the default.",
        ),
    ] = None,
    *,
    model: Annotated[ModelOptions, LOADING],
    adapters: AdapterOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    answer: AnswerOptions,
    grammar: GrammarOptions,
    reply: Annotated[ReplyOptions, Taking(without=("report",))],
    server: ServerOptions,
) -> None:
    """Serve models over HTTP: the APIs of OpenAI, Anthropic and Ollama, and a page at /.

    [models.NAME] and [aliases.NAME] of the configuration file are served too; SIGHUP reads them again.

    Examples:
        satchel serve
        satchel serve -m hf:USER/REPO:Q4_K_M --port 8000 --api-key secret
    """
    try:
        from satchel.server.log import set_up
        from satchel.server.run import run_server
    except ImportError as error:
        raise RequestError(f"{error.name} is missing: pip install 'satchel[server]'") from None

    set_up(server.least_level, server.log_json)
    first, *others = (server.alias or "").split(",")
    wanted = model.wanted
    named = _named([*([wanted] if wanted else []), *(files or [])], first)
    model = model.with_load(
        defaults=request_defaults(sampling, answer, reply, grammar),
        override_kv=(*model.load.override_kv, *server.overrides),
        kv_budget=server.kv_budget(model.load.kv_budget),
    )

    def read() -> Catalog:
        base = replace(loading(model, adapters), speculation=speculation.speculation())
        return _with_aliases(_catalog(named, base, model.verify_weights, server), others)

    run_server(read, round(server.memory * GB), server.settings(), shown_load)


@contextmanager
def shown_load(name: str) -> Iterator[LoadProgress]:
    """Shows a load at the start on a terminal: a bar, and a line at its end. Elsewhere the log has it."""
    started = time.monotonic()
    with late_bar(f"loading {name}", sys.stderr, in_bytes=True) as progress:
        yield progress
    if sys.stderr.isatty():
        note(f"{name} is loaded: {time.monotonic() - started:.1f} s")


def _with_aliases(catalog: Catalog, names: list[str]) -> Catalog:
    """The catalog with further names of its first model. UsageError for one that is taken."""
    from satchel.server.catalog import AliasTable

    if taken := {*catalog.models, *catalog.aliases}.intersection(names):
        raise wrong("--alias", f"{min(taken)} is the name of a model already")
    first = next(iter(catalog.models), "")
    aliases = {name: AliasTable(versions={first: 1.0}) for name in names if name}
    return replace(catalog, aliases={**catalog.aliases, **aliases})


def _named(files: list[Path], alias: str) -> dict[str, Path]:
    """The files by served name."""
    found: dict[str, Path] = {}
    for i, path in enumerate(files):
        name = alias if alias and i == 0 else path.stem
        if name in found:
            raise wrong(
                "MODEL", f"{path}: a model named {name} is served already; give one of them another --alias"
            )
        found[name] = path
    return found


def _catalog(named: dict[str, Path], base: Options, digests: str, server: ServerOptions) -> Catalog:
    """All served models: those of the command line and of the configuration file. Without any on the command
    line, also those of the store, and the bundled model where there is no other default. digests: those of
    --verify-weights.
    """
    from satchel.cli.config import find, read
    from satchel.server.catalog import catalog_of

    where = find()
    tables = read(where) if where else {}
    files, stored = named, {}
    if not named:
        bundled = default_model()
        files = {} if tables.get("models") else {bundled.stem: bundled}
        stored = _stored()
    found = catalog_of(files, tables, base, server.idle_seconds, where, stored)
    return _verified(found, digests) if digests else found


def _verified(catalog: Catalog, wanted: str) -> Catalog:
    """The same, each file with the digests that it must have."""
    from satchel.store.digests import digests_of

    def checked(served: Served) -> Served:
        return replace(served, options=replace(served.options, digests=digests_of(served.path, wanted)))

    return replace(catalog, models={name: checked(served) for name, served in catalog.models.items()})


def _stored() -> dict[str, Path]:
    """The store's models. A file that differs from its pin is left out and logged."""
    from satchel.server.log import LOG
    from satchel.store import Store
    from satchel.store.bundled import BUNDLED

    store, found = Store(offline=True), {}
    for entry in store.list():
        if entry.place == BUNDLED:  # it is served where there is no other model
            continue
        try:
            found[entry.name] = store.find(entry.name)
        except RequestError as error:
            LOG.warning("%s is not served: %s", entry.name, error)
    return found
