"""Searches the Hugging Face Hub for repositories with GGUF files. What the Hub says is untrusted: a malformed
entry is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from satchel.errors import RequestError
from satchel.store.hub import DEFAULT_QUANT, is_projector
from satchel.store.names import HubName, parse, quant_of
from satchel.store.pull import trusted_hosts
from satchel.store.remote import hub_endpoint, hub_token
from satchel.store.web import Web

FIELDS = ("downloads", "siblings", "gguf", "gated")


@dataclass(frozen=True, slots=True)
class FoundRepository:
    """A repository of the Hub."""

    repo: str  # USER/REPO
    quants: tuple[str, ...]  # as far as file names tell them
    weights: int | None  # number of weights, where the Hub knows it
    downloads: int | None  # of the last month
    gated: bool  # whether a licence must be accepted first

    @property
    def name(self) -> str:
        """The name that `satchel pull` takes, of the usual quantization if there is one."""
        usual = DEFAULT_QUANT if DEFAULT_QUANT in self.quants else next(iter(self.quants), "")
        return str(HubName(self.repo, usual))


def search(words: Sequence[str], limit: int, environ: Mapping[str, str]) -> list[FoundRepository]:
    """Repositories whose names contain the words, the most downloaded first. RequestError where the Hub
    cannot be reached.
    """
    base = hub_endpoint(environ)
    text = " ".join(words).encode("utf-8", "surrogateescape")
    query = [
        ("search", text),
        ("filter", "gguf"),
        ("sort", "downloads"),
        ("direction", "-1"),
        ("limit", limit),
    ]
    url = f"{base}/api/models?{urlencode([*query, *(('expand[]', name) for name in FIELDS)])}"
    with closing(Web([*trusted_hosts(environ), base])) as web:
        try:
            raw = web.json(url, token=hub_token(environ))
        except RequestError as error:
            reason = str(error).removeprefix(f"{url}: ").removeprefix(f"{base}/api/models: ")
            raise RequestError(
                f"{base}: {reason}; without a connection, --offline searches this machine alone"
            ) from None
    if not isinstance(raw, list):
        raise RequestError(f"{base}: expected a list of repositories, got {raw!r:.60}")
    return [found for entry in raw[:limit] if (found := _read(entry)) is not None]


def _read(entry: Any) -> FoundRepository | None:
    """An entry of the Hub's list; None for one that cannot be pulled by name."""
    repo = entry.get("id") if isinstance(entry, dict) else None
    try:
        name = parse(f"hf:{repo}")
    except RequestError:
        return None
    if not isinstance(repo, str) or name != HubName(repo):
        return None
    siblings = entry.get("siblings")
    paths = (
        [one.get("rfilename") for one in siblings if isinstance(one, dict)]
        if isinstance(siblings, list)
        else []
    )
    models = [p for p in paths if isinstance(p, str) and p.lower().endswith(".gguf") and not is_projector(p)]
    quants = tuple(dict.fromkeys(filter(None, map(quant_of, sorted(models)))))
    gguf = entry.get("gguf")
    weights = _count(gguf.get("total")) if isinstance(gguf, dict) else None
    return FoundRepository(repo, quants, weights, _count(entry.get("downloads")), bool(entry.get("gated")))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None
