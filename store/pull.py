"""Pulls a model: downloads its files, hashes them, checks them with the GGUF reader, and pins them in the
lock file.

Files are downloaded to the folder `.incoming` beside their target. Invariant: they are moved to their targets
only when all files of the model are complete and the reader accepts them; until then the old files stay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.store import hub, registry
from satchel.store.download import Fetched, discard, download, journal_of, probe
from satchel.store.finding import matching
from satchel.store.lock import Locked, LockFile, Pinned, guard
from satchel.store.names import OLLAMA_HOST, HubName, LocalName, Name, OllamaName, WebName
from satchel.store.places import places
from satchel.store.policy import FREE, Policy
from satchel.store.remote import (
    INCOMING,
    Pace,
    Remote,
    RemoteModel,
    from_web,
    hub_endpoint,
    registry_endpoint,
)
from satchel.store.stored import Watch
from satchel.store.web import Web

TEMPLATE, LICENCE = "tokenizer.chat_template", "general.license"


class Pull:
    """One pull into the store at `root`."""

    def __init__(
        self, root: Path, lock: LockFile, environ: Mapping[str, str], pace: Pace, policy: Policy = FREE
    ) -> None:
        self.root, self._lock, self._environ, self._pace, self._policy = root, lock, environ, pace, policy

    def run(self, name: Name, watch: Watch | None, update: bool) -> Path:
        """Pulls the model and returns its file. RequestError where that fails; the old files stay."""
        policy, environ = self._policy, self._environ
        policy.check(name, environ)
        named = [named_server(name, environ)] if policy.free else policy.trusted(environ)
        trusted = [*trusted_hosts(environ), *named]
        with closing(Web(trusted, timeout=self._pace.patience, silent=not policy.free)) as web:
            wanted = resolve(name, web, self._environ)
            try:
                with guard(self.root, wanted.files[0].file):
                    return self._have(wanted, web, update) or self._get(wanted, web, watch, update)
            except OSError as error:
                text = f"{error.filename or self.root}: {error.strerror or error}"
                raise RequestError(f"{wanted.name}: can't be stored: {text}") from None

    def _have(self, wanted: RemoteModel, web: Web, update: bool) -> Path | None:
        """The file of a model that is already stored and current. RequestError where the server's file
        differs and `update` is off.
        """
        locked = self._lock.read().get(wanted.name)
        if locked is None:
            return self._in_place(wanted)
        if not self._same(locked, wanted, web):
            if update:
                return None
            raise _differs(wanted.name)
        try:
            return self._lock.check(locked)[0]
        except RequestError:  # the file is missing or was changed locally: download it again
            return None

    def _in_place(self, wanted: RemoteModel) -> Path | None:
        """The file of the same model in another program's store."""
        first = wanted.files[0].sha256
        size = sum(file.size or 0 for file in wanted.files)
        for _, find in places(self._environ) if first else ():
            same = [entry for entry in matching(wanted.name, list(find())) if entry.sha256 == first]
            if same and same[0].size == size:
                return same[0].path
        return None

    def _same(self, locked: Locked, wanted: RemoteModel, web: Web) -> bool:
        """Whether the server's files are the pinned ones, by digest, or by size and ETag without a digest."""
        if len(locked.files) != len(wanted.files):
            return False
        for file, remote in zip(locked.files, wanted.files, strict=True):
            if remote.sha256 and remote.sha256 != file.sha256:
                return False
            if not remote.sha256:
                now = probe(web, remote, self._pace)[0]
                if (now.size, now.etag) != (file.size, file.etag):
                    return False
        return True

    def _get(self, wanted: RemoteModel, web: Web, watch: Watch | None, update: bool) -> Path:
        locked = self._lock.read().get(wanted.name)
        self._policy.admit(wanted.name, sum(remote.size or 0 for remote in wanted.files))
        remotes = [self._expected(remote, locked, update) for remote in wanted.files]
        targets = [self.root / remote.file for remote in remotes]
        spares = [target.parent / INCOMING / target.name for target in targets]
        found = []
        for remote, spare in zip(remotes, spares, strict=True):
            spare.parent.mkdir(parents=True, exist_ok=True)
            found.append(download(web, remote, spare, self._pace, watch))
        template, licence = self._read(wanted, spares)
        model = Locked(wanted.name, _pinned(wanted, found), wanted.licence or licence, template)
        for spare, target in reversed(list(zip(spares, targets, strict=True))):
            _keep(spare, target)
        self._lock.put(model)
        self._lock.stamp(model)
        if locked is not None:
            self._forget(locked)
        return targets[0]

    def _expected(self, remote: Remote, locked: Locked | None, update: bool) -> Remote:
        """The remote file with the pinned digest where the server gives none."""
        pinned = {file.path: file.sha256 for file in locked.files} if locked and not update else {}
        return remote if remote.sha256 else replace(remote, sha256=pinned.get(remote.file, ""))

    def _read(self, wanted: RemoteModel, spares: Sequence[Path]) -> tuple[str, str]:
        """(sha256 of the chat template, licence) of the downloaded files. ModelError where the reader refuses
        them.
        """
        try:
            with open_gguf(spares[0]) as gguf:
                if len(gguf.parts) != len(spares):
                    raise ModelError(f"{wanted.name}: expected {len(spares)} parts, got {len(gguf.parts)}")
                template = gguf.metadata.get(TEMPLATE)
                licence = gguf.metadata.get(LICENCE)
        except ModelError:
            for spare in spares:
                discard(spare)
            raise
        known = isinstance(licence, str) and licence.isprintable()
        digest = sha256(template.encode()).hexdigest() if isinstance(template, str) else ""
        return digest, str(licence)[:200] if known else ""

    def _forget(self, old: Locked) -> None:
        """Removes files of the model's old version that no other model uses."""
        kept = {file.path for model in self._lock.read().values() for file in model.files}
        for file in old.files:
            if file.own and file.path not in kept:
                self._lock.location(file).unlink(missing_ok=True)


def resolve(name: Name, web: Web, environ: Mapping[str, str]) -> RemoteModel:
    """Asks the name's server for the model's files."""
    if isinstance(name, HubName):
        return hub.resolve(name, web, environ)
    if isinstance(name, OllamaName):
        return registry.resolve(name, web, environ)
    if isinstance(name, WebName):
        return from_web(name)
    raise local_name(name)


def named_server(name: Name, environ: Mapping[str, str]) -> str:
    """The URL of the server that the user named, which may therefore be in a private network."""
    if isinstance(name, HubName):
        return hub_endpoint(environ)
    if isinstance(name, OllamaName):
        return registry_endpoint(environ) if name.host == OLLAMA_HOST else f"https://{name.host}"
    if isinstance(name, WebName):
        return name.url
    raise local_name(name)


def local_name(name: LocalName) -> RequestError:
    wanted = "hf:USER/REPO[:QUANT], ollama:NAME[:TAG] or https://HOST/FILE.gguf"
    return RequestError(f"{name.text[:120]!a}: expected {wanted} to pull")


def trusted_hosts(environ: Mapping[str, str]) -> list[str]:
    """The URLs of SATCHEL_TRUSTED_HOSTS, a comma-separated list of HOST (https), HOST:PORT or URL."""
    listed = environ.get("SATCHEL_TRUSTED_HOSTS", "").split(",")
    return [host if "://" in host else f"https://{host}" for host in map(str.strip, listed) if host]


def _pinned(wanted: RemoteModel, found: Sequence[Fetched]) -> tuple[Pinned, ...]:
    pairs = zip(wanted.files, found, strict=True)
    return tuple(Pinned(r.file, f.size, f.sha256, r.url, "" if r.sha256 else f.etag) for r, f in pairs)


def _keep(spare: Path, target: Path) -> None:
    """Renames a finished file to its target. A process that has the old file open keeps reading it."""
    with spare.open("rb") as file:
        os.fsync(file.fileno())
    spare.replace(target)
    journal_of(spare).unlink(missing_ok=True)
    with suppress(OSError):
        spare.parent.rmdir()


def _differs(name: str) -> RequestError:
    return RequestError(
        f"{name}: the server's file is another than the one that models.lock pins; the old one stays, "
        "`satchel pull --update` takes the new one"
    )
