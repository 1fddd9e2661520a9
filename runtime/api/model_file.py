"""The file of the model that a program asks for. The only module of the runtime that sees the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from satchel.runtime.api.options import Options


def model_file(model: str | Path | None, hashing: Callable[[int, int], None] | None = None) -> Path:
    """The file of a path or of a name in the store; None: the bundled model. RequestError where no model has
    the name. hashing: called with (bytes done, bytes in all) while a file is hashed that was modified since
    it was pulled.
    """
    from satchel.store.resolve import default_model, model_path

    if model is None:
        return default_model()
    return model_path(model, hashing) if isinstance(model, str) else model


def with_draft_file(options: Options) -> Options:
    """The options with the file of the draft model in place of its name."""
    wanted = options.speculation
    if wanted is None or not isinstance(wanted.draft_model, str):
        return options
    return replace(options, speculation=replace(wanted, draft_model=model_file(wanted.draft_model)))
