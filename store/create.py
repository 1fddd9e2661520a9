"""Makes a model of another one: the same weights, with recommended sampling, a system prompt and a licence in
the file. Every program that reads GGUF finds them there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from satchel.errors import RequestError
from satchel.formats.gguf import GGUF, Typed, open_gguf, typed
from satchel.formats.gguf.edit import change, write_edited
from satchel.formats.template.chat import KEY, named
from satchel.store.modelfile import Modelfile
from satchel.store.names import part
from satchel.store.store import Store
from satchel.store.stored import StoredModel, Watch

FOLDER = "created"  # in the store
SAMPLING = "general.sampling."
# Ollama's parameters that a file holds, with the keys after SAMPLING and their types.
KEYS: Mapping[str, tuple[str, type]] = {
    "temperature": ("temp", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "repeat_penalty": ("penalty_repeat", float),
    "repeat_last_n": ("penalty_last_n", int),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}
ELSEWHERE = {
    "num_ctx": "-c, or context in [models.NAME]",
    "num_predict": "-n, or defaults in [models.NAME]",
    "stop": "-r, or defaults in [models.NAME]",
    "seed": "-s, or defaults in [models.NAME]",
}
UNUSED = {
    "TEMPLATE": "a template of Ollama's is none of the file's language, Jinja; the model keeps its own",
    "ADAPTER": "give it when the model is loaded: --lora FILE",
    "MESSAGE": "a conversation is kept by `satchel chat --session NAME`",
    "REQUIRES": "it is a version of Ollama",
}


def create(
    store: Store,
    name: str,
    recipe: Modelfile,
    watch: Watch | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[StoredModel, list[str]]:
    """The new model in the store, and notes about what the file cannot hold. The source is pulled unless this
    machine has it. RequestError for a wrong value, or a name that a model has.
    """
    name = part(name.removesuffix(":latest"), name)
    if any(entry.name == name for entry in store.list()):
        raise RequestError(f"{name}: expected a new name, got that of a model; `satchel rm {name}` first")
    notes = [f"{one}: {UNUSED[one]}" for one in recipe.unused]
    path = Path(recipe.source).expanduser()
    source = path if path.is_file() else store.pull(recipe.source, watch)
    target = store.root / FOLDER / f"{name}.gguf"
    with open_gguf(source) as gguf:
        sets = [*_sampling(recipe, notes), *_texts(gguf, recipe)]
        target.parent.mkdir(parents=True, exist_ok=True)
        write_edited(gguf, change(gguf.metadata, sets=sets), target, progress)
    return store.add(name, target), notes


def _sampling(recipe: Modelfile, notes: list[str]) -> Iterator[tuple[str, Typed]]:
    for name, value in recipe.parameters:
        if name not in KEYS:
            where = ELSEWHERE.get(name, "it is none of a file's")
            notes.append(f"PARAMETER {name} is not kept in the file: {where}")
            continue
        key, kind = KEYS[name]
        try:
            yield f"{SAMPLING}{key}", typed(kind(value))
        except ValueError:
            raise RequestError(f"PARAMETER {name}: expected a number, got {value[:60]!r}") from None


def _texts(gguf: GGUF, recipe: Modelfile) -> Iterator[tuple[str, Typed]]:
    if recipe.licence:
        yield "general.license", typed(recipe.licence)
    if recipe.system:
        found = gguf.metadata.get(KEY)
        template = found if isinstance(found, str) else named("chatml")
        yield KEY, typed(with_system(template, recipe.system))


def with_system(template: str, system: str) -> str:
    """The template with a system prompt for conversations that have none."""
    message = json.dumps({"role": "system", "content": system}, ensure_ascii=False)
    return (
        "{%- if messages[0].role != 'system' -%}{%- set messages = ["
        + message
        + "] + messages -%}{%- endif %}"
        + template
    )
