"""`satchel embed [TEXT ...]`: an embedding for each text, as JSON on stdout or as a .npy file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from satchel.cli.adapters import AdapterOptions
from satchel.cli.groups import option, with_options, wrong
from satchel.cli.options import ModelOptions, decoded, open_model, read_text
from satchel.cli.progress import working

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model

POOLINGS = ("none", "mean", "cls", "last")
SLOTS = 8  # texts per batch


@with_options
def embed(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts; without any, lines of stdin.")
    ] = None,
    *,
    model: ModelOptions,
    adapters: AdapterOptions,
    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="A text.")] = None,
    file: Annotated[
        Path | None, option("-f", "--file", metavar="FILE", help="A file with a text on each line.")
    ] = None,
    separator: Annotated[
        str,
        option("--embd-separator", metavar="TEXT", help="Separator of the texts of -p, -f and stdin."),
    ] = "\n",
    pooling: Annotated[
        str | None,
        option("--pooling", env="POOLING", help=f"{', '.join(POOLINGS)}; default: the model's own, or mean."),
    ] = None,
    normalize: Annotated[
        int, option("--embd-normalize", min=-1, max=2, help="2: embeddings of length 1; -1: not normalized.")
    ] = 2,
    dimensions: Annotated[
        int | None, option("--dimensions", min=1, help="Keep the first N numbers (Matryoshka models).")
    ] = None,
    output: Annotated[
        Path | None, option("-o", "--output", metavar="FILE", help="Write a .npy file instead of JSON.")
    ] = None,
) -> None:
    """Compute embeddings of texts: JSON in OpenAI's shape, or a .npy file.

    Texts are the arguments, -p, the lines of -f, or those of stdin; empty lines are skipped. Pooling none
    gives an embedding for each token.

    Examples:
        satchel embed "a cup of tea" -m embedder.gguf
    """
    if pooling is not None and pooling not in POOLINGS:
        raise wrong("--pooling", f"expected one of {', '.join(POOLINGS)}, got {pooling}")
    if normalize not in (-1, 2):
        raise wrong("--embd-normalize", f"{normalize}: there are -1, none, and 2, the Euclidean length")
    if output is not None and pooling == "none":
        raise wrong("-o", "pooling none gives texts of different lengths no common array")
    asked = _texts(texts, prompt, file, separator)
    with open_model(model, adapters, slots=min(SLOTS, len(asked))) as loaded:
        ids = [loaded.tokenize(text) for text in asked]
        how: dict[str, Any] = {"normalize": normalize == 2, "dimensions": dimensions}
        with working(f"embedding {len(ids)} texts"):
            vectors = (
                loaded.embed_tokens(ids, **how)
                if pooling == "none"
                else loaded.embed(ids, pooling=pooling, **how)
            )
        if output is None:
            _print(loaded, vectors, sum(map(len, ids)))
        else:
            _save(output, vectors)


def _texts(texts: list[str] | None, prompt: str | None, file: Path | None, separator: str) -> list[str]:
    """The texts to embed, from one source."""
    if sum((bool(texts), prompt is not None, file is not None)) > 1:
        raise wrong("texts", "given twice: as arguments, by -p or by -f")
    if not separator:
        raise wrong("--embd-separator", "expected a text that is not empty")
    if texts:
        found = list(texts)
    elif prompt is not None:
        found = prompt.split(separator)
    else:
        whole = read_text(file) if file is not None else decoded(sys.stdin.buffer.read(), "stdin")
        found = whole.split(separator)
    found = [text for text in found if text.strip()]
    if not found:
        raise wrong("texts", 'none given; `satchel embed "a text"` embeds one')
    return found


def _print(model: Model, vectors: Any, tokens: int) -> None:
    data = [
        {"object": "embedding", "index": i, "embedding": vector.tolist()} for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    print(json.dumps({"object": "list", "model": model.path.name, "data": data, "usage": usage}), flush=True)


def _save(path: Path, vectors: Any) -> None:
    import numpy as np

    from satchel.formats.gguf.atomic import replace_files

    replace_files([(path, lambda file: np.save(file, vectors))])
