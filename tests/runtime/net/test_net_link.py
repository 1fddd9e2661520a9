"""Connections between hosts: who lacks the key, changes or repeats frames, is silent or slow gets nothing."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import net_hosts
import pytest
from waiting import SECONDS

from satchel.errors import RequestError
from satchel.runtime.net.key import make_key, read_key
from satchel.runtime.net.link import (
    DIGEST,
    MAGIC,
    MOST_DATA,
    MOST_HEAD,
    NONCE,
    SIZES,
    Link,
    LinkDeadlines,
    LinkError,
    WrongKey,
    accept,
    greet,
)

KEY = b"k" * 32
SHORT = LinkDeadlines(handshake=0.2, beat=0.05, missed=3, frame=0.2)
PATIENT = net_hosts.PATIENT
Pair = tuple[socket.socket, socket.socket]


def linked(
    pair: Pair, ours: bytes = KEY, theirs: bytes = KEY, wait: LinkDeadlines = PATIENT
) -> tuple[Link, Link]:
    """The client's and the server's side of a connection."""
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(accept, pair[1], KEY, PATIENT)
        return greet(pair[0], KEY, PATIENT), server.result()


def test_both_sides_send_objects_and_bytes() -> None:
    with net_hosts.sockets() as pair:
        client, server = linked(pair)
        client.send({"do": "write", "text": "ä"}, b"\0" * 100_000)
        assert server.receive() == ({"do": "write", "text": "ä"}, b"\0" * 100_000)
        server.send({"ok": [1, None]})
        assert client.receive() == ({"ok": [1, None]}, b"")


def test_a_closed_connection_keeps_its_descriptor_while_a_thread_may_read_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the thread reads what belongs to the next connection, whose descriptor has the number."""
    with net_hosts.sockets() as pair, ThreadPoolExecutor(1) as pool:
        client, server = linked(pair)
        number, about, go_on = pair[0].fileno(), threading.Event(), threading.Event()
        read = os.readv

        def held(descriptor: int, buffers: Any) -> int:
            if descriptor == number and not about.is_set():
                about.set()
                assert go_on.wait(SECONDS)
            return read(descriptor, buffers)

        monkeypatch.setattr(os, "readv", held)
        received = pool.submit(client.receive)
        assert about.wait(SECONDS)
        client.close()
        assert pair[0].fileno() == number
        go_on.set()
        with pytest.raises(LinkError, match="the connection ended"):
            received.result(SECONDS)
        assert pair[0].fileno() == -1
        with pytest.raises(LinkError, match="it was closed here"):
            client.send({})
        server.close()


def test_a_client_with_another_key_is_refused_and_told_so() -> None:
    with net_hosts.sockets() as pair, ThreadPoolExecutor(1) as pool:
        server = pool.submit(accept, pair[1], KEY, PATIENT)
        with pytest.raises(WrongKey, match="refused the key"):
            greet(pair[0], b"other" * 8, PATIENT)
        with pytest.raises(WrongKey, match="another key"):
            server.result()


def test_a_server_that_does_not_know_the_key_is_refused() -> None:
    with net_hosts.sockets() as (one, other), ThreadPoolExecutor(1) as pool:
        client = pool.submit(greet, one, KEY, PATIENT)
        other.sendall(MAGIC + b"n" * NONCE)
        other.sendall(b"x" * DIGEST)
        with pytest.raises(WrongKey, match="does not know the key"):
            client.result()


def test_a_proof_cannot_be_sent_back_to_who_made_it() -> None:
    """A server without the key reflects the client's nonce and proof."""
    with net_hosts.sockets() as (one, other), ThreadPoolExecutor(1) as pool:
        client = pool.submit(greet, one, KEY, PATIENT)
        other.sendall(MAGIC + b"n" * NONCE)
        told = received(other, len(MAGIC) + NONCE + DIGEST)
        other.sendall(told[-DIGEST:])
        with pytest.raises(WrongKey):
            client.result()


def received(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = sock.recv(size - len(found))
        assert piece
        found += piece
    return found


def test_a_recorded_handshake_opens_no_other_connection() -> None:
    client = b"c" * NONCE
    with net_hosts.sockets() as (one, other), ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, other, KEY, PATIENT)
        server = received(one, len(MAGIC) + NONCE)[-NONCE:]
        proof = hmac.new(KEY, MAGIC + b"client" + server + client, hashlib.sha256).digest()
        one.sendall(MAGIC + client + proof)
        assert received(one, DIGEST) == hmac.digest(KEY, MAGIC + b"server" + server + client, "sha256")
        accepting.result()
    with net_hosts.sockets() as (one, other), ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, other, KEY, PATIENT)
        one.sendall(MAGIC + client + proof)
        with pytest.raises(WrongKey):
            accepting.result()


@pytest.mark.parametrize(
    "told", [b"", b"GET / HTTP/1.1\r\n\r\n" * 8, b"\0" * 200], ids=["nothing", "http", "zeros"]
)
def test_who_does_not_shake_hands_is_let_go(told: bytes) -> None:
    with net_hosts.sockets() as (one, other):
        one.sendall(told)
        with pytest.raises(LinkError, match="no handshake"):
            accept(other, KEY, SHORT)


def test_a_handshake_in_small_pieces_has_no_more_time() -> None:
    """Slowloris: a byte now and then."""
    over = threading.Event()
    with net_hosts.sockets() as (one, other), ThreadPoolExecutor(1) as pool:
        slow = pool.submit(trickle, one, over)
        with pytest.raises(LinkError, match="no handshake"):
            accept(other, KEY, LinkDeadlines(handshake=0.1))
        over.set()
        slow.result()


def frames(*messages: tuple[dict[str, object], bytes]) -> list[bytes]:
    """What a Link sends for these messages, a frame each."""
    found = []
    with net_hosts.sockets() as (one, other), ThreadPoolExecutor(1) as pool:
        link = Link(one, b"a", b"b", PATIENT)
        for message, data in messages:
            sending = pool.submit(link.send, message, data)
            sizes = received(other, SIZES.size)
            found.append(sizes + received(other, sum(SIZES.unpack(sizes)) + DIGEST))
            sending.result()
    return found


@contextmanager
def reader(wait: LinkDeadlines = PATIENT) -> Iterator[tuple[socket.socket, Link]]:
    """A socket, and the Link that reads what is sent there."""
    with net_hosts.sockets() as (one, other):
        other.setblocking(False)
        yield one, Link(other, b"b", b"a", wait)


ONE, TWO = frames(({"do": "run"}, b"block"), ({"do": "wait"}, b""))


def test_frames_come_in_their_order() -> None:
    with reader() as (sock, link):
        sock.sendall(ONE + TWO)
        assert [link.receive()[0]["do"] for _ in range(2)] == ["run", "wait"]


@pytest.mark.parametrize("given", [(ONE, ONE), (TWO,), (TWO, ONE)], ids=["repeated", "left out", "moved"])
def test_a_frame_that_is_not_the_next_one_ends_the_connection(given: tuple[bytes, ...]) -> None:
    with reader() as (sock, link):
        sock.sendall(b"".join(given))
        with pytest.raises(LinkError, match="changed, repeated or left out"):
            for _ in given:
                link.receive()


@pytest.mark.parametrize("at", [SIZES.size, SIZES.size + 5, -DIGEST - 1, -DIGEST, -1])
def test_a_frame_of_which_a_bit_was_changed_ends_the_connection(at: int) -> None:
    told = bytearray(ONE)
    told[at] ^= 1
    with reader() as (sock, link):
        sock.sendall(told)
        with pytest.raises(LinkError, match="changed"):
            link.receive()


def test_every_truncated_frame_is_an_error() -> None:
    for size in range(1, len(ONE)):
        with reader() as (sock, link):
            sock.sendall(ONE[:size])
            sock.shutdown(socket.SHUT_WR)
            with pytest.raises(LinkError, match="the connection ended"):
                link.receive()


@pytest.mark.parametrize("sizes", [(MOST_HEAD + 1, 0), (2, MOST_DATA + 1), (2**32 - 1, 2**32 - 1)])
def test_a_frame_that_says_it_is_too_large_ends_the_connection(sizes: tuple[int, int]) -> None:
    with reader() as (sock, link):
        sock.sendall(SIZES.pack(*sizes))
        with pytest.raises(LinkError, match="at most"):
            link.receive()


def test_hostile_lengths_cost_no_more_than_the_bytes_that_come() -> None:
    with reader() as (sock, link):
        sock.sendall(SIZES.pack(MOST_HEAD, MOST_DATA) + b"x" * 100_000)
        sock.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        with pytest.raises(LinkError):
            link.receive()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize(
    "head", [b"[1]", b"{", b"[" * 100_000, b"\xff"], ids=["list", "half", "deep", "no text"]
)
def test_a_signed_frame_that_is_no_object_ends_the_connection(head: bytes) -> None:
    sizes = SIZES.pack(len(head), 0)
    mac = hmac.digest(b"a", bytes(8) + sizes + head, "sha256")
    with reader() as (sock, link):
        sock.sendall(sizes + head + mac)
        with pytest.raises(LinkError, match="a frame holds"):
            link.receive()


def test_a_silent_peer_is_lost_after_so_many_beats() -> None:
    with reader(SHORT) as (_, link), pytest.raises(LinkError, match=r"no sign of life for 0\.15 s"):
        link.receive()


def test_a_frame_that_comes_too_slowly_is_an_error() -> None:
    over = threading.Event()
    with reader(LinkDeadlines(frame=0.1)) as (sock, link), ThreadPoolExecutor(1) as pool:
        slow = pool.submit(trickle, sock, over)
        with pytest.raises(LinkError, match="too slow"):
            link.receive()
        over.set()
        slow.result()


def trickle(sock: socket.socket, over: threading.Event) -> None:
    """Begins a frame and sends a byte of it now and then, until the reader has enough of it."""
    sock.sendall(SIZES.pack(1 << 16, 0))
    while not over.wait(0.01):
        with suppress(OSError):
            sock.sendall(b"x")


def test_a_peer_that_takes_nothing_is_lost() -> None:
    with net_hosts.sockets() as (one, _):
        one.setblocking(False)
        link = Link(one, b"a", b"b", SHORT)
        with pytest.raises(LinkError, match="took nothing"):
            while True:
                link.send({}, bytes(MOST_DATA))


# --- the key's file


def test_a_key_is_written_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_key(path)) == 64
    with pytest.raises(RequestError, match="cannot be written: File exists"):
        make_key(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = net_hosts.key_in(tmp_path)
    path.chmod(mode)
    with pytest.raises(RequestError, match=r"others can read or change this key.*chmod 600"):
        read_key(path)


@pytest.mark.parametrize("size", [0, 31, 5000])
def test_a_key_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * size)
    path.chmod(0o600)
    with pytest.raises(RequestError, match="expected a key of 32 to 4,096 bytes"):
        read_key(path)


def test_a_key_that_is_not_there_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"No such file.*--make-key"):
        read_key(tmp_path / "key")
    with pytest.raises(RequestError, match="key file"):
        read_key(tmp_path)
