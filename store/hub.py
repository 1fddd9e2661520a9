"""The Hugging Face Hub's API: lists a repository's files, and selects those of a model name.

One response lists all files with sizes and digests at one commit. All files are fetched from that commit, so
a repository that changes meanwhile cannot mix two versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from satchel.errors import RequestError
from satchel.formats.gguf.splits import NAME as PART
from satchel.formats.gguf.splits import PARTS_LIMIT
from satchel.store.names import HubName, check_digest, file_parts, folder_of, quant_of
from satchel.store.remote import Remote, RemoteModel, check_size, hub_endpoint, hub_token

if TYPE_CHECKING:
    from satchel.store.web import Web

DEFAULT_QUANT = "Q4_K_M"
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LISTED = 40  # names shown in an error
FILES_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class HubFile:
    path: str
    size: int
    sha256: str = ""


def resolve(name: HubName, web: Web, environ: Mapping[str, str]) -> RemoteModel:
    """The hub's files for the name. RequestError where there are none, or several models."""
    base, token = hub_endpoint(environ), hub_token(environ)
    found = web.json(f"{base}/api/models/{name.repo}?blobs=true", token=token)
    commit, licence, files = read_repository(found, name)
    chosen = choose(name, files)
    split = urlsplit(base)
    host = folder_of(split.hostname or "", split.port)
    remotes = tuple(
        Remote(
            f"{base}/{name.repo}/resolve/{commit}/{quote(file.path)}",
            f"{host}/{name.repo}/{file.path}",
            file.size,
            file.sha256,
            token,
        )
        for file in chosen
    )
    return RemoteModel(full_name(name, chosen[0].path), remotes, licence)


def full_name(name: HubName, path: str) -> str:
    """The name under which a file is stored: with its quantization, or with its path where the file's name
    has none.
    """
    if name.file or not quant_of(path):
        return str(HubName(name.repo, file=path))
    return str(HubName(name.repo, quant_of(path)))


def read_repository(raw: Any, name: HubName) -> tuple[str, str, list[HubFile]]:
    """(commit, licence, GGUF files) of the hub's response."""
    if not isinstance(raw, dict) or not isinstance(raw.get("siblings"), list):
        raise RequestError(f"{name}: expected a list of files from the hub, got something else")
    commit, listed = raw.get("sha"), raw["siblings"]
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise RequestError(f"{name}: expected a commit from the hub, got {commit!r:.60}")
    if len(listed) > FILES_LIMIT:
        raise RequestError(f"{name}: expected at most {FILES_LIMIT} files, got {len(listed)}")
    card = raw.get("cardData")
    licence = card.get("license", "") if isinstance(card, dict) else ""
    if not isinstance(licence, str) or not licence.isprintable():
        licence = ""
    paths = [entry for entry in listed if isinstance(entry, dict) and _is_gguf(entry.get("rfilename"))]
    return commit, licence[:200], [_file(entry, name) for entry in paths]


def _is_gguf(path: object) -> bool:
    return isinstance(path, str) and path.lower().endswith(".gguf")


def _file(entry: dict[str, Any], name: HubName) -> HubFile:
    path = "/".join(file_parts(entry["rfilename"], entry["rfilename"]))
    large = entry.get("lfs")
    if not isinstance(large, dict):  # small files are in git itself, without a sha256
        return HubFile(path, check_size(entry.get("size"), f"{name}: {path}"))
    digest = large.get("sha256", large.get("oid"))
    digest = check_digest(f"sha256:{digest}" if isinstance(digest, str) else digest, f"{name}: {path}")
    return HubFile(path, check_size(large.get("size"), f"{name}: {path}"), digest)


def choose(name: HubName, files: Sequence[HubFile]) -> list[HubFile]:
    """The file of the model, or all parts of its split set. RequestError lists the choices where it is
    unclear.
    """
    sets: dict[str, list[HubFile]] = {}
    for file in files:
        sets.setdefault(set_name(file.path), []).append(file)
    # Multimodal projectors and importance matrices are GGUF files, but not language models.
    models = {key: found for key, found in sets.items() if not is_projector(key)}
    if name.file:
        models = {key: found for key, found in sets.items() if name.file in (key, *(f.path for f in found))}
    elif name.quant:
        models = {key: found for key, found in models.items() if quant_of(key) == name.quant}
    elif len(models) > 1:
        usual = {key: found for key, found in models.items() if quant_of(key) == DEFAULT_QUANT}
        models = usual or models
    if len(models) != 1:
        raise _ambiguous(name, models or {k: f for k, f in sets.items() if not is_projector(k)}, not models)
    return _whole_set(name, next(iter(models.values())))


def set_name(path: str) -> str:
    """The path without the part's number: the same for all parts of a split set."""
    match = PART.fullmatch(path)
    return f"{match['prefix']}-of-{match['count']}.gguf" if match else path


def is_projector(path: str) -> bool:
    return path.rsplit("/", 1)[-1].lower().startswith(("mmproj", "imatrix"))


def _whole_set(name: HubName, files: list[HubFile]) -> list[HubFile]:
    """The parts in order. RequestError where one is missing."""
    match = PART.fullmatch(files[0].path)
    if match is None:
        return files
    count = int(match["count"])
    if not 1 <= count <= PARTS_LIMIT:
        raise RequestError(f"{name}: expected 1 to {PARTS_LIMIT} parts, got {files[0].path!a}")
    by_path = {file.path: file for file in files}
    wanted = [f"{match['prefix']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    missing = [path for path in wanted if path not in by_path]
    if missing:
        raise RequestError(f"{name}: expected {count} parts, got {len(files)}: {missing[0]!a} is missing")
    return [by_path[path] for path in wanted]


def _ambiguous(name: HubName, models: Mapping[str, list[HubFile]], none: bool) -> RequestError:
    if not models:
        return RequestError(f"{name}: expected a repository with GGUF files, got one without")
    shown = [quant_of(key) or key for key in sorted(models)]
    if len(set(shown)) < len(shown):
        shown = sorted(models)
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    there = f"there is {', '.join(shown[:LISTED])}{more}"
    if none:
        return RequestError(f"{name}: no such file; {there}")
    how = f"hf:{name.repo}:QUANT or hf:{name.repo}/FILE"
    return RequestError(f"{name}: expected one model, got {len(models)}; name one as {how}: {there}")
