"""The front of a deployed fleet judges a new version by how its next tokens diverge from those of the version
that serves: one that answers alike replaces it, another is taken back; beside the one that serves, or engine
by engine in its places. The server is a real one; no cluster.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_file import write_model
from waiting import SECONDS, joined, until

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from satchel.cli.deploying.front import FrontActor  # noqa: E402
from satchel.cli.deploying.plan import UpgradeTable  # noqa: E402
from satchel.errors import DeviceError  # noqa: E402

# After 16 requests without a difference at least 73 % of the tokens agree, with the error of a first look.
UPGRADE = UpgradeTable(seconds=0, least_agreement=0.5, least_compared=16)


class Deployed:
    """A front, and a client that asks the model all the time."""

    def __init__(self, room: bool = True, **table: Any) -> None:
        """room: whether two versions find room at once. table: options of the model besides the usual."""
        self.front, self.answers = FrontActor("127.0.0.1", lambda order, seconds: room), list[str]()
        self._table = {"context": 96, "slots": 2, "worker": "thread"} | table
        self._over, self._asking = threading.Event(), threading.Thread(target=self._ask)

    def deploy(self, version: str, path: Path, upgrade: UpgradeTable = UPGRADE) -> list[str]:
        return self.front.deploy(
            {
                "front": {"port": 0, "log-level": "warning"},
                "upgrade": upgrade.model_dump(),
                "versions": {"tiny": version},
                "tables": {version: {"path": str(path)} | self._table},
                "orders": {version: {}},
            }
        )

    @property
    def served(self) -> dict[str, float]:
        found: dict[str, float] = self.front.status()["versions"]["tiny"]
        return found

    def engines(self) -> dict[str, list[str]]:
        """The members of each version that is loaded."""
        fleets = self.front.status()["fleets"]
        return {version: [m["member"] for m in told.get("members", ())] for version, told in fleets.items()}

    def ask(self) -> None:
        """Begins to ask."""
        self._asking.start()
        until(lambda: self.answers, "the model answers")

    def _ask(self) -> None:
        address = self.front.status()["address"]
        body = {"model": "tiny", "prompt": [104, 105, 106], "max_tokens": 4, "temperature": 0}
        while not self._over.is_set():
            answer = httpx.post(f"{address}/v1/completions", json=body, timeout=SECONDS)
            self.answers.append(answer.json()["choices"][0]["text"])

    def close(self) -> None:
        self._over.set()
        if self._asking.is_alive():
            joined(self._asking, "the client")
        self.front.stop()


@pytest.fixture
def deployed() -> Iterator[Deployed]:
    made = Deployed()
    yield made
    made.close()


def test_versions_are_judged_by_how_they_answer(deployed: Deployed, tmp_path: Path) -> None:
    first, second = write_model(tmp_path / "one.gguf"), write_model(tmp_path / "two.gguf")
    other = write_model(tmp_path / "other.gguf", seed=1)
    deployed.deploy("tiny-1", first)
    # Without requests there is no verdict, and the old version stays.
    hasty = UPGRADE.model_copy(update={"judge_seconds": 0.001})
    with pytest.raises(DeviceError, match=r"no verdict within 0\.001 s: 0 requests were compared"):
        deployed.deploy("tiny-2", second, hasty)
    assert deployed.served == {"tiny-1": 1.0}
    # One that answers alike replaces it: judged, then tried, then in its place.
    deployed.ask()
    done = deployed.deploy("tiny-2", second)
    steps = ("has loaded", "is compared", "diverge by 0 nats", "10% of the requests", "has all requests")
    assert [step in line for step, line in zip(steps, done, strict=True)] == [True] * 5, done
    assert deployed.served == {"tiny-2": 1.0}
    # One that does not is taken back, and nobody got an answer of it.
    with pytest.raises(DeviceError, match=r"tiny-3 was taken back: it does not answer as the version"):
        deployed.deploy("tiny-3", other)
    assert deployed.served == {"tiny-2": 1.0} and len(set(deployed.answers)) == 1
    # Unless it is meant to.
    done = deployed.deploy("tiny-3", other, UPGRADE.model_copy(update={"judge": "errors"}))
    assert "tiny-3 has all requests" in done and deployed.served == {"tiny-3": 1.0}


def test_its_state_is_told_while_versions_change(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version comes while the server is asked about another."""
    deployed.deploy("tiny-1", write_model(tmp_path / "one.gguf"))
    ask, coming = deployed.front._ask, iter(("tiny-2", "tiny-3", "tiny-4"))

    def changing(path: str, *given: Any) -> Any:
        deployed.front._tables[next(coming)] = {}
        return ask(path, *given)

    monkeypatch.setattr(deployed.front, "_ask", changing)
    assert set(deployed.front.status()["fleets"]) == {"tiny-1"}
    assert set(deployed.front.status()["fleets"]) == {"tiny-1", "tiny-2"}


@pytest.fixture
def full() -> Iterator[Deployed]:
    """Two engines, and room for no third one."""
    made = Deployed(room=False, worker="process", replicas="2..2", threads=1)
    yield made
    made.close()


def test_without_room_for_two_versions_one_takes_the_places_of_the_other(
    full: Deployed, tmp_path: Path
) -> None:
    first, second = write_model(tmp_path / "one.gguf"), write_model(tmp_path / "two.gguf")
    other = write_model(tmp_path / "other.gguf", seed=1)
    full.deploy("tiny-1", first)
    until(lambda: len(full.engines()["tiny-1"]) == 2, "two engines have joined")
    with pytest.raises(DeviceError, match="expected 1 <= least <= most, got least = 3, most = 2"):
        full.front._ask("/fleet/scaling", {"model": "tiny-1", "least": 3, "most": 2})
    full.ask()
    seen, over = list[dict[str, list[str]]](), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.append(full.engines())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        done = full.deploy("tiny-2", second)
        steps = (
            "tiny-2 gets the place of one of 2 engines", "has loaded", "is compared", "diverge by 0 nats",
            "10% of the requests", "tiny-2 has all requests, on 2 engines",
        )  # fmt: skip
        assert [step in line for step, line in zip(steps, done, strict=True)] == [True] * 6, done
        assert full.served == {"tiny-2": 1.0} and len(full.engines()["tiny-2"]) == 2
        # One that answers otherwise is taken back, and the old one has both engines again.
        with pytest.raises(DeviceError, match=r"tiny-3 was taken back: it does not answer as the version"):
            full.deploy("tiny-3", other)
        assert "the version before has 2 engines again" in full.front.status()["done"]
        assert full.served == {"tiny-2": 1.0} and len(full.engines()["tiny-2"]) == 2
    finally:
        over.set()
        joined(looking, "the one who looks")
    assert max(sum(map(len, engines.values())) for engines in seen) == 2
    assert any({"tiny-1", "tiny-2"} <= {v for v, members in engines.items() if members} for engines in seen)
    assert len(set(full.answers)) == 1


def test_one_engine_is_not_replaced_in_place(tmp_path: Path) -> None:
    made = Deployed(room=False, worker="process", replicas="1..2", threads=1)
    try:
        path = write_model(tmp_path / "one.gguf")
        made.deploy("tiny-1", path)
        always = UPGRADE.model_copy(update={"in_place": "always", "judge": "errors"})
        with pytest.raises(DeviceError, match=r"tiny-1 has 1 engine: in place it takes 2 at least"):
            made.deploy("tiny-2", path, always)
        assert made.served == {"tiny-1": 1.0}
        # Where the file does not insist, it loads beside the old one.
        done = made.deploy("tiny-2", path, UPGRADE.model_copy(update={"judge": "errors"}))
        assert "tiny-2 has all requests" in done
    finally:
        made.close()


def test_every_alias_of_a_deployment_has_its_webhook() -> None:
    """A rollback while a version is tried is told as a verdict is."""
    made = FrontActor("127.0.0.1")
    try:
        made._upgrade = UPGRADE.model_copy(update={"webhook": "https://hook"})
        made._tables, made._weights = {"a": {"path": "a.gguf"}}, {"tiny": {"a": 1.0}}
        made._write()
        assert tomllib.loads(made._config.read_text())["aliases"]["tiny"]["webhook"] == "https://hook"
    finally:
        made.stop()
