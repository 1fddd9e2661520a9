"""`satchel deploy` on a real Ray cluster of one machine: a fleet that answers, a new version that replaces
the old one while requests go on, one that is taken back, and the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_clusters
from tiny_file import write_model
from waiting import SECONDS, joined, until

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("ray", reason="ray is not installed: pip install 'satchel[ray]'")

from satchel.runtime.children import interpreter  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a cluster of several nodes on one host")
FILE = """
[fleet]
name = "chat"
ray = "{address}"
[front]
port = 0
[upgrade]
seconds = 0
least_agreement = 0.5
least_compared = 16
[models.tiny]
path = "{path}"
context = {context}
slots = 2
worker_timeout = {timeout}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_clusters.cluster(nodes=1, cpus=2) as found:
        yield found


def satchel(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*interpreter(), "-m", "satchel", "deploy", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS)


def test_a_fleet_is_deployed_upgraded_rolled_back_and_ended(cluster: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    file = tmp_path / "fleet.toml"

    def says(context: int, model: Path = path) -> None:
        file.write_text(FILE.format(address=cluster.address, path=model, context=context, timeout=60.0))

    says(128)
    made = satchel(str(file))
    assert made.returncode == 0, made.stderr
    address = made.stdout.strip()
    assert address.startswith("http://127.0.0.1:") and "has loaded" in made.stderr

    def asked() -> str:
        body = {"model": "tiny", "prompt": [104, 105, 106], "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    wanted = asked()
    # A new version, while requests go on: none fails.
    over, answers = threading.Event(), list[str]()

    def ask() -> None:
        while not over.is_set():
            answers.append(asked())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        until(lambda: answers, "requests go on")
        first = status(file)["versions"]["tiny"]
        says(96)
        upgraded = satchel(str(file))
        assert upgraded.returncode == 0, upgraded.stderr
        assert "was found as good: over" in upgraded.stderr
        assert "10% of the requests" in upgraded.stderr and "has all requests" in upgraded.stderr
        second = status(file)["versions"]["tiny"]
        assert set(second.values()) == {1.0} and set(second) != set(first)
        # One that no engine can load is taken back, and the old one goes on.
        other = write_model(tmp_path / "other.gguf", seed=1)
        says(96, other)
        other.write_bytes(path.read_bytes()[:1000])
        failed = satchel(str(file))
        assert failed.returncode == 1 and "was taken back" in failed.stderr, failed.stderr
        assert status(file)["versions"]["tiny"] == second
    finally:
        over.set()
        joined(asking, "the client")
    assert set(answers) == {wanted}
    ended = satchel(str(file), "--down")
    assert ended.returncode == 0, ended.stderr
    gone = satchel(str(file), "--status")
    assert gone.returncode == 1 and "is not deployed" in gone.stderr


def status(file: Path) -> dict[str, Any]:
    told = satchel(str(file), "--status")
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found
