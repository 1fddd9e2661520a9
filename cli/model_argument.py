"""The model of a command line: a path, or a name of the store."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.usage import UsageError


def model_file(text: str) -> Path:
    """`model_path`, with a progress bar while it hashes a file that has changed since it was pulled."""
    from satchel.cli.chat.bar import late_bar
    from satchel.store.resolve import model_path

    with late_bar(f"checking {text}", sys.stderr, in_bytes=True) as progress:
        return model_path(text, progress)


def source_file(text: str) -> Path:
    """`model_file`, or the folder of a checkpoint."""
    path = Path(text)
    return path if path.is_dir() else model_file(text)


ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        parser=model_file,
        help="GGUF file (any part of a split model), or a name of `satchel list`.",
    ),
]

ModelOrBundled = Annotated[
    Path | None,
    typer.Argument(
        metavar="[MODEL]",
        parser=model_file,
        help="GGUF file (of a split model, any part) or name of `satchel list`; default: the bundled model.",
    ),
]
NAME_LIKE = re.compile(
    r"""(?=\S*[A-Za-z])(                                         # 12:30 is none
    (hf|huggingface|ollama):\S+ | https?://\S+\.gguf | \S+\.gguf  # schemes, files
    | [\w.-]+(/[\w.-]+)*:[\w.-]+ | [\w.-]+(/[\w.-]+)+             # NAME:TAG, USER/REPO
    | [A-Za-z][A-Za-z_.-]*\d[\w.-]*)""",  # llama3.2
    re.VERBOSE | re.ASCII,
)
WORD = re.compile(r"[a-z][a-z_-]+")


def model_and_prompt(words: Sequence[str], given: Path | str | None) -> tuple[Path | None, str | None]:
    """The model and the prompt of `[MODEL] [PROMPT]`. given: the model of -m, -hf or -mu, which leaves the
    prompt alone.

    Of several words the first is the model. One word is the model if this machine has it, else the prompt; a
    word that looks like a model's name is an error then.
    """
    if not words:
        return None, None
    first, prompt = words[0], " ".join(words[1:]) or None
    if given is not None:
        if prompt:
            raise UsageError(
                f"PROMPT: expected one text, got {len(words)}, and the model is {given} already: quote the"
                " prompt, or leave out the option (-m is also SATCHEL_MODEL)"
            )
        return None, first
    found = named_model(first)
    if found is not None:
        return found, prompt
    if prompt and any(c.isspace() for c in first):
        raise UsageError(
            f"PROMPT: expected a model and one text, or one text, got {len(words)}: quote it as one"
        )
    if prompt:
        raise UsageError(f"{_missing(first)}; a prompt of several words is quoted")
    if NAME_LIKE.fullmatch(first):
        raise UsageError(f"{_missing(first)}; -p sends it as a prompt")
    if WORD.fullmatch(first):
        from satchel.cli.console import note

        note(f"satchel: note: this machine has no model {first}, so it is the prompt")
    return None, first


def named_model(text: str) -> Path | None:
    """The file of a text that is a model's name on this machine, or a GGUF file's path; None for another."""
    from satchel.store import Store

    if not text or any(c.isspace() for c in text):
        return None
    path = Path(text)
    with suppress(OSError, ValueError):  # no path at all
        if path.is_file():
            with path.open("rb") as file:
                return path if path.suffix == ".gguf" or file.read(4) == b"GGUF" else None
    return model_file(text) if Store(offline=True).has(text) else None


def _missing(text: str) -> str:
    """Why a text names no model, and what to do."""
    from satchel.store.finding import nothing_found
    from satchel.store.names import LocalName, parse

    if text.endswith(".gguf") or not isinstance(parse(text), LocalName):
        return str(nothing_found(text, ()))
    source = "hf" if "/" in text else "ollama"
    return f"{text[:120]}: this machine has no such model; `satchel pull {source}:{text[:120]}` gets it"
