"""The models and aliases that a server serves: those of the command line, of [models.NAME] and [aliases.NAME]
in the configuration file, and of the store.

    [models."chat@1"]
    path = "chat-q4.gguf"   # a file, also relative to the configuration file, or a name of the store
    context = 4096          # load options by name; the others have the values of the command line
    [models."chat@2"]
    path = "chat-q6.gguf"
    lookup = true           # speculative decoding; or draft_model = "FILE"
    idle = 600              # seconds without a request until the model is unloaded; 0: never
    [aliases.chat]
    versions = {"chat@1" = 90, "chat@2" = 10}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from satchel.errors import RequestError
from satchel.errors.spelling import did_you_mean
from satchel.runtime.api.options import Options
from satchel.runtime.option import options_of, with_values
from satchel.runtime.speculation import Speculation
from satchel.store.resolve import model_path

T = TypeVar("T", bound=BaseModel)
SHORT = 20  # keys of a table that a message lists


class TableBase(BaseModel):
    """The keys of [models.NAME] besides load options."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # A file, relative to the configuration file, or a name in the store.
    path: str = Field(min_length=1)
    # Seconds without a request until the model is unloaded; 0: never, None: as the command line says.
    idle: float | None = Field(default=None, ge=0)
    # The server loads the model when it starts, not at the first request.
    preload: bool = False

    def options(self, base: Options, where: Path | None = None) -> Options:
        """The base with the table's values; of `defaults`, with those of its keys. Raises RequestError for a
        value that the option refuses. where: the configuration file, beside which a draft model may lie.
        """
        given = self.model_dump(exclude=set(TableBase.model_fields), exclude_none=True)
        if "defaults" in given:
            given["defaults"] = {**(base.defaults or {}), **given["defaults"]}
        drafting = {name: given.pop(name) for name in options_of(Speculation) if name in given}
        if not drafting:
            return with_values(base, given)
        if "draft_model" in drafting:
            drafting["draft_model"] = _beside(where, drafting["draft_model"])
        found = with_values(base.speculation or Speculation(), drafting)
        if not found.active and found.draft_max and drafting.keys() - {"lookup"}:
            first = next(iter(drafting.keys() - {"lookup"}))
            raise RequestError(f"{first}: expected lookup or draft_model beside it, which draft tokens")
        return with_values(replace(base, speculation=found if found.active else None), given)


def model_table(kind: type) -> type[TableBase]:
    """The pydantic model of [models.NAME], with a key for each load option of `kind` that a table takes, and
    for each of speculative decoding. It checks types; the options check their ranges.
    """
    declared = {**options_of(kind), **options_of(Speculation)}
    keys = {name: (one.hint | None, None) for name, one in declared.items() if one.in_table}
    made: type[TableBase] = create_model("ModelTable", __base__=TableBase, **keys)  # type: ignore[call-overload]
    return made


ModelTable = model_table(Options)


class AliasTable(BaseModel):
    """[aliases.NAME]: a name for versions of a model, among which requests are divided."""

    model_config = ConfigDict(extra="forbid", strict=True)

    versions: dict[str, float] = Field(min_length=1)  # weights by model
    shadow: str = ""  # a model that gets copies of requests, for comparison; its answers are dropped
    shadow_share: float = Field(default=1.0, gt=0, le=1)  # share of the requests that are copied
    # A version gets no more requests once more than this share of its last `window` requests has failed.
    rollback_errors: float = Field(default=0.5, gt=0, le=1)
    # Requests of a version over which its error share is measured.
    window: int = Field(default=20, ge=1, le=10_000)
    # Whether the shadow gets all requests once it was found as good, and no more copies once it was not; see
    # runtime/fleet/comparison.py.
    promote: bool = False
    most_divergence: float = Field(default=0.1, gt=0)  # nats a token
    least_agreement: float = Field(default=0.9, gt=0, le=1)  # share of tokens
    least_compared: int = Field(default=32, ge=8, le=100_000)  # requests before the first look
    most_compared: int = Field(default=4096, ge=8, le=1_000_000)
    webhook: str = ""  # a URL that gets each change of the versions as JSON


@dataclass(frozen=True, slots=True)
class Served:
    """A model that the server can load."""

    name: str
    path: Path
    options: Options
    idle: float = 0.0  # seconds without a request until it is unloaded; 0: never
    preload: bool = False
    added: bool = False  # by a request: no configuration file names it
    stored: bool = False  # the store has it, and has checked its file


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models and aliases of a server. The first model is the default."""

    models: Mapping[str, Served]
    aliases: Mapping[str, AliasTable]


def catalog_of(
    files: Mapping[str, Path],
    tables: Mapping[str, Any],
    base: Options,
    idle: float,
    where: Path | None,
    stored: Mapping[str, Path] | None = None,
) -> Catalog:
    """The models of the command line by name, those of the configuration file `where`, and those of the store
    whose names are free. Raises RequestError for a table that is invalid.
    """
    models = {
        name: Served(name, path, base, idle, preload=not i) for i, (name, path) in enumerate(files.items())
    }
    others = without_draft_model(base)
    for name, table in tables.get("models", {}).items():
        if name in models:
            raise RequestError(
                f"{where}: [models.{name}]: expected another name, because the command line names a model so;"
                " rename the table"
            )
        here = f"{where}: [models.{name}]"
        read = read_table(ModelTable, table, here)
        path = _beside(where, read.path)
        own_idle = idle if read.idle is None else read.idle
        try:
            options = read.options(others, where)
        except RequestError as error:
            raise RequestError(f"{here} {error}") from None
        models[name] = Served(name, path, options, own_idle, read.preload or not models)
    for name, path in (stored or {}).items():
        models.setdefault(name, Served(name, path, others, idle, stored=True))
    aliases = {
        n: read_table(AliasTable, t, f"{where}: [aliases.{n}]") for n, t in tables.get("aliases", {}).items()
    }
    for name, alias in aliases.items():
        _check_alias(name, alias, models, where)
    return Catalog(models, aliases)


def without_draft_model(options: Options) -> Options:
    """The options for models that were not named with the draft model, whose vocabulary may be another."""
    found = options.speculation
    if found is None or found.draft_model is None:
        return options
    return replace(options, speculation=replace(found, draft_model=None) if found.lookup else None)


def _check_alias(name: str, alias: AliasTable, models: Mapping[str, Served], where: Path | None) -> None:
    here = f"{where}: [aliases.{name}]"
    if name in models:
        raise RequestError(f"{here}: expected another name, because a model has this one; rename the alias")
    for version in (*alias.versions, *([alias.shadow] if alias.shadow else ())):
        if version not in models:
            raise RequestError(f"{here}: expected models of {', '.join(models)}, got {version}")
    if alias.promote and not alias.shadow:
        raise RequestError(f"{here}: promote: expected a shadow, which is what may be promoted, got none")
    if alias.least_compared > alias.most_compared:
        raise RequestError(
            f"{here}: least_compared: expected at most most_compared, {alias.most_compared}, got"
            f" {alias.least_compared}"
        )
    if alias.webhook and not alias.webhook.startswith(("https://", "http://")):
        raise RequestError(
            f"{here}: webhook: expected a URL, https:// or http://, got {alias.webhook[:40]!a}"
        )
    if min(alias.versions.values()) < 0 or not sum(alias.versions.values()) > 0:
        raise RequestError(
            f"{here}: expected weights of 0 or more, one of them above 0, got {alias.versions}"
        )


def _beside(where: Path | None, text: str) -> Path:
    """The file of a path, which may be relative to the configuration file, or of a name of the store."""
    path = Path(text).expanduser()
    beside = where.parent / path if where else path
    return beside if beside.exists() else model_path(str(path) if path.exists() else text)


def read_table(kind: type[T], table: Any, where: str) -> T:
    """A table of a configuration file as this class. Raises RequestError with its first error, which begins
    with `where`.
    """
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            told = f"no such key{_hint(kind, first['loc'])}"
        elif first["type"] == "missing":
            told = "it is missing"
        else:
            told = f"{first['msg']}, got {first['input']!r:.60}"
        raise RequestError(f"{where} {key}: {told}") from None


def _hint(kind: type[BaseModel], loc: Sequence[int | str]) -> str:
    """The key of its table that is most like the last one of loc, or all keys of a short table."""
    *tables, wrong = loc
    for name in tables:
        inner = kind.model_fields[str(name)].annotation if str(name) in kind.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ""
        kind = inner
    known = sorted(kind.model_fields)
    if hint := did_you_mean(str(wrong), known):
        return f"; {hint}"
    return f": there are {', '.join(known)}" if len(known) <= SHORT else ""
