"""models.lock pins each model when it is pulled: URL, size, sha256, licence, and the chat template's hash.

Invariant: a file that the store opens has the digest in the lock file. It is hashed again whenever its size,
times or inode differ from those of the last hashing. Those stamps are in a file beside the lock file, because
they are valid on this machine only.
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
    """A pinned file."""

    path: str  # relative to the store, or absolute for a file outside of it, which is never written
    size: int
    sha256: str
    url: str = ""
    etag: str = ""  # identifies the version where the server gives no digest

    @property
    def own(self) -> bool:
        return not Path(self.path).is_absolute()


@dataclass(frozen=True, slots=True)
class Locked:
    """A pinned model."""

    name: str
    files: tuple[Pinned, ...]  # of a split set in order
    licence: str = ""
    template: str = ""  # sha256 of the chat template; "" for none

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class LockFile:
    """The lock file of a store. It is read again for each call, to see pulls of other processes."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "models.lock"
        self._stamps = root / ".stamps.json"

    def read(self) -> dict[str, Locked]:
        """The models by name. RequestError where the lock file is invalid."""
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
        """Verifies the model's files and returns their paths. RequestError where one differs from its pin."""
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
        """Records that the files were just hashed and match their pins."""
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
        """Parses a model's table, which is untrusted: a user or another machine may have written it."""
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
        """Writes the stamps; errors are ignored. Without stamps, as in a read-only store, files are hashed
        again.
        """
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
    """A lock on `what` across processes and threads. Yields True with the lock held; with wait=False, yields
    False where another holds it. A lock of a dead process is free.
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
        for _ in range(2):  # the second call has an effect only where the file system failed to unlock
            with suppress(OSError):
                lock.release(force=True)
