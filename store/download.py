"""Downloads one file: byte ranges in parallel, resumable by a journal, hashed during the download.

Invariant: `download` returns only when the file at `target` has the expected size and digest. An interrupted
download stays there with its journal and is resumed by the next call, unless the server's file changed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from satchel.errors import ModelError, RequestError
from satchel.errors.threads import begin
from satchel.formats.gguf.atomic import write_all
from satchel.formats.gguf.magic import explain_magic
from satchel.store.journal import LARGEST, Identity, Journal
from satchel.store.remote import Pace, Remote
from satchel.store.stored import Progress, Watch
from satchel.store.web import HttpResponse, Interrupted, Web, check_status

MAGIC = b"GGUF"
CONTENT_RANGE = re.compile(r"bytes (\d{1,16})-(\d{1,16})/(\d{1,16})")
RESTARTS = 2  # times that a file may change on the server during a download


class Changed(Exception):
    """The server's file changed since the download began."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A downloaded file."""

    size: int
    sha256: str
    etag: str  # the server's ETag of this version; "" without one


def journal_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.journal")


def download(web: Web, remote: Remote, target: Path, pace: Pace, watch: Watch | None = None) -> Fetched:
    """Downloads the file to `target`, resuming what is there. RequestError where that fails."""
    reason = Changed()
    for _ in range(RESTARTS + 1):
        try:
            return _once(web, remote, target, pace, watch)
        except Changed as changed:
            discard(target)
            reason = changed
    raise RequestError(f"{remote.file}: {reason}, and again after {RESTARTS} restarts; try later")


def discard(target: Path) -> None:
    """Removes an unfinished file and its journal."""
    for path in (journal_of(target), target):
        path.unlink(missing_ok=True)


def _once(web: Web, remote: Remote, target: Path, pace: Pace, watch: Watch | None) -> Fetched:
    identity, ranges = probe(web, remote, pace)
    if not ranges:
        discard(target)  # without range requests the download cannot be resumed
    journal = Journal(journal_of(target), identity)
    resumed = journal.spans.total > 0
    try:
        if not target.exists():
            if resumed:
                raise Changed("the file's part went away")
            target.touch()
        _check_room(remote, target, identity.size - journal.spans.total)
        transfer = DownloadThreads(web, remote, target, pace, journal, identity, ranges)
        found = transfer.run(watch)
    finally:
        journal.close()
    wanted = remote.sha256
    if wanted and found.sha256 != wanted:
        discard(target)
        if resumed:
            raise Changed(f"sha256: expected {wanted}, got {found.sha256}")
        raise RequestError(
            f"{remote.file}: sha256: expected {wanted}, got {found.sha256}; nothing was kept of it"
        )
    return found


def probe(web: Web, remote: Remote, pace: Pace) -> tuple[Identity, bool]:
    """The identity of the server's current file, and whether the server supports range requests."""
    attempt = 0
    while True:
        try:
            with web.open(remote.url, headers={"range": "bytes=0-0"}, token=remote.token) as answer:
                if answer.status == 416:
                    raise RequestError(f"{remote.file}: expected a GGUF file, got an empty file")
                check_status(answer)
                return _identify(remote, answer), answer.status == 206
        except Interrupted as error:
            attempt += 1
            if attempt >= pace.tries:
                raise _given_up(remote, error, 0) from None
            time.sleep(_wait(remote, pace, error, attempt, 0))


def _identify(remote: Remote, answer: HttpResponse) -> Identity:
    if answer.status == 206:
        size = _content_range(remote, answer)[2]
    else:
        length = answer.headers.get("content-length", "")
        if not length.isdecimal():
            raise RequestError(f"{remote.file}: expected the server to tell the file's size, got none")
        size = int(length)
    if remote.size is not None and size != remote.size:
        raise RequestError(f"{remote.file}: size: expected {remote.size} bytes, the server has {size}")
    if not 0 < size <= LARGEST:
        raise RequestError(f"{remote.file}: size: expected 1 to {LARGEST} bytes, got {size}")
    etag = answer.headers.get("etag", "") or answer.headers.get("last-modified", "")
    return Identity(remote.url, size, etag, remote.sha256)


def _content_range(remote: Remote, answer: HttpResponse) -> tuple[int, int, int]:
    """(first byte, end, file size) of a Content-Range header. RequestError where it is missing or invalid."""
    said = answer.headers.get("content-range", "")
    found = CONTENT_RANGE.fullmatch(said)
    if found is None:
        raise RequestError(f"{remote.file}: expected Content-Range: bytes A-B/SIZE, got {said[:60]!a}")
    first, last, size = map(int, found.groups())
    return first, last + 1, size


def _check_room(remote: Remote, target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise RequestError(
            f"{remote.file}: {needed} bytes are to come, {free} are free in {target.parent}; make room, or "
            "set SATCHEL_MODELS to a folder on a larger disk"
        )


def _wait(remote: Remote, pace: Pace, error: Interrupted, failed: int, done: int) -> float:
    """Seconds until the next try. RequestError where the server asks for more than `pace.longest`."""
    if error.after > pace.longest:
        raise _given_up(remote, f"{error}, and asks for {error.after:.0f} s until the next try", done)
    return max(error.after, pace.pause * float(2 ** max(0, failed - 1)))


def _given_up(remote: Remote, reason: object, done: int) -> RequestError:
    kept = f"; {done} bytes are kept, pull again to go on" if done else "; try again later"
    return RequestError(f"{remote.file}: {reason}{kept}")


class DownloadThreads:
    """The worker threads of one download. They share `_lock`, and stop when one fails or the
    caller leaves.
    """

    def __init__(
        self,
        web: Web,
        remote: Remote,
        target: Path,
        pace: Pace,
        journal: Journal,
        identity: Identity,
        ranges: bool,
    ) -> None:
        self._web, self._remote, self._target, self._pace = web, remote, target, pace
        self._journal, self._identity, self._ranges = journal, identity, ranges
        piece = pace.piece if ranges else identity.size
        self._pieces = deque(journal.spans.gaps(identity.size, piece))
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._done, self._closed = journal.spans.total, False

    def run(self, watch: Watch | None) -> Fetched:
        """Downloads the missing ranges. Workers write out of order; this thread hashes the
        contiguous front.
        """
        count = min(self._pace.workers if self._ranges else 1, len(self._pieces))
        # Daemon threads: a worker that waits for a silent server must not block the program's exit.
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        try:
            for worker in workers:
                begin(worker)
            return Fetched(self._identity.size, self._hash(watch), self._identity.etag)
        finally:
            self._stop.set()
            for worker in workers:
                if worker.ident is not None:
                    worker.join(2.0)
            with self._lock:
                self._closed = True  # a worker that is still waiting adds nothing to the journal any more

    def _hash(self, watch: Watch | None) -> str:
        digest, hashed, size = hashlib.sha256(), 0, self._identity.size
        # Unbuffered: bytes after the front are not written yet, so they must not be read ahead.
        with self._target.open("rb", buffering=0) as file:
            while True:
                with self._lock:
                    error, front, done = self._error, self._journal.spans.front, self._done
                    self._news.clear()
                if error is not None:
                    raise error
                if hashed < front:
                    block = file.read(min(self._pace.block, front - hashed))
                    if not block:
                        raise Changed("the file's part went away")
                    if not hashed:
                        self._check_magic(block)
                    digest.update(block)
                    hashed += len(block)
                if watch is not None:
                    watch(Progress(self._remote.file, done, size, self._remote.sha256))
                if hashed == size:
                    return digest.hexdigest()
                if hashed == front:
                    self._news.wait(0.5)

    def _check_magic(self, head: bytes) -> None:
        """Raises ModelError for a file that does not begin as GGUF, such as a web page."""
        if not head.startswith(MAGIC):
            discard(self._target)
            raise ModelError(f"{self._remote.file}: expected a GGUF file, got {explain_magic(head[:512])}")

    def _work(self) -> None:
        try:
            with self._target.open("r+b", buffering=0) as file:
                while not self._stop.is_set():
                    with self._lock:
                        if not self._pieces:
                            return
                        piece = DownloadRange(*self._pieces.popleft())
                    self._fetch(file, piece)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._stop.set()
            self._news.set()

    def _fetch(self, file: IO[bytes], piece: DownloadRange) -> None:
        """Downloads one range, with a new connection after each failure."""
        failed = 0
        while piece.at < piece.end and not self._stop.is_set():
            before = piece.at
            try:
                self._receive(file, piece)
            except Interrupted as error:
                if not self._ranges:
                    raise _given_up(self._remote, error, 0) from None
                failed = 0 if piece.at - before >= self._pace.block else failed + 1
                if failed >= self._pace.tries:
                    raise _given_up(self._remote, error, self._done) from None
                self._stop.wait(_wait(self._remote, self._pace, error, failed, self._done))

    def _receive(self, file: IO[bytes], piece: DownloadRange) -> None:
        """Receives bytes of a range over one connection. Interrupted where it ends early."""
        headers = {"range": f"bytes={piece.at}-{piece.end - 1}"} if self._ranges else {}
        drip = Drip(self._pace)
        with self._web.open(self._remote.url, headers=headers, token=self._remote.token) as answer:
            self._check_answer(answer, piece)
            file.seek(piece.at)
            noted = piece.at
            try:
                for data in answer.body:
                    if self._stop.is_set():
                        return
                    if piece.at + len(data) > piece.end:
                        raise Interrupted(f"more bytes came than the {piece.end - noted} that were asked for")
                    write_all(file, data)
                    piece.at += len(data)
                    if piece.at - noted >= self._pace.block:
                        noted = self._note(noted, piece.at)
                    drip.check(len(data))
            finally:
                self._note(noted, piece.at)
        if piece.at < piece.end:
            raise Interrupted(f"the server ended at byte {piece.at} of {piece.end}")

    def _check_answer(self, answer: HttpResponse, piece: DownloadRange) -> None:
        if answer.status == 416:
            raise Changed("the file on the server became shorter")
        check_status(answer)
        etag = answer.headers.get("etag", "") or answer.headers.get("last-modified", "")
        if etag != self._identity.etag:
            raise Changed(f"ETag: expected {self._identity.etag[:80]!a}, got {etag[:80]!a}")
        if not self._ranges:
            return
        if answer.status != 206:
            raise Interrupted(f"expected a part of the file (206), the server says {answer.status}")
        start, _, size = _content_range(self._remote, answer)
        if size != self._identity.size:
            raise Changed(f"size: expected {self._identity.size} bytes, got {size}")
        if start != piece.at:
            raise Interrupted(f"expected bytes from {piece.at}, the server sends those from {start}")

    def _note(self, start: int, end: int) -> int:
        """Adds written bytes to the journal. Returns `end`."""
        with self._lock:
            if start < end and not self._closed:
                self._journal.add(start, end)
                self._done += end - start
        self._news.set()
        return end


@dataclass(slots=True)
class DownloadRange:
    """The byte range of one worker. `at` advances as bytes arrive."""

    at: int
    end: int


class Drip:
    """Detects a connection below the minimum rate, even if each single read is within its timeout."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._since, self._bytes = pace, time.monotonic(), 0

    def check(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now - self._since < self._pace.patience:
            return
        if self._bytes < self._pace.least * (now - self._since):
            raise Interrupted(f"only {self._bytes} bytes came in {now - self._since:.0f} s")
        self._since, self._bytes = now, 0
