"""The model catalog of a server: the models of the command line, of [models.NAME] and [aliases.NAME] in the
configuration file, and of the store.

    [models."chat@1"]
    path = "chat-q4.gguf"   # a file, relative to the configuration file, or a name in the store
    context = 4096          # a load option; options that are not set keep the command line's value
    [models."chat@2"]
    path = "chat-q6.gguf"
    idle = 600              # the model is unloaded after so many seconds without a request; 0: never
    [aliases.chat]
    versions = {"chat@1" = 90, "chat@2" = 10}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.runtime.load_option import load_fields, value_types, with_values
from satchel.store.resolve import model_path

T = TypeVar("T", bound=BaseModel)
VALUELESS = ("missing", "extra_forbidden")  # pydantic's error types that concern a key, not its value


class TableBase(BaseModel):
    """The keys of [models.NAME] that are not load options."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # A file, relative to the configuration file, or a name in the store.
    path: str = Field(min_length=1)
    # Seconds without a request until the model is unloaded; 0: never, None: as the command line says.
    idle: float | None = Field(default=None, ge=0)
    # The server loads the model when it starts, not at the first request.
    preload: bool = False

    def options(self, base: Options) -> Options:
        """`base` with the options that the table sets. RequestError for a value out of an option's bounds."""
        own = self.model_dump(exclude=set(TableBase.model_fields), exclude_none=True)
        made = with_values(base, own)
        made.check()
        return made


def model_table(kind: type) -> type[TableBase]:
    """The pydantic model of [models.NAME], with a key for each load option of `kind` that a table may set. It
    checks a value's type; the option checks the value's bounds.
    """
    types = value_types(kind)
    keys = {f.name: (types[f.name] | None, None) for f in load_fields(kind) if f.option.in_table}
    made: type[TableBase] = create_model("ModelTable", __base__=TableBase, **keys)  # type: ignore[call-overload]
    return made


ModelTable = model_table(Options)


class AliasTable(BaseModel):
    """[aliases.NAME]: one name for weighted versions of a model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Model name -> weight: a version gets requests in proportion to its weight.
    versions: dict[str, float] = Field(min_length=1)
    # A model that gets copies of requests; its answers are compared and dropped. "": none.
    shadow: str = ""
    # The share of requests that are copied to the shadow.
    shadow_share: float = Field(default=1.0, gt=0, le=1)
    # A version is rolled back when more than this share of its last `window` requests failed.
    rollback_errors: float = Field(default=0.5, gt=0, le=1)
    # Requests of a version over which its error share is measured.
    window: int = Field(default=20, ge=1, le=10_000)


@dataclass(frozen=True, slots=True)
class Served:
    """An entry of the catalog: a model's name, file and load options."""

    name: str
    path: Path
    options: Options
    idle: float = 0.0  # seconds without a request until the model is unloaded; 0: never
    preload: bool = False  # the server loads the model when it starts
    added: bool = False  # a request added the model while the server ran; no configuration file names it
    stored: bool = False  # the file comes from the store, which has verified it


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models and aliases of a server, by name. The first model is the default."""

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
    """The catalog of a server. RequestError where a table is invalid or two models have the same name.

    files: models of the command line. tables: the parsed configuration file, whose path is `where`. base:
    load options of the command line. stored: models of the store; a name that is taken already wins.
    """
    models = {
        name: Served(name, path, base, idle, preload=not i) for i, (name, path) in enumerate(files.items())
    }
    for name, table in tables.get("models", {}).items():
        if name in models:
            raise RequestError(
                f"{where}: [models.{name}]: a model of this name was given on the command line"
            )
        here = f"{where}: [models.{name}]"
        read = _read(ModelTable, table, here)
        path = _beside(where, read.path)
        own_idle = idle if read.idle is None else read.idle
        try:
            options = read.options(base)
        except RequestError as error:
            raise RequestError(f"{here} {error}") from None
        models[name] = Served(name, path, options, own_idle, read.preload or not models)
    for name, path in (stored or {}).items():
        models.setdefault(name, Served(name, path, base, idle, stored=True))
    aliases = {
        n: _read(AliasTable, t, f"{where}: [aliases.{n}]") for n, t in tables.get("aliases", {}).items()
    }
    for name, alias in aliases.items():
        _check_alias(name, alias, models, where)
    return Catalog(models, aliases)


def _check_alias(name: str, alias: AliasTable, models: Mapping[str, Served], where: Path | None) -> None:
    here = f"{where}: [aliases.{name}]"
    if name in models:
        raise RequestError(f"{here}: a model of this name exists: give the alias another")
    for version in (*alias.versions, *([alias.shadow] if alias.shadow else ())):
        if version not in models:
            raise RequestError(f"{here}: {version} is not a model: expected one of {', '.join(models)}")
    if min(alias.versions.values()) < 0 or not sum(alias.versions.values()) > 0:
        raise RequestError(f"{here}: weights are 0 or more, and one of them is more than 0")


def _beside(where: Path | None, text: str) -> Path:
    """The file of a path or a store name. A path relative to the configuration file's folder comes first."""
    path = Path(text).expanduser()
    beside = where.parent / path if where else path
    return beside if beside.exists() else model_path(str(path) if path.exists() else text)


def _read(kind: type[T], table: Any, where: str) -> T:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(p) for p in first["loc"])
        got = "" if first["type"] in VALUELESS else f", got {first['input']!r:.60}"
        raise RequestError(f"{where} {key}: {first['msg']}{got}") from None
