"""The store's interface: lists, finds, pulls, copies and removes models.

Invariants: a file under its own name is complete and was checked; an opened file has the digest in the lock
file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.errors import RequestError
from satchel.formats.gguf.splits import NAME, part_path
from satchel.store.finding import matching, nothing_found, the_one
from satchel.store.lock import Hashing, Locked, LockFile, Pinned, digest_of, guard, renamed
from satchel.store.meant import meant, pasted
from satchel.store.names import LocalName, parse, part
from satchel.store.places import places
from satchel.store.remote import INCOMING, Pace, is_offline
from satchel.store.stored import OWN, StoredModel, Watch

if TYPE_CHECKING:
    from satchel.store.policy import Policy


class Store:
    """The models of this machine by name. It is cheap to create, keeps no file open, and is thread-safe.

    root: the folder of its files; default: $SATCHEL_MODELS or the user's data folder.
    offline: never open a connection; default: whether SATCHEL_OFFLINE or HF_HUB_OFFLINE is set.
    environ: the environment variables to read settings from.
    pace: parameters of downloads.
    policy: allowed servers and quota of pulls; default: those of a local user.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        offline: bool | None = None,
        environ: Mapping[str, str] = os.environ,
        pace: Pace | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.root = (root or default_root(environ)).absolute()
        self.offline = is_offline(environ) if offline is None else offline or is_offline(environ)
        self.environ, self._pace, self._policy = environ, pace or Pace(), policy
        self._lock = LockFile(self.root)

    def list(self) -> list[StoredModel]:
        """All models by name: the store's own first, then those of other places."""
        return [entry for place in self._places() for entry in sorted(place, key=lambda e: e.name)]

    def entry(self, name: str) -> StoredModel:
        """The model of a name, or the file of a path. RequestError where there is none, or several."""
        path, there = Path(name), _is_there(name)
        if there and not path.is_dir():
            return self._of_path(path)
        entry = self._named(name)
        if entry is not None:
            return entry
        if there:
            return self._of_path(path)
        raise nothing_found(name, self.list())

    def has(self, name: str) -> bool:
        """Whether a model of this machine has the name. RequestError where several have it."""
        return self._named(name) is not None

    def find(self, name: str, hashing: Hashing | None = None) -> Path:
        """The file to open for a name or path: of a split set, its first part.

        RequestError where no model has the name, or a file differs from its pin in models.lock. A file that
        was modified since the last check is hashed first. hashing: called with the progress of that.
        """
        entry = self.entry(name)
        if entry.place == OWN:
            return self._lock.check(self._lock.read()[entry.name], hashing)[0]
        return entry.path

    def pull(self, name: str, progress: Watch | None = None, *, update: bool = False) -> Path:
        """Pulls the model unless it is stored, and returns its file. An interrupted pull is resumed. name: as
        users write it, see meant.py.

        update: replace the stored file where the server's differs; otherwise a difference is a RequestError
        and the old file stays. progress: see Watch.
        """
        from satchel.store.policy import FREE
        from satchel.store.pull import Pull

        name = pasted(name)
        local = isinstance(parse(name), LocalName)
        found = self._named(name) if self.offline or local else None
        if found is not None:
            return self.find(found.name)
        if self.offline:
            raise RequestError(f"{name}: offline, and not in the store; pull it without --offline")
        return Pull(self.root, self._lock, self.environ, self._pace, self._policy or FREE).run(
            meant(name), progress, update
        )

    def remove(self, name: str) -> StoredModel:
        """Removes a name, and its files unless another name uses them. RequestError for a model in another
        program's folder.
        """
        entry = self._own(name, "removed")
        with guard(self.root, self._lock.read()[entry.name].files[0].path):
            models = self._lock.read()
            gone = models.pop(entry.name)
            self._lock.drop(entry.name)
            kept = {file.path for model in models.values() for file in model.files}
            for file in gone.files:
                if file.own and file.path not in kept:
                    path = self._lock.location(file)
                    path.unlink(missing_ok=True)
                    self._prune(path.parent)
        return entry

    def clean(self) -> int:
        """Removes the files of interrupted pulls, except pulls in progress. Returns the freed bytes."""
        from satchel.store.download import discard

        freed = 0
        for path in self._unfinished():
            match = NAME.fullmatch(path.name)
            first = part_path(path.with_name(match["prefix"]), 0, int(match["count"])) if match else path
            place = (path.parent.parent / first.name).relative_to(self.root).as_posix()
            with guard(self.root, place, wait=False) as free:
                if free:
                    freed += path.stat().st_blocks * 512
                    discard(path)
                    self._prune(path.parent)
        return freed

    def copy(self, source: str, name: str) -> StoredModel:
        """Gives a model a second name, without copying its files."""
        part(name, name)
        models = self._lock.read()
        if name in models:
            raise RequestError(f"{name}: expected a new name, got that of a model; `satchel rm {name}` first")
        entry = self.entry(source)
        if entry.place == OWN:
            locked = renamed(models[entry.name], name)
        else:
            files = tuple(Pinned(str(p.absolute()), p.stat().st_size, digest_of(p)) for p in entry.paths)
            locked = Locked(name, files, entry.licence)
        self._lock.put(locked)
        self._lock.stamp(locked)
        return self._entry(locked)

    def add(self, name: str, path: Path) -> StoredModel:
        """Gives a name to a file in the store's folder, which belongs to the store from now on."""
        own = path.absolute().relative_to(self.root).as_posix()
        locked = Locked(part(name, name), (Pinned(own, path.stat().st_size, digest_of(path)),))
        self._lock.put(locked)
        self._lock.stamp(locked)
        return self._entry(locked)

    def pinned(self) -> Sequence[str]:
        """The names in models.lock that can be pulled."""
        return [name for name in self._lock.read() if not isinstance(parse(name), LocalName)]

    def locked(self, entry: StoredModel) -> Locked | None:
        """A model's entry in the lock file; None for a model outside of the store."""
        return self._lock.read().get(entry.name) if entry.place == OWN else None

    def _places(self) -> Iterator[Sequence[StoredModel]]:
        """The models of each place; a place is searched only when it is iterated."""
        yield [self._entry(model) for model in self._lock.read().values()]
        for _, find in places(self.environ):
            yield tuple(find())

    def _named(self, name: str) -> StoredModel | None:
        """The model of a name, from the first place that has one."""
        for place in self._places():
            found = matching(name, place)
            if found:
                return the_one(name, found)
        return None

    def _entry(self, model: Locked) -> StoredModel:
        paths = tuple(self._lock.location(file) for file in model.files)
        modified = max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)
        return StoredModel(model.name, OWN, paths, model.size, modified, model.files[0].sha256, model.licence)

    def _of_path(self, path: Path) -> StoredModel:
        """The entry of a file path; for a file of the store, its model's entry."""
        absolute = path.absolute()
        if absolute.is_relative_to(self.root):
            for model in self._lock.read().values():
                if absolute in map(self._lock.location, model.files):
                    return self._entry(model)
        info = path.stat()
        return StoredModel(str(path), "file", (path,), info.st_size, info.st_mtime)

    def _own(self, name: str, what: str) -> StoredModel:
        entry = self._named(name)
        if entry is None:
            if _is_there(name):
                raise RequestError(f"{name[:120]!a}: a path is not {what}; give a name of `satchel list`")
            raise nothing_found(name, self.list())
        if entry.place != OWN:
            where = f"lies in {entry.path.parent}, which is not the store's"
            raise RequestError(f"{entry.name}: {where}; it is not {what}")
        return entry

    def _unfinished(self) -> Iterator[Path]:
        for folder in sorted(self.root.rglob(INCOMING)):
            yield from sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf")

    def _prune(self, folder: Path) -> None:
        """Removes an empty folder of the store and its empty parents."""
        for empty in (folder, *folder.parents):
            if empty == self.root or not empty.is_relative_to(self.root):
                return
            try:
                empty.rmdir()
            except OSError:
                return


def default_root(environ: Mapping[str, str]) -> Path:
    """The default folder of the store."""
    from platformdirs import user_data_path

    named = environ.get("SATCHEL_MODELS", "")
    return Path(named).expanduser() if named else user_data_path("satchel", appauthor=False) / "models"


def _is_there(name: str) -> bool:
    """Whether the path exists; False for an invalid path."""
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):
        return False
