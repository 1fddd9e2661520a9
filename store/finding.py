"""Resolves a full or shortened model name to one entry of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from satchel.errors import ModelError, RequestError, SatchelError
from satchel.errors.spelling import did_you_mean
from satchel.formats.gguf.splits import NAME
from satchel.store.hub import DEFAULT_QUANT
from satchel.store.names import HubName, LocalName, OllamaName, WebName, parse
from satchel.store.stored import StoredModel

SHOWN = 12


def matching(text: str, entries: Sequence[StoredModel]) -> list[StoredModel]:
    """The entries of one place that match the text, by the strictest rule that any of them meets: the full
    name, the name without its scheme, the repository, then the short name. Of several, the default
    quantization wins.
    """
    wanted = {text, *_spelled(text)}
    repos = tuple(f"{name}{end}" for name in wanted for end in (":", "/"))
    exact = [entry for entry in entries if entry.name in wanted]
    bare = [entry for entry in entries if _bare(entry.name) in wanted]
    quants = [e for e in entries if _is_hub(e.name) and (e.name.startswith(repos) or _bare_starts(e, repos))]
    short = [entry for entry in entries if text in _short(entry)]
    found = next((group for group in (exact, bare, quants, short) if group), [])
    usual = [entry for entry in found if entry.name.endswith(f":{DEFAULT_QUANT}")]
    return usual if len(found) > 1 and len(usual) == 1 else found


def the_one(text: str, found: Sequence[StoredModel]) -> StoredModel:
    """The only entry. RequestError where there are several."""
    if len(found) > 1:
        names = ", ".join(sorted(entry.name for entry in found)[:SHOWN])
        raise RequestError(f"{text!a}: expected the name of one model, got one of {len(found)}: {names}")
    return found[0]


def nothing_found(text: str, entries: Iterable[StoredModel]) -> SatchelError:
    """The error for an unknown name."""
    name = parse(text)
    if not isinstance(name, LocalName):
        return RequestError(f"{text}: not in the store; `satchel pull {name}` gets it")
    if text.lower().endswith(".gguf") or text.startswith(("/", "./", "../", "~", "\\")):
        return ModelError(f"{text}: can't be read: No such file or directory; check the path")
    known = [entry.name for entry in entries]
    names = (*known, *(_bare(n) for n in known))
    hint = did_you_mean(text, names) or "`satchel list` shows what there is"
    return RequestError(f"{text[:120]!a}: no file and no model of that name; {hint}")


def _spelled(text: str) -> set[str]:
    """The full names that the text can stand for, as a name of a hub or registry."""
    name = parse(text)
    if isinstance(name, HubName | OllamaName | WebName):
        return {str(name)}
    try:
        return {str(parse(f"ollama:{text}"))}
    except RequestError:
        return set()


def _bare(name: str) -> str:
    """A name without its scheme (hf, ollama, lmstudio)."""
    scheme, colon, rest = name.partition(":")
    return rest if colon and scheme in ("hf", "ollama", "lmstudio") else name


def _is_hub(name: str) -> bool:
    return name.startswith(("hf:", "lmstudio:"))


def _bare_starts(entry: StoredModel, repos: tuple[str, ...]) -> bool:
    return _bare(entry.name).startswith(repos)


def _short(entry: StoredModel) -> set[str]:
    """Short names of an entry: the repository's, with and without the quantization, and the file's."""
    match = NAME.fullmatch(entry.path.name)
    found = {match["prefix"] if match else entry.path.stem, entry.path.name}
    if _is_hub(entry.name):
        last = _bare(entry.name).split("/")[1]
        found |= {last, last.partition(":")[0]}
    return found
