"""Models outside of the store, used in place: folders, the caches of Hugging Face, Ollama and LM Studio, and
the bundled model.

This module only reads. A place that is missing, unreadable or incomplete yields fewer models and is not an
error. The GGUF reader checks a file when it is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from satchel.errors import SatchelError
from satchel.formats.gguf.splits import NAME, part_path
from satchel.store.bundled import BUNDLED, in_bundle
from satchel.store.hub import full_name, is_projector
from satchel.store.names import OLLAMA_SPACE, PART, HubName, OllamaName
from satchel.store.registry import MANIFEST_LIMIT, model_layer, read_manifest
from satchel.store.remote import hub_home
from satchel.store.stored import StoredModel

Environ = Mapping[str, str]
DEPTH = 6  # levels of folders that are searched for models
SYSTEM_OLLAMA = Path("/usr/share/ollama/.ollama/models")  # of Ollama's systemd service
HEX = frozenset("0123456789abcdef")


def places(environ: Environ) -> list[tuple[str, Callable[[], Iterator[StoredModel]]]]:
    """(place, function that lists its models), in search order."""
    return [
        ("folder", lambda: _each(named_folders(environ), in_folder)),
        ("huggingface", lambda: in_hub_cache(hub_cache(environ))),
        ("ollama", lambda: _each(ollama_folders(environ), in_ollama)),
        ("lmstudio", lambda: _each(lmstudio_folders(), in_lmstudio)),
        (BUNDLED, in_bundle),
    ]


def named_folders(environ: Environ) -> list[Path]:
    """The folders of SATCHEL_FOLDERS, separated as in PATH."""
    return [Path(f).expanduser() for f in environ.get("SATCHEL_FOLDERS", "").split(os.pathsep) if f]


def hub_cache(environ: Environ) -> Path:
    named = environ.get("HF_HUB_CACHE", "")
    return Path(named).expanduser() if named else hub_home(environ) / "hub"


def ollama_folders(environ: Environ) -> list[Path]:
    named = environ.get("OLLAMA_MODELS", "")
    return [Path(named).expanduser()] if named else [Path.home() / ".ollama" / "models", SYSTEM_OLLAMA]


def lmstudio_folders() -> list[Path]:
    return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]


def in_folder(folder: Path) -> Iterator[StoredModel]:
    """The models in a folder, named by file without the suffix."""
    for parts in model_files(folder):
        match = NAME.fullmatch(parts[0].name)
        yield from _entry(match["prefix"] if match else parts[0].stem, "folder", parts)


def in_hub_cache(cache: Path) -> Iterator[StoredModel]:
    """The models in a Hugging Face cache: of each repository, the snapshot of `main`, else of
    its first ref.
    """
    for repo in _subfolders(cache):
        pieces = repo.name.split("--")
        if len(pieces) != 3 or pieces[0] != "models" or not all(PART.fullmatch(p) for p in pieces):
            continue
        name = HubName(f"{pieces[1]}/{pieces[2]}")
        snapshot = _snapshot(repo)
        for parts in model_files(snapshot) if snapshot is not None else ():
            blob = parts[0].resolve().name
            digest = blob if len(blob) == 64 and HEX.issuperset(blob) else ""
            path = parts[0].relative_to(snapshot or repo).as_posix()
            yield from _entry(full_name(name, path), "huggingface", parts, digest)


def in_ollama(folder: Path) -> Iterator[StoredModel]:
    """The models of an Ollama store, by its manifests."""
    root = folder / "manifests"
    for path in _walk(root, 5):
        pieces = path.relative_to(root).parts
        if len(pieces) != 4 or not all(PART.fullmatch(piece) for piece in pieces):
            continue
        host, space, model, tag = pieces
        name = str(OllamaName(model, tag, space or OLLAMA_SPACE, host))
        with suppress(OSError, ValueError, RecursionError, SatchelError):
            if path.stat().st_size > MANIFEST_LIMIT:
                continue
            layer = model_layer(read_manifest(json.loads(path.read_bytes()), name), name)
            yield from _entry(name, "ollama", (folder / "blobs" / f"sha256-{layer.sha256}",), layer.sha256)


def in_lmstudio(folder: Path) -> Iterator[StoredModel]:
    """The models of LM Studio, stored as PUBLISHER/REPO/FILE.gguf."""
    for parts in model_files(folder):
        pieces = parts[0].relative_to(folder).parts
        if len(pieces) < 3 or not all(PART.fullmatch(piece) for piece in pieces):
            continue
        name = full_name(HubName("/".join(pieces[:2])), "/".join(pieces[2:]))
        yield from _entry(name.replace("hf:", "lmstudio:", 1), "lmstudio", parts)


def model_files(folder: Path) -> Iterator[tuple[Path, ...]]:
    """The models below a folder, sorted by path: a file, or all parts of a complete split set."""
    for path in _walk(folder, DEPTH):
        if not path.name.lower().endswith(".gguf") or is_projector(path.name):
            continue
        match = NAME.fullmatch(path.name)
        if match is None:
            yield (path,)
        elif int(match["number"]) == 1:
            count = int(match["count"])
            parts = tuple(part_path(path.with_name(match["prefix"]), i, count) for i in range(count))
            if all(part.is_file() for part in parts):
                yield parts


def _snapshot(repo: Path) -> Path | None:
    refs = sorted(_walk(repo / "refs", 3), key=lambda path: (path.name != "main", path))
    for ref in refs:
        with suppress(OSError, ValueError):
            commit = ref.read_text(encoding="ascii").strip()
            if PART.fullmatch(commit) and (repo / "snapshots" / commit).is_dir():
                return repo / "snapshots" / commit
    return None


def _entry(name: str, place: str, paths: tuple[Path, ...], digest: str = "") -> Iterator[StoredModel]:
    """Yields the entry of a model if all its files exist."""
    try:
        infos = [path.stat() for path in paths]
    except OSError:
        return
    size = sum(info.st_size for info in infos)
    yield StoredModel(name, place, paths, size, max(info.st_mtime for info in infos), digest)


def _each(folders: Iterable[Path], find: Callable[[Path], Iterator[StoredModel]]) -> Iterator[StoredModel]:
    for folder in folders:
        yield from find(folder)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files below a folder, sorted; includes links to files, skips hidden files and links to folders."""
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth > 1:
                yield from _walk(Path(entry.path), depth - 1)
        elif entry.is_file():
            yield Path(entry.path)


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []
