"""models.lock: what each model is, pinned when it is pulled: URL, size, sha256, licence, template's hash.

Invariant: a file that is opened by the store has the digest that the lock file says. It is hashed again
whenever its size, times or inode differ from those with which it was last hashed; those are kept beside the
lock file, for they are true on this machine alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from satchel.errors import RequestError
from satchel.formats.gguf.atomic import replace_files, write_all
from satchel.store.journal import LARGEST
from satchel.store.names import part

VERSION = 1
BLOCK = 1 << 22
HEAD = "# Made by `satchel pull`: what each model was when it was pulled. A file that differs is refused.\n\n"
HEX = frozenset("0123456789abcdef")
Hashing = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file: its path below the store, or an absolute one, which the store reads and never writes.

    etag: of a server that tells no digest, by which a new version is known.
    """

    path: str
    size: int
    sha256: str
    url: str = ""
    etag: str = ""

    @property
    def own(self) -> bool:
        return not Path(self.path).is_absolute()


@dataclass(frozen=True, slots=True)
class Locked:
    """A model: its name, its files in order. template: sha256 of the chat template, "" for none."""

    name: str
    files: tuple[Pinned, ...]
    licence: str = ""
    template: str = ""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class LockFile:
    """The lock file of a store's folder. Read anew each time, so that what others pull is seen."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "models.lock"
        self._stamps = root / ".stamps.json"

    def read(self) -> dict[str, Locked]:
        """The models by name. RequestError where the file is no lock file."""
        import tomllib

        try:
            raw = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._wrong(str(error)) from None
        if raw.get("version") != VERSION:
            raise self._wrong(f"version: expected {VERSION}, got {raw.get('version')!r:.40}")
        models = raw.get("model", [])
        if not isinstance(models, list):
            raise self._wrong("model: expected tables [[model]], got something else")
        found = [self._model(entry) for entry in models]
        return {model.name: model for model in found}

    def put(self, model: Locked) -> None:
        with self._changing() as models:
            models[model.name] = model

    def drop(self, name: str) -> None:
        with self._changing() as models:
            models.pop(name, None)

    def location(self, file: Pinned) -> Path:
        return self.root / file.path

    def check(self, model: Locked, hashing: Hashing | None = None) -> list[Path]:
        """The model's files, after each was found to be what was pinned. RequestError where one is not."""
        stamps = self._read_stamps()
        paths = [self.location(file) for file in model.files]
        fresh = False
        for file, path in zip(model.files, paths, strict=True):
            stamp = self._stamp(model, path)
            if stamps.get(file.path) == [*stamp, file.sha256]:
                continue
            if stamp[0] != file.size:
                raise self._changed(model, path, f"{file.size} bytes", f"{stamp[0]}")
            try:
                found = digest_of(path, hashing)
            except OSError as error:
                reason = error.strerror or error
                raise RequestError(f"{model.name}: {path}: can't be read: {reason}; check the disk") from None
            if found != file.sha256:
                raise self._changed(model, path, f"sha256 {file.sha256}", found)
            stamps[file.path], fresh = [*stamp, found], True
        if fresh:
            self._write_stamps(stamps)
        return paths

    def stamp(self, model: Locked) -> None:
        """Notes that the files were just hashed and found right."""
        stamps = self._read_stamps()
        for file in model.files:
            stamps[file.path] = [*self._stamp(model, self.location(file)), file.sha256]
        self._write_stamps(stamps)

    def _stamp(self, model: Locked, path: Path) -> list[int]:
        try:
            info = path.stat()
        except OSError:
            raise RequestError(
                f"{model.name}: {path} is gone; `satchel pull` gets it again, `satchel rm` forgets it"
            ) from None
        return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]

    def _changed(self, model: Locked, path: Path, wanted: str, got: str) -> RequestError:
        return RequestError(
            f"{model.name}: {path}: changed since it was pulled: models.lock says {wanted}, got {got}; "
            "pull it again, or `satchel rm` it"
        )

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Locked]]:
        with guard(self.root, self.path.name):
            models = self.read()
            yield models
            self._write(models)

    def _write(self, models: dict[str, Locked]) -> None:
        import tomli_w

        listed = [self._table(model) for _, model in sorted(models.items())]
        text = HEAD + tomli_w.dumps({"version": VERSION, "model": listed})
        replace_files([(self.path, lambda file: (file.write(text.encode()), None)[1])])

    def _table(self, model: Locked) -> dict[str, Any]:
        files = [{key: value for key, value in asdict(file).items() if value} for file in model.files]
        return {"name": model.name, "licence": model.licence, "template": model.template, "file": files}

    def _model(self, raw: Any) -> Locked:
        """A table that a hand or another machine may have written."""
        if not isinstance(raw, dict) or not isinstance(raw.get("file"), list) or not raw["file"]:
            raise self._wrong("model: expected a name and files, got something else")
        texts = [raw.get(key, "") for key in ("name", "licence", "template")]
        if not all(isinstance(text, str) and text.isprintable() for text in texts) or not texts[0]:
            raise self._wrong("model: expected name, licence and template as text, got something else")
        name, licence, template = texts
        return Locked(name, tuple(self._file(name, entry) for entry in raw["file"]), licence, template)

    def _file(self, name: str, raw: Any) -> Pinned:
        entry = raw if isinstance(raw, dict) else {}
        path, url, etag = texts = [entry.get(key, "") for key in ("path", "url", "etag")]
        size, digest = entry.get("size"), entry.get("sha256")
        if not all(isinstance(text, str) for text in texts) or not path:
            raise self._wrong(f"{name}: expected a file's path, url and etag as text, got something else")
        if type(size) is not int or not 0 < size <= LARGEST:
            raise self._wrong(f"{name}: size: expected 1 to {LARGEST} bytes, got {size!r:.40}")
        if not isinstance(digest, str) or len(digest) != 64 or not HEX.issuperset(digest):
            raise self._wrong(f"{name}: sha256: expected 64 hexadecimal digits, got {digest!r:.80}")
        if not Path(path).is_absolute():
            for piece in path.split("/"):
                part(piece, path)
        return Pinned(path, size, digest, url, etag)

    def _read_stamps(self) -> dict[str, list[int | str]]:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(self._stamps.read_bytes())
            if isinstance(found, dict):
                return found
        return {}

    def _write_stamps(self, stamps: dict[str, list[int | str]]) -> None:
        """Losing stamps costs a hash, never a right answer: a store that is read-only has none."""
        text = json.dumps(stamps).encode()
        with suppress(RequestError):
            replace_files([(self._stamps, lambda file: write_all(file, text))])

    def _wrong(self, reason: str) -> RequestError:
        return RequestError(f"{self.path}: {reason}; mend the file, or move it away and pull again")


def digest_of(path: Path, hashing: Hashing | None = None) -> str:
    """The sha256 of a file."""
    digest, done = sha256(), 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if hashing is not None:
                hashing(done, size)
    return digest.hexdigest()


def renamed(model: Locked, name: str) -> Locked:
    return replace(model, name=name)


@contextmanager
def guard(root: Path, what: str, *, wait: bool = True) -> Iterator[bool]:
    """One process and thread at a time works on `what`; the others wait, or with `wait` off are given False.

    A lock that a dead process left is free.
    """
    from filelock import FileLock, Timeout

    folder = root / ".locks"
    lock = FileLock(folder / f"{sha256(what.encode()).hexdigest()[:32]}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise RequestError(f"{root}: can't be written: {error.strerror or error}; check its place") from None
    try:
        yield True
    finally:
        for _ in range(2):  # the second does nothing, but where the file system failed to unlock
            with suppress(OSError):
                lock.release(force=True)
