"""`satchel tokenize`: encodes text to token ids with the file's tokenizer.

Only the file's metadata is read. The text is encoded byte for byte, including a newline at its end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.model_argument import model_file
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.formats.tokenizer import Tokenizer


def tokenize(
    model: Annotated[
        Path | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            parser=model_file,
            help="GGUF file or name, default: the bundled model; a file with only a vocabulary suffices.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The text; without it, stdin.")] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The text.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the text from a file.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the text from stdin.")] = False,
    ids_only: Annotated[bool, typer.Option("--ids", help="Print a JSON list of ids.")] = False,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Add no begin or end tokens.")] = False,
    special: Annotated[bool, typer.Option("--special", help="Parse control tokens in the text.")] = False,
    count: Annotated[bool, typer.Option("--show-count", help="Print the number of tokens too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print ids and texts as one JSON object.")] = False,
) -> None:
    """Turn text into token ids. Control tokens in the text stay text unless --special is given.

    Examples:
        satchel tokenize "Hello there"
        satchel tokenize --ids "Hello there"
    """
    from satchel.formats.gguf import open_gguf
    from satchel.formats.tokenizer import build_tokenizer
    from satchel.store.resolve import default_model

    given, path = _read_text(text, prompt, file, stdin), model or default_model()
    with open_gguf(path) as gguf:
        tokenizer = build_tokenizer(gguf.metadata, source=str(path))
    ids = tokenizer.encode(given, special=special, bos=False if no_bos else None)
    if as_json:
        _write(json.dumps({"count": len(ids), "ids": ids, "tokens": [_show(tokenizer, i) for i in ids]}))
    elif ids_only:
        _write(json.dumps(ids))
    else:
        _write("\n".join(f"{i:6d} -> '{_show(tokenizer, i)}'" for i in ids))
    if count and not as_json:
        _write(f"Total number of tokens: {len(ids)}")


def _read_text(text: str | None, prompt: str | None, file: Path | None, stdin: bool) -> str:
    """The text of the given source, by default stdin. RequestError for two sources or invalid UTF-8."""
    sources = [
        name
        for name, named in (
            ("TEXT", text is not None),
            ("--prompt", prompt is not None),
            ("--file", file is not None),
            ("--stdin", stdin),
        )
        if named
    ]
    if len(sources) > 1:
        raise RequestError(f"text: expected one source, got {' and '.join(sources)}; leave one out")
    typed = text if text is not None else prompt
    if typed is not None:
        # Arguments that are not UTF-8 arrive with their bytes as lone surrogates.
        return _decode("argument", typed.encode("utf-8", "surrogateescape"))
    if file is None:
        return _decode("stdin", sys.stdin.buffer.read())
    try:
        return _decode(str(file), file.read_bytes())
    except OSError as error:
        raise RequestError(f"{file}: can't be read: {error.strerror or error}; check the path") from None


def _decode(source: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = data[error.start]
        raise RequestError(
            f"{source}: expected UTF-8, got byte 0x{found:02X} at offset {error.start} ({error.reason})"
        ) from None


def _show(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _write(text: str) -> None:
    """Writes to stdout in UTF-8, whatever the terminal's encoding."""
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()
