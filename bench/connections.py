"""Latency of a well-behaved client while attackers hold twice as many connections as the server accepts.

Attacks: silent, slow header, slow body, slow read, half-closed, idle connections.

python bench/connections.py [--limit 256] [--requests 200] [--pause 2] [--manner NAME ...] [--markdown FILE]

The attackers run in a process of their own at the lowest priority. They connect from several loopback
addresses, one of which is the good client's, and reconnect about `--pause` seconds after they were cut. The
good client requests four tokens, each time over a new connection. Exit code 1 where its p99 latency is more
than twice that without an attack, or where one of its requests gets no 200. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from engine_rows import Finding
from findings import tell
from serving_process import Process, satchel

from satchel.store.resolve import default_model

ADDRESSES = 4  # addresses of the attackers
WORSE = 2.0  # limit on the p99, relative to that without an attack
SETTLE = 1.0  # seconds between the attackers' last connection and the good client's first
WARM = 20  # warm-up requests before the measurement
HEAD = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MANNERS = {
    "silent": b"",
    "slow header": HEAD % b"/v1/models" + b"X-Slow: ",
    "slow body": CHAT + b"Content-Length: 9000\r\n\r\n{",
    "slow read": HEAD % b"/openapi.json" + b"\r\n",  # more than the kernel buffers unread
    "half-closed": HEAD % b"/metrics",
    "idle": HEAD % b"/healthz" + b"\r\n",
}
DRIPS = ("slow header", "slow body")  # these send one byte per second


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit", type=int, default=256, help="connections that the server takes")
    parser.add_argument("--requests", type=int, default=200, help="of the good client, in each manner")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds until a bad client comes again")
    parser.add_argument("--manner", action="append", choices=list(MANNERS), help="default: each")
    parser.add_argument("--attack", nargs=3, metavar=("MANNER", "PORT", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    if options.attack:
        manner, port, count = options.attack
        asyncio.run(attack(manner, int(port), int(count), options.pause))
        return 0
    return tell(measure(options), options)


def measure(options: argparse.Namespace) -> list[Finding]:
    limits = (
        "--max-connections",
        str(options.limit),
        "--max-connections-per-client",
        str(options.limit // 2),
    )
    with satchel(default_model(), 4, *limits) as server:
        server.ready("/readyz")
        ask(server, WARM)
        urllib.request.urlopen(f"{server.url}/openapi.json", timeout=60).close()  # the document is built once
        without = ask(server, options.requests)
        found = [Finding("without", str(without), "all answered", not without.failed)]
        for manner in options.manner or MANNERS:
            with Attack(server, manner, options):
                times = ask(server, options.requests)
            share = times.p99 / without.p99
            met = share <= WORSE and not times.failed
            found.append(
                Finding(manner, f"{times}: p99 x {share:.2f}", f"p99 x {WORSE:g}, all answered", met)
            )
    return found


@dataclass(frozen=True, slots=True)
class Times:
    """Latencies in milliseconds of requests that were answered, and the number of others."""

    answered: Sequence[float]
    failed: int

    @property
    def p50(self) -> float:
        return quantile(self.answered, 0.5)

    @property
    def p99(self) -> float:
        return quantile(self.answered, 0.99)

    def __str__(self) -> str:
        lost = f", {self.failed} not answered" if self.failed else ""
        return f"p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms{lost}"


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value at or below which the share q lies; infinity where there is none."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("inf")


def ask(server: Process, count: int) -> Times:
    """Requests of the good client, one after another, each over a connection of its own."""
    port, answered, failed = urlsplit(server.url).port or 0, [], 0
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": True}
    data, headers = json.dumps(body), {"content-type": "application/json"}
    for _ in range(count):
        began = time.perf_counter()
        wire = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            wire.request("POST", "/v1/chat/completions", data, headers)
            answer = wire.getresponse()
            answer.read()
            good = answer.status == 200
        except (OSError, http.client.HTTPException):
            good = False
        finally:
            wire.close()
        if good:
            answered.append(1e3 * (time.perf_counter() - began))
        else:
            failed += 1
    return Times(answered, failed)


class Attack:
    """Attackers with twice as many connections as the server accepts; entered when all have been connected
    once.
    """

    def __init__(self, server: Process, manner: str, options: argparse.Namespace) -> None:
        port = str(urlsplit(server.url).port)
        words = ("--attack", manner, port, str(2 * options.limit), "--pause", str(options.pause))
        self.command = [sys.executable, __file__, *words]

    def __enter__(self) -> None:
        self.child = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        if self.child.stdout.readline() != "all connected\n":
            raise RuntimeError("the bad clients could not connect")
        time.sleep(SETTLE)

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


async def attack(manner: str, port: int, count: int, pause: float) -> None:
    """Holds so many connections for ever; reports when each has been connected once."""
    first: set[int] = set()
    draw = random.Random(0)
    os.nice(19)

    async def hold(number: int) -> None:
        await asyncio.sleep(pause * draw.random())
        while True:
            with suppress(OSError):
                await misbehave(manner, port, f"127.0.0.{1 + number % ADDRESSES}", lambda: first.add(number))
            await asyncio.sleep(pause * (0.5 + draw.random()))

    tasks = [asyncio.create_task(hold(number)) for number in range(count)]
    while len(first) < count:
        await asyncio.sleep(0.05)
    print("all connected", flush=True)
    await asyncio.gather(*tasks)


async def misbehave(manner: str, port: int, source: str, connected: object) -> None:
    """One connection, until the server cuts it."""
    loop = asyncio.get_running_loop()
    wire = socket.socket()
    try:
        wire.setblocking(False)
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.bind((source, 0))
        await loop.sock_connect(wire, ("127.0.0.1", port))
        assert callable(connected)
        connected()
        if MANNERS[manner]:
            await loop.sock_sendall(wire, MANNERS[manner])
        if manner == "half-closed":
            wire.shutdown(socket.SHUT_WR)
        while manner == "slow read":  # reads one byte per second, below the server's limit
            if not await loop.sock_recv(wire, 1):
                return
            await asyncio.sleep(1)
        while manner in DRIPS:
            await asyncio.sleep(1)
            await loop.sock_sendall(wire, b"x")
        while await loop.sock_recv(wire, 4096):
            pass
    finally:
        wire.close()


if __name__ == "__main__":
    sys.exit(main())
