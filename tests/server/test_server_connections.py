"""Slow and abusive connections are cut, and a good client is answered meanwhile. Rows A03 (connections), A04
(descriptors) and A15 (unread streams) of the hostile requests. The clock is simulated: see
tests/support/house.py.
"""

from __future__ import annotations

import gc
import json
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until

pytest.importorskip("fastapi")

from house import House, answered, closed, heard, serving_house
from uvicorn.protocols.http.h11_impl import H11Protocol

from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.server.addresses import UNREADABLE, Proxies, client_of
from satchel.server.protocol import SLICE
from satchel.server.settings import ServerSettings

MOST, EACH = 24, 12
HEAD = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
# What a bad client sends, and the seconds after which its connection is cut.
MANNERS: dict[str, tuple[bytes, float]] = {
    "silent": (b"", 10.5),
    "slow header": (HEAD % b"/healthz" + b"X-Slow", 10.5),
    "slow body": (POST + b"Content-Length: 9000\r\n\r\n{", 10.5),
    "slow chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 10.5),
    "slow rest": (HEAD % b"/healthz" + b"Content-Length: 9000\r\n\r\nx", 10.5),
    "slow read": (HEAD % b"/large" + b"\r\n", 30.5),
    "unread stream": (HEAD % b"/endless" + b"\r\n", 30.5),
    "idle": (HEAD % b"/healthz" + b"\r\n", 30.5),
    "pipelined": ((HEAD % b"/large" + b"\r\n") * 50, 30.5),
    "half-closed": (HEAD % b"/large" + b"\r\n", 30.5),
}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    settings = ServerSettings(port=0, most_connections=MOST, most_per_client=EACH)
    with serving_house(settings) as found:
        yield found


@pytest.fixture(autouse=True)
def vacant(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves no connection open."""
    yield
    if "house" in request.fixturenames:
        found: House = request.getfixturevalue("house")
        found.open_door()
        found.later(100)
        found.later(100)
        until(lambda: not found.connections.open and not found.streams, "all connections are gone")
        found.run(found.door.clear)
        found.asked = 0


def good(house: House, path: str = "/v1/models", source: str = "127.0.0.1") -> httpx.Response:
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(transport=transport) as client:
        return client.get(f"{house.url}{path}", timeout=60)


@pytest.mark.parametrize("manner", MANNERS)
def test_a03_twice_the_limit_of_bad_connections(house: House, manner: str) -> None:
    """From one address, and from many: a good client at that address or another is answered."""
    data, seconds = MANNERS[manner]
    held = [house.dial(data, f"127.0.0.{1 + i % 5}", window=4096) for i in range(2 * MOST)]
    if manner == "half-closed":
        for wire in held:
            if not closed(wire):
                wire.shutdown(socket.SHUT_WR)
    for source in ("127.0.0.1", "127.0.0.77"):
        until(lambda s=source: good(house, source=s).status_code == 200, "a good client's answer")
        assert good(house, "/health", source).status_code == 200
    assert house.connections.open <= MOST + 16
    house.later(seconds)
    house.later(seconds)  # an unread response is cut after a whole window
    until(lambda: not house.connections.open, "bad connections are cut")
    until(lambda: not house.streams, "streams of cut connections end")
    for wire in held:
        wire.close()


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("ends", ["client", "server"])
def test_a_closed_connection_leaves_nothing_to_collect(house: House, manner: str, ends: str) -> None:
    """Full collections of garbage stop the loop; without any, what a connection had is gone with it."""
    data, seconds = MANNERS[manner]
    gc.disable()
    try:
        wires = [house.dial(data, window=4096) for _ in range(3)]
        until(lambda: len(house.protocols()) == 3, "all have a protocol object")
        if manner not in ("silent", "slow header"):
            until(lambda: all(p.scope for p in house.protocols()), "their requests have begun")
        left = [weakref.ref(p) for p in house.protocols()]
        if ends == "server":
            house.later(seconds)
            house.later(seconds)
        for wire in wires:
            wire.close()
        until(lambda: not any(ref() for ref in left), "closed connections are freed")
    finally:
        gc.enable()


def test_a03_an_attack_of_one_address_leaves_others_alone(house: House) -> None:
    others = [house.dial(source=f"127.0.1.{i}") for i in range(5)]
    held = [house.dial() for _ in range(3 * MOST)]
    assert good(house).status_code == 200
    assert sum(closed(wire) for wire in others) == 0
    until(lambda: sum(not closed(wire) for wire in held) <= EACH, "the address has its share alone")
    for wire in (*others, *held):
        wire.close()


def test_a03_readers_that_stall_give_way_before_one_that_has_just_come(house: House) -> None:
    """Its request is on the way, or was not read yet; it comes from an address that has as many as others."""
    held = [
        house.dial(HEAD % b"/large" + b"\r\n", f"127.0.0.{1 + i % 4}", window=4096) for i in range(MOST - 1)
    ]
    until(lambda: len(house.protocols()) == MOST - 1, "all are there")
    until(lambda: all(p.scope for p in house.protocols()), "their answers are under way")
    house.later(0.05)  # five seconds of the server's clock
    fresh = house.dial()
    until(lambda: house.connections.open == MOST, "no seat is free")
    before = house.connections.cuts["room"]
    held += [house.dial(source="127.0.0.4") for _ in range(2)]
    until(lambda: house.connections.cuts["room"] == before + 2, "two gave way")
    fresh.sendall(HEAD % b"/whose" + b"\r\n")
    assert answered(fresh, b"127.0.0.1")
    for wire in (fresh, *held):
        wire.close()


def test_a03_a_full_house_answers_health_and_refuses_the_rest(house: House) -> None:
    working = [house.dial(HEAD % b"/wait" + b"\r\n", f"127.0.0.{1 + i % 4}") for i in range(MOST)]
    until(lambda: house.asked == MOST, "all seats are taken by requests")
    for path in ("/health", "/healthz", "/readyz", "/v1/health"):
        answer = good(house, path)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    before = house.connections.refused
    for path, status in (("/v1/models", 503), ("/v1/messages", 529), ("/api/tags", 503)):
        answer = good(house, path)  # in the API flavour's own shape
        assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")
        assert "all connections that" in answer.text and "error" in answer.json()
    assert house.connections.refused == before + 3
    silent = [house.dial() for _ in range(3 * MOST)]  # they can't take the probes' seats either
    assert good(house, "/health").status_code == 200
    house.open_door()
    assert all(answered(wire, b"waited") for wire in working)
    until(lambda: good(house).status_code == 200, "there is room again")
    for wire in (*silent, *working):
        wire.close()


def test_a03_a_request_under_way_outlives_every_deadline_and_every_flood(house: House) -> None:
    working = house.dial(HEAD % b"/wait" + b"\r\n")
    until(lambda: house.asked == 1, "the request runs")
    flood = [house.dial() for _ in range(3 * MOST)]
    assert good(house).status_code == 200  # all connections of the flood were accepted before
    house.later(3600)
    until(lambda: house.connections.open == 1, "the flood is cut")
    house.open_door()
    assert answered(working, b"waited")
    for wire in (working, *flood):
        wire.close()


def test_a03_an_abandoned_request_keeps_its_seat(house: House) -> None:
    """Otherwise a client could run any number of requests by abandoning each."""
    for i in range(EACH):
        wire = house.dial(HEAD % b"/wait" + b"\r\n")
        until(lambda: house.asked == i + 1, "the request runs")  # noqa: B023
        wire.close()
    answer = good(house)
    assert answer.status_code == 503 and "Retry-After" in answer.headers
    house.open_door()
    until(lambda: good(house).status_code == 200, "abandoned requests end")


def test_a03_a_late_header_is_told_and_an_idle_connection_just_ends(house: House) -> None:
    late, idle = house.dial(HEAD % b"/healthz"), house.dial(HEAD % b"/healthz" + b"\r\n")
    until(lambda: house.connections.open == 2, "both are there")
    assert answered(idle, b'"ok"}')
    house.later(31)
    assert heard(late).startswith(b"HTTP/1.1 408") and heard(idle) == b""


def test_a03_a_drip_of_bytes_prolongs_nothing(house: House) -> None:
    """Each byte is in time, but the whole is not."""
    header, body, rest = house.dial(), house.dial(POST), house.dial(HEAD % b"/healthz")
    body.sendall(b"Content-Length: 90000\r\n\r\n")
    rest.sendall(b"Content-Length: 90000\r\n\r\n")
    until(lambda: house.connections.open == 3, "all are there")
    for _ in range(14):
        house.later(2)
        for wire in (header, body, rest):
            try:
                wire.sendall(b"G")
            except OSError:
                continue
    until(lambda: not house.connections.open, "all are cut")
    for wire in (header, body, rest):
        wire.close()


def test_a03_an_honest_slow_body_is_waited_for(house: House) -> None:
    content = b'{"content": "' + b"a" * 60_000 + b'"}'
    wire = house.dial(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(content))
    until(lambda: in_body(house.connections), "its header is read: from then on its body is timed")
    for end in range(15_000, 60_001, 15_000):
        wire.sendall(content[end - 15_000 : end])
        until(lambda most=end: received(house.connections) >= most, "the piece has come")
        house.later(9)
    wire.sendall(content[60_000:])
    assert heard(wire).endswith(str(len(content)).encode())
    wire.close()


def in_body(connections: Any) -> bool:
    holders = [seat.holder for seat in list(connections._seats)]
    return any(hasattr(holder, "_now_in") and holder._now_in() == "body" for holder in holders)


def received(connections: Any) -> int:
    return max((seat.holder._received for seat in list(connections._seats)), default=0)


def test_a03_pipelined_requests_are_answered_in_order_and_bounded(house: House) -> None:
    wire = house.dial((HEAD % b"/healthz" + b"\r\n") * 20 + HEAD % b"/whose" + b"Connection: close\r\n\r\n")
    answers = heard(wire)
    assert answers.count(b"HTTP/1.1 200") == 21 and answers.endswith(b"127.0.0.1")
    flood = house.dial(HEAD % b"/wait" + b"\r\n")
    before = house.connections.cuts["pipelined"]
    until(lambda: house.connections.open == 1, "it is there")
    try:
        for _ in range(64):
            flood.sendall(b"GET / HTTP/1.1\r\n" * 1024)
    except OSError:
        pass
    until(lambda: house.connections.cuts["pipelined"] == before + 1, "the flood is cut")
    house.open_door()
    flood.close()


def test_a03_many_small_chunks_are_read_in_slices(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """h11 takes 0.3 s for 256 kB of one-byte chunks, during which no other client would be answered."""
    seen: list[int] = []
    whole = H11Protocol.data_received

    def noted(self: H11Protocol, data: bytes) -> None:
        seen.append(len(data))
        whole(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", noted)
    wire = house.dial(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n")
    assert wire.recv(65536).startswith(b"HTTP/1.1 400")
    assert max(seen) <= SLICE < sum(seen)
    wire.close()


def test_a03_too_many_headers_and_other_protocols(house: House) -> None:
    for count, status in ((100, b"200"), (200, b"431"), (16_000, b"431")):
        many = b"".join(b"a:\r\n" for i in range(count)) + b"Connection: close\r\n\r\n"
        assert heard(house.dial(HEAD % b"/healthz" + many)).startswith(b"HTTP/1.1 " + status)
    with httpx.Client(timeout=60) as client:
        assert all(client.get(f"{house.url}/healthz").status_code == 200 for _ in range(100))
    lines = POST + b"Connection: close\r\nContent-Length: 9000\r\n\r\n" + b"\n" * 9000
    assert heard(house.dial(lines)).startswith(b"HTTP/1.1 4")  # a body's lines do not count as headers
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
    for path in (b"/healthz", b"/none"):
        wire = house.dial(HEAD % path + upgrade)
        assert wire.recv(65536).startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))
        wire.close()
    tunnel = house.dial(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert tunnel.recv(65536).startswith(b"HTTP/1.1 4")
    tunnel.close()


def test_a03_a_handshake_that_never_comes_has_a_seat_and_a_deadline() -> None:
    settings = ServerSettings(port=0, most_connections=MOST, most_per_client=EACH)
    with serving_house(settings, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as house:
        held = [house.dial(b"" if i % 2 else b"\x16\x03\x01\x02", f"127.0.0.{1 + i % 3}") for i in range(60)]
        until(lambda: sum(not closed(w) for w in held) == MOST, "some gave way to others")
        house.later(10.5)
        until(lambda: not house.connections.open and all(closed(w) for w in held), "all are cut")
        for wire in held:
            wire.close()


def test_a03_behind_a_trusted_proxy_the_cap_counts_forwarded_addresses() -> None:
    settings = ServerSettings(port=0, most_per_client=2, trusted_proxies=("127.0.0.1", "10.0.0.0/8"))
    with serving_house(settings) as house:

        def ask(path: str, forwarded: str, source: str = "127.0.0.1") -> httpx.Response:
            with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
                return client.get(house.url + path, headers={"x-forwarded-for": forwarded}, timeout=60)

        name = b"X-Forwarded-For: 198.51.100.1, 203.0.113.7, 10.1.1.1\r\n\r\n"
        held = [house.dial(HEAD % b"/wait" + name) for _ in range(2)]
        until(lambda: house.asked == 2, "both requests run")
        assert ask("/whose", "203.0.113.7").json()["error"]["code"] == "too_many_connections"
        assert ask("/health", "203.0.113.7").status_code == 200
        assert [ask("/whose", f"203.0.113.{i}").text for i in range(8, 12)] == [
            f"203.0.113.{i}" for i in range(8, 12)
        ]
        silent = [house.dial() for _ in range(5)]  # the proxy itself has no limit
        assert sum(closed(wire) for wire in silent) == 0
        # An untrusted caller can't name another client's address, nor pass for a local one.
        assert ask("/whose", "127.0.0.1", "127.0.0.9").text == "forwarded"
        house.open_door()
        assert all(answered(wire, b"waited") for wire in held)
        until(lambda: ask("/whose", "203.0.113.7").status_code == 200, "it has room again")
        for wire in (*held, *silent):
            wire.close()


def test_a03_a_reset_connection_is_no_local_one(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer has no address any more, like that of a Unix socket, but its data can still be read."""
    monkeypatch.setattr("uvicorn.protocols.http.h11_impl.get_remote_addr", lambda _: None)
    assert heard(house.dial(HEAD % b"/whose" + b"X-Forwarded-For: 127.0.0.1\r\n\r\n")) == b""


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets")
def test_a03_a_unix_socket_has_no_cap_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with serving_house(ServerSettings(host=str(path), most_per_client=2)) as house:
        assert path.stat().st_mode & 0o777 == 0o660
        held = [house.dial(HEAD % b"/wait" + b"\r\n") for _ in range(4)]
        until(lambda: house.asked == 4, "all run")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://localhost/whose").text == "unix"
            forwarded = {"x-forwarded-for": "203.0.113.7"}
            assert client.get("http://localhost/whose", headers=forwarded).text == "203.0.113.7"
        with pytest.raises(RequestError, match="in use"):
            from satchel.server.run import listen

            listen(str(path), 0, ServerSettings())
        for wire in held:
            wire.close()
    assert not path.exists()  # a server that ends removes it, before uvicorn raises the signal again


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("x" * 10_000, UNREADABLE),
    ],
)
def test_clients_by_address(address: str, client: str) -> None:
    assert client_of(address) == client


def test_forwarded_addresses() -> None:
    proxies = Proxies(("10.0.0.0/8", "2001:db8::1"))

    def of(*values: str) -> str:
        return proxies.forwarded([(b"x-forwarded-for", v.encode()) for v in values])

    assert of("1.1.1.1, 2.2.2.2:80, 10.0.0.1") == "2.2.2.2"
    assert of("1.1.1.1", "[2001:db8::5]:80, [2001:db8::1]") == "2001:db8::5"
    assert of("10.0.0.1, 10.0.0.2") == "10.0.0.1" and of("") == of(" , ") == ""
    with pytest.raises(RequestError, match="--trusted-proxy"):
        Proxies(("proxy.example",))


@pytest.mark.model
def test_a15_a_stream_that_nobody_reads_lets_go_of_its_model(
    bundled_model: Path, serving_of: Callable[..., Any]
) -> None:
    settings = ServerSettings(port=0, write_seconds=0.5)
    body = {
        "messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True, "n": 2,
        "max_tokens": 1900, "logprobs": True, "top_logprobs": 20,
    }  # fmt: skip
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\n"
    with serving_of([bundled_model], Options(slots=2), settings) as url:

        def model() -> dict[str, Any]:
            found: dict[str, Any] = httpx.get(f"{url}/dashboard/stats", timeout=60).json()["models"][0]
            return found

        with socket.socket() as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.connect(("127.0.0.1", httpx.URL(url).port or 0))
            wire.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data)
            ended = until(lambda: model().get("stats", {}).get("requests"), "the stream is cut")
            until(lambda: model()["users"] == 0, "the model is let go")
            assert ended.get("cancelled", 0) >= 1 and not ended.get("length"), ended
