"""What a server serves: [models.NAME] and [aliases.NAME] of the configuration file, checked, the models named
on the command line, and those of the store.

    [models."chat@1"]
    path = "chat-q4.gguf"   # a file, beside the configuration file or not, or a name that the store knows
    context = 4096          # options of the library by their names; the others are as the command line says
    [models."chat@2"]
    path = "chat-q6.gguf"
    idle = 600              # seconds without a request until it is unloaded; 0: never
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
VALUELESS = ("missing", "extra_forbidden")  # pydantic's errors of a key, not of its value


class TableBase(BaseModel):
    """The keys of [models.NAME] that are no load options."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str = Field(min_length=1)
    idle: float | None = Field(default=None, ge=0)
    preload: bool = False

    def options(self, base: Options) -> Options:
        """The base with what the table says. RequestError for a value that no model can be loaded with."""
        own = self.model_dump(exclude=set(TableBase.model_fields), exclude_none=True)
        made = with_values(base, own)
        made.check()
        return made


def model_table(kind: type) -> type[TableBase]:
    """The model of [models.NAME], with a key for each load option of `kind` that a table takes. Its type is
    checked here, its bounds by the option itself.
    """
    types = value_types(kind)
    keys = {f.name: (types[f.name] | None, None) for f in load_fields(kind) if f.option.in_table}
    made: type[TableBase] = create_model("ModelTable", __base__=TableBase, **keys)  # type: ignore[call-overload]
    return made


ModelTable = model_table(Options)


class AliasTable(BaseModel):
    """[aliases.NAME]: a name that stands for versions of a model. versions: model and weight. shadow: a model
    that gets a share of the requests too, for comparison; its answers go nowhere. rollback_errors: a version
    of which more than this share of the last `window` requests failed gets no more.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    versions: dict[str, float] = Field(min_length=1)
    shadow: str = ""
    shadow_share: float = Field(default=1.0, gt=0, le=1)
    rollback_errors: float = Field(default=0.5, gt=0, le=1)
    window: int = Field(default=20, ge=1, le=10_000)


@dataclass(frozen=True, slots=True)
class Served:
    """A model by name, before it is loaded. idle: seconds, 0: it stays. added: by a request while the server
    ran, so that no configuration file names it. stored: by the store, which has checked its file.
    """

    name: str
    path: Path
    options: Options
    idle: float = 0.0
    preload: bool = False
    added: bool = False
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Catalog:
    """All that a server serves. The first model is the default."""

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
    """The models of the command line, by name, those of the configuration file `where`, and those of the
    store whose names are free. RequestError for what cannot be.
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
            raise RequestError(f"{here}: {version} is no model: there is {', '.join(models)}")
    if min(alias.versions.values()) < 0 or not sum(alias.versions.values()) > 0:
        raise RequestError(f"{here}: weights are 0 or more, and one of them is more than 0")


def _beside(where: Path | None, text: str) -> Path:
    """The file of a path, taken from the configuration file's folder if there is such a one, or of a name."""
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
