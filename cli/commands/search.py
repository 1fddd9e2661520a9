"""`satchel search WORDS`: finds models on the Hugging Face Hub, and on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.console import note, plain
from satchel.errors import RequestError

if TYPE_CHECKING:
    from satchel.store import StoredModel
    from satchel.store.search import FoundRepository

SHOWN = 8  # quantizations of a repository that are listed
BILLION, MILLION = 10**9, 10**6


def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Parts of a model's name.")],
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=100, help="List at most N repositories of the Hub.")
    ] = 10,
    offline: Annotated[bool, typer.Option("--offline", help="Search this machine alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find models with GGUF files: on this machine, and on the Hugging Face Hub.

    Repositories come by downloads, each with the line that pulls it. HF_ENDPOINT names another hub, as for
    pull; HF_TOKEN is sent to it, so that private ones are found.

    Examples:
        satchel search qwen3 4b
        satchel search llama --limit 3
    """
    from satchel.store import Store
    from satchel.store.search import search as search_hub

    store = Store(offline=offline or None)
    lower = [word.lower() for word in words]
    mine = [entry for entry in store.list() if all(word in entry.name.lower() for word in lower)]
    if not as_json:
        _print_stored(mine)
    failed: RequestError | None = None
    found: list[FoundRepository] = []
    if not store.offline:
        try:
            found = search_hub(words, limit, store.environ)
        except RequestError as error:
            failed = error
    if as_json:
        rows = [{**asdict(repo), "pull": repo.name} for repo in found]
        typer.echo(json.dumps({"stored": [entry.name for entry in mine], "hub": rows}, indent=2))
    elif found:
        _print_found(found)
    if failed is not None:
        raise failed
    if store.offline:
        note("satchel: note: offline, so the Hub was not searched")
    elif not found:
        note(f"satchel: note: the Hub has no GGUF files for {' '.join(words)!a}; fewer words find more")


def _print_stored(entries: list[StoredModel]) -> None:
    from satchel.cli.commands.list import size

    if entries:
        typer.echo("On this machine:")
    for entry in entries:
        typer.echo(plain(f"  {entry.name}  {size(entry.size)}  {entry.place}"))


def _print_found(found: list[FoundRepository]) -> None:
    """Two lines for each repository, and the line that pulls it."""
    typer.echo("On the Hugging Face Hub:")
    for repo in found:
        downloads = "" if repo.downloads is None else f"{repo.downloads:,} downloads"
        facts = [_weights(repo.weights), downloads, "gated: accept its licence first" if repo.gated else ""]
        typer.echo(f"  {'  '.join([repo.repo, *filter(None, facts)])}")
        if repo.quants:
            more = len(repo.quants) - SHOWN
            end = f" and {more} more" if more > 0 else ""
            typer.echo(f"    {' '.join(repo.quants[:SHOWN])}{end}")
        typer.echo(f"    satchel pull {repo.name}")


def _weights(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / BILLION:.1f} B weights" if count >= BILLION else f"{count / MILLION:.0f} M weights"
