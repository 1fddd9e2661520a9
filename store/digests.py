"""Expected digests of a model's files, from the store's lock file or from a manifest."""

from __future__ import annotations

from pathlib import Path

from satchel.errors import RequestError

STORE = "store"


def digests_of(path: Path, wanted: str) -> tuple[tuple[str, str, str], ...]:
    """(algorithm, digest, name) tuples for Options.digests. wanted: "store", or the path of a manifest.

    RequestError where the store has no digest of the file, or the manifest cannot be read.
    """
    from satchel.formats.gguf.digest import read_manifest

    if wanted != STORE:
        return tuple((e.algorithm, e.digest, e.name) for e in read_manifest(Path(wanted), "sha256"))
    from satchel.store import Store

    store = Store(offline=True)
    locked = store.locked(store.entry(str(path)))
    pinned = [file for file in locked.files if file.sha256] if locked else []
    if not pinned:
        raise RequestError(
            f"{path}: the store has no digest of it: write one with `satchel hash {path} > FILE` while it is"
            " known to be whole, and give --verify-weights FILE"
        )
    return tuple(("sha256", file.sha256, Path(file.path).name) for file in pinned)
