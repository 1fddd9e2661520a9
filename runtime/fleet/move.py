"""Moves the keys and values of a prompt from the member that computes it to the one that answers, piece by
piece, each while the next is computed.

Invariant: a move decides how long an answer takes, never its tokens. What does not come, comes too late, is
damaged or another model's is computed where the answer goes on.

Blocks travel as saved states do (runtime/kv/saved.py), with a digest of each, the model's identity and the
form of the cache, which the receiving engine checks before its cache changes. Between worker processes of
this host they lie in shared memory, of which both get a descriptor; to and from another host they go over
its link, in authenticated frames.
"""

from __future__ import annotations

import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from satchel.errors import DeviceError, ModelError, RequestError, SatchelError
from satchel.formats.gguf import OpenFile
from satchel.runtime.fleet.member import Member
from satchel.runtime.fleet.pools import KVLink
from satchel.runtime.kv.memory_file import memory_file, read_all, write_all
from satchel.runtime.log import LOG
from satchel.runtime.worker.pending_call import call_of
from satchel.runtime.worker.process import PASSES
from satchel.runtime.worker.replay import LiveRequest

PIECE = 16 << 20  # bytes of keys and values that are moved at a time
SPARE = 1 << 20  # bytes of a piece besides: its tokens and digests
PATIENCE = 1.0  # seconds that the answer waits at least for what is not moved when its prompt is computed
MEMORY = 0.9  # weight of past measurements in the running mean
USUAL = 1e9  # bytes a second, before any move was measured
BLOCKS = Path("moved blocks")  # names them in errors


# How a move ends: all blocks have come; they were damaged or another model's; of another form of the cache;
# they took longer than computing them; a member was lost, the request ended, or the blocks were evicted.
WHOLE, DAMAGED, REFUSED, LATE, LEFT = "whole", "damaged", "refused", "late", "left"


class MoveFacts(NamedTuple):
    """The moves of a fleet so far. outcomes: moves by how they ended."""

    bytes: int
    seconds: float
    tokens: int
    outcomes: Mapping[str, int]


class MoveMeter:
    """Bytes and seconds of the moves of a fleet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = self._seconds = 0.0  # that fade
        self._facts = MoveFacts(0, 0.0, 0, dict.fromkeys((WHOLE, DAMAGED, REFUSED, LATE, LEFT), 0))

    @property
    def moves(self) -> int:
        return sum(self.facts().outcomes.values())

    @property
    def given_up(self) -> int:
        """Moves of which some blocks were computed again."""
        return self.moves - self.facts().outcomes[WHOLE]

    @property
    def tokens(self) -> int:
        return self.facts().tokens

    def facts(self) -> MoveFacts:
        with self._lock:
            return self._facts

    def learn(self, nbytes: int, tokens: int, seconds: float) -> None:
        """A piece has come."""
        with self._lock:
            self._bytes = MEMORY * self._bytes + nbytes
            self._seconds = MEMORY * self._seconds + seconds
            sent, spent, moved, outcomes = self._facts
            self._facts = MoveFacts(sent + nbytes, spent + seconds, moved + tokens, outcomes)

    def ended(self, how: str) -> None:
        """A move has ended."""
        with self._lock:
            outcomes = self._facts.outcomes
            self._facts = self._facts._replace(outcomes={**outcomes, how: outcomes[how] + 1})

    def link(self, token: float) -> KVLink:
        """How blocks go now. token: bytes of keys and values of a token."""
        with self._lock:
            rate = self._bytes / self._seconds if self._seconds > 0 else USUAL
        return KVLink(token, max(1.0, rate))


class Move:
    """The move of one prompt's blocks.

    lock: the fleet's. start: blocks that the target has already. over: called once nothing more is moved.
    """

    def __init__(
        self,
        live: LiveRequest,
        source: Member,
        target: Member,
        start: int,
        lock: AbstractContextManager[Any],
        meter: MoveMeter,
        over: Callable[[Move], None],
    ) -> None:
        self.live, self.source, self.target, self.start = live, source, target, start
        self.block = source.service.cache.block
        self.blocks = live.handle.seq.prompt // self.block
        self.done = False  # nothing more is moved
        self.handed = False  # the prompt is computed, and the answer waits
        self.until = 0.0  # monotonic time at which it waits no longer
        self._lock, self._meter, self._over = lock, meter, over
        self._began, self._computed, self._stopped = time.monotonic(), 0, False
        self._how = LEFT  # it ended, if not all blocks have come
        self._news = threading.Condition()

    # What the fleet tells

    def note(self, tokens: int) -> None:
        """So many tokens of the prompt are computed."""
        with self._news:
            self._computed = max(self._computed, min(self.blocks, tokens // self.block))
            self._news.notify()

    def hand_on(self) -> None:
        """The prompt is computed. The answer waits for the rest at most as long as computing it took."""
        self.note(self.blocks * self.block)
        now = time.monotonic()
        self.until, self.handed = now + max(PATIENCE, now - self._began), True

    def stop(self) -> None:
        """Nobody waits for the move any more."""
        with self._news:
            if self.handed and time.monotonic() > self.until:
                self._how = LATE
            self._stopped = True
            self._news.notify()

    # In a thread of its own

    def run(self) -> None:
        """Moves all blocks, or as many as can be moved."""
        at = self.start
        try:
            while at < self.blocks and (ready := self._wait(at)) > at:
                size = max(1, self.source.service.block_bytes)
                reached = self._piece(at, min(ready, at + max(1, PIECE // size)))
                if reached <= at:
                    break
                at = reached
        except (SatchelError, OSError) as error:
            LOG.warning(
                "blocks of %s, from member %s to %s: %d of %d were moved, the others are computed again: %s",
                self.live, self.source.name, self.target.name, at, self.blocks, error,
            )  # fmt: skip
        finally:
            self._meter.ended(WHOLE if at >= self.blocks else self._how)
            self._over(self)

    def _wait(self, at: int) -> int:
        """Waits until more than `at` blocks are computed; gives how many are, 0 where the move is stopped."""
        with self._news:
            while self._computed <= at and not self._stopped:
                self._news.wait()
            return 0 if self._stopped else self._computed

    def _piece(self, start: int, end: int) -> int:
        """Moves blocks `start` to `end`; gives up to which block the target has them all."""
        began, seq = time.monotonic(), self.live.handle.seq
        ids = seq.ids[: end * self.block]
        most = SPARE + 16 * len(ids) + 2 * (end - start) * self.source.service.block_bytes
        out, into = (PASSES and not member.service.host for member in (self.source, self.target))
        file = memory_file()
        try:
            given = OpenFile(BLOCKS, file) if out else None
            tokens, data = self._ask(self.source, most, "export_kv", ids, seq.salt, start, given)
            if not out:
                write_all(file, data.data)
            size = os.fstat(file).st_size
            taken: Any = OpenFile(BLOCKS, file) if into else b64encode(read_all(file).data).decode()
            found = self._taken(seq.salt, taken)
        finally:
            os.close(file)
        self._meter.learn(size, int(tokens) - start * self.block, time.monotonic() - began)
        return found // self.block

    def _taken(self, salt: str, given: Any) -> int:
        """Tokens that the target has with these blocks."""
        try:
            return int(self._ask(self.target, SPARE, "import_kv", salt, given))
        except (ModelError, RequestError) as error:
            self._how = DAMAGED if isinstance(error, ModelError) else REFUSED
            raise

    def _ask(self, member: Member, most: int, method: str, *args: Any) -> Any:
        """Calls a method at this member alone."""
        call = call_of(method, args, {}, (0, 0))
        call.most, call.tied = most, True
        with self._lock:
            self._check()
            if not member.usable:
                raise DeviceError(f"member {member.name} answers no more")
            member.service.adopt_call(call)
        try:
            return call.wait(self._check)
        except BaseException:
            with self._lock:
                member.service.forget(call)
            raise

    def _check(self) -> None:
        if self._stopped:
            raise DeviceError("the request has ended or goes on elsewhere")
        if self.handed and time.monotonic() > self.until:
            self._how = LATE
            raise DeviceError("they took longer than computing them")
