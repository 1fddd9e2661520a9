"""Tests of bench/connections.py: its parts, and a short run against the real server."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("resource")

import connections

linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs 127.0.0.0/8 and /proc")


def test_times_are_told_with_what_was_lost() -> None:
    times = connections.Times([float(i) for i in range(1, 101)], 2)
    assert (times.p50, times.p99) == (51.0, 100.0) and "2 not answered" in str(times)
    assert connections.Times([], 1).p99 == float("inf")


@linux
def test_the_bad_clients_connect_and_come_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.settimeout(60)
        server = type("Server", (), {"url": f"http://127.0.0.1:{bound.getsockname()[1]}"})()
        options = type("Options", (), {"limit": 2, "pause": 0.01})()
        settle, connections.SETTLE = connections.SETTLE, 0.0
        try:
            with connections.Attack(server, "slow header", options):
                for _ in range(8):  # twice as many as there are
                    bound.accept()[0].close()
        finally:
            connections.SETTLE = settle


@linux
@pytest.mark.model
@pytest.mark.nightly
def test_a_good_client_is_answered_in_every_attack(tmp_path: Path) -> None:
    """Latencies are not checked here; the benchmark itself judges them on a quiet machine."""
    told = tmp_path / "found.json"
    connections.main(["--limit", "64", "--requests", "60", "--json", str(told)])
    found = json.loads(told.read_text())["findings"]
    assert [f["row"] for f in found] == ["without", *connections.MANNERS]
    assert not any("not answered" in f["measured"] for f in found), found
