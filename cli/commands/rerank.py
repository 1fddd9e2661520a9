"""`satchel rerank QUERY [DOCUMENT ...]`: documents by how well they answer a query, best first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.adapters import AdapterOptions
from satchel.cli.groups import option, with_options, wrong
from satchel.cli.options import ModelOptions, decoded, open_model, read_text
from satchel.cli.progress import working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from satchel.runtime.api.model import Model
    from satchel.runtime.tasks.rerank import Ranked

SLOTS = 8  # documents per batch
Documents = list[tuple[str, str]]  # (where it comes from, its text)


@with_options
def rerank(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="The query that the documents should answer.")
    ],
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DOCUMENT ...]", help="Documents; without any, the lines of stdin."),
    ] = None,
    *,
    model: ModelOptions,
    adapters: AdapterOptions,
    lines: Annotated[
        list[Path] | None,
        option("-f", "--file", metavar="FILE", help="A file with a document on each line; may be repeated."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        option("-d", "--document", metavar="FILE", help="A file that is one document; may be repeated."),
    ] = None,
    top: Annotated[int | None, option("--top", "--top-n", min=1, help="Print only the N best.")] = None,
    instruction: Annotated[
        str | None, option("--instruction", metavar="TEXT", help="The relevance criterion.")
    ] = None,
    embeddings: Annotated[
        bool, option("--embeddings", help="Rank by embeddings, for models that are not rerankers.")
    ] = False,
    as_json: Annotated[bool, option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Rank documents by how well they answer a query.

    Documents are the arguments, the lines of -f, the files of -d, or the lines of stdin. Scores are between 0
    and 1; with --embeddings they are cosine similarities, between -1 and 1.

    Examples:
        satchel rerank "How do I make tea?" -f docs.txt -m reranker.gguf
    """
    from satchel.runtime.tasks.rerank import INSTRUCTION

    if embeddings and instruction is not None:
        raise wrong("--instruction", "--embeddings compares texts as they are")
    if not query.strip():
        raise wrong("query", "expected a text that is not empty")
    asked = _documents(documents, lines, files)
    texts = [text for _, text in asked]
    with open_model(model, adapters, slots=min(SLOTS, len(asked) + embeddings)) as loaded:
        with working(f"reading {len(texts)} documents"):
            if embeddings:
                found = _by_embedding(loaded, query, texts, top)
            else:
                found = loaded.rerank(query, texts, top=top, instruction=instruction or INSTRUCTION)
        if as_json:
            _print_json(loaded, found, asked)
        else:
            _print_table(found, asked)


def _documents(texts: list[str] | None, lines: list[Path] | None, files: list[Path] | None) -> Documents:
    """The documents to sort, with their sources."""
    found = [(f"argument {i}", text) for i, text in enumerate(texts or (), 1)]
    for path in lines or ():
        found += [(f"{path}:{i}", line) for i, line in enumerate(read_text(path).split("\n"), 1)]
    found += [(str(path), read_text(path)) for path in files or ()]
    if not (texts or lines or files):
        if sys.stdin.isatty():
            raise wrong("documents", "none given: as arguments, by -f, by -d, or on stdin")
        whole = decoded(sys.stdin.buffer.read(), "stdin")
        found = [(f"stdin:{i}", line) for i, line in enumerate(whole.split("\n"), 1)]
    found = [(place, text.strip()) for place, text in found if text.strip()]
    if not found:
        raise wrong("documents", "all of them are empty")
    return found


def _by_embedding(model: Model, query: str, texts: Sequence[str], top: int | None) -> list[Ranked]:
    from satchel.runtime.tasks.rerank import ranked

    vectors = model.embed([query, *texts])
    return ranked(vectors[1:] @ vectors[0], top)


def _print_json(model: Model, found: Sequence[Ranked], asked: Documents) -> None:
    results = [
        {"index": r.index, "relevance_score": r.score, "source": asked[r.index][0], "text": asked[r.index][1]}
        for r in found
    ]
    print(json.dumps({"model": model.path.name, "results": results}, ensure_ascii=False), flush=True)


def _print_table(found: Sequence[Ranked], asked: Documents) -> None:
    """Prints a row per document; on a terminal texts are truncated at its width."""
    from rich.table import Table
    from rich.text import Text

    from satchel.cli.console import out, plain

    table = Table("score", "source", "document", box=None, pad_edge=False, header_style="bold")
    table.columns[0].justify = "right"
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"

    for r in found:
        place, text = asked[r.index]
        table.add_row(f"{r.score:.4f}", Text(plain(place)), Text(plain(" ".join(text.split()))))
    out().print(table)
