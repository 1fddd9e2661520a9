"""Fleets whose members come and go: worker processes that the load begins, and engines that join a roster."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import net_hosts
import pytest
from fleet_requests import fleet_of
from net_hosts import LOOPBACK
from tiny_file import write_model
from waiting import until, until_amid

from satchel import Model, Options
from satchel.errors import RequestError
from satchel.runtime.fleet.autoscale import Limits
from satchel.runtime.fleet.autoscaler import Autoscaler
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.net.roster_server import RosterServer
from satchel.runtime.sampling import Sampling

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
WARM = Sampling(temperature=1.5, top_k=0, seed=11)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("joining") / "tiny.gguf")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_hosts.key_in(tmp_path_factory.mktemp("key"))


def asked(number: int) -> list[int]:
    return [100 + (number * 7 + i) % 150 for i in range(20)]


def answers(model: Model, count: int, most: int = 40) -> list[list[int]]:
    """All at once."""

    def one(number: int) -> list[int]:
        reply = model.generate(asked(number), max_tokens=most, sampling=WARM, ignore_eos=True)
        reply.read()
        return list(reply.ids)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.fixture(scope="module")
def wanted(path: Path) -> list[list[int]]:
    with Model.load(path, slots=8, threads=1) as model:
        return answers(model, 16)


def states(fleet: Fleet) -> list[str]:
    return sorted(member.state for member in list(fleet.members.values()))


# Replicas of this machine


class Clock:
    """One that the test moves on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_range_begins_with_the_least_and_tells_how_it_is_scaled(path: Path) -> None:
    with Model.load(path, slots=2, threads=1, replicas="1..3", replica_wait=0.25) as model:
        fleet = fleet_of(model)
        assert len(fleet.members) == 1 and fleet.size == 3 and fleet.scaling is not None
        facts = fleet.scaling.facts()
        assert (facts.least, facts.most, facts.wanted, facts.wait_aim) == (1, 3, 1, 0.25)
        assert fleet.facts()[0].start_seconds > 0


def test_a_fleet_grows_under_load_and_shrinks_with_every_answer_whole(
    path: Path, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits are real; the autoscaler's clock, and when it looks, are the test's."""
    clock, made = Clock(), list[Autoscaler]()

    def scaled(fleet: Fleet, options: Options) -> SimpleNamespace:
        # An aim below any wait asks for a second member as soon as there is a first.
        made.append(Autoscaler(fleet, Limits(1, 2, aim=1e-9, up=15.0, down=120.0), clock=clock))
        return SimpleNamespace(begin=lambda: None)

    monkeypatch.setattr("satchel.runtime.api.model.scaled", scaled)
    with Model.load(path, slots=2, threads=1, replicas="1..2") as model, ThreadPoolExecutor(1) as pool:
        fleet, scaler = fleet_of(model), made[0]
        clock.now = 14.0
        scaler.look()
        assert len(fleet.members) == 1, "it has just begun"
        clock.now = 16.0
        read = pool.submit(answers, model, 16).result
        scaler.look()
        assert len(fleet.members) == 2 and scaler.facts().wanted == 2
        until(lambda: states(fleet) == ["ready", "ready"], "the second has loaded the model")
        assert read() == wanted
        scaler.look()
        assert scaler.facts().start_seconds > 0, "its cold start was measured"
        scaler._scaler.limits = Limits(1, 2, aim=1e9, up=15.0, down=120.0)
        clock.now = 200.0
        reading = until_amid(
            lambda: pool.submit(answers, model, 16),
            lambda: sum(member.service.work for member in list(fleet.members.values())) > 1,
            "both work",
        )
        scaler.look()
        assert reading.result() == wanted
        until(lambda: len(fleet.members) == 1, "the one that drained has left")
        clock.now = 1000.0
        scaler.look()
        assert states(fleet) == ["ready"], "the last one stays"


def test_the_line_of_a_fleet_is_in_the_waits_of_its_members(path: Path) -> None:
    with Model.load(path, slots=1, threads=1, replicas=2, context=256) as model:
        fleet = fleet_of(model)
        idle = [one.view.queued for one in fleet.loads()]
        with fleet._lock:  # no member hears of them
            replies = [model.generate(asked(n), max_tokens=30, ignore_eos=True) for n in range(12)]
            for reply in replies:
                reply.start()
            inside = sum(len(m.service.requests) for m in fleet.members.values())
            assert len(fleet._line) == 12 - inside > 0
            loads = fleet.loads()
            assert sum(one.view.queued for one in loads) >= 12 * 19 > sum(idle)
        for reply in replies:
            reply.read()


@pytest.mark.parametrize("text", ["0..2", "3..2", "1..", "..4", "1..300", "1...3", "a..b", "1..2..3"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"replicas is .*or two such as 1\.\.4"):
        Options(replicas=text)


def test_options_that_do_not_go_together_are_refused(key: Path) -> None:
    with pytest.raises(RequestError, match=r"engine_listen 127\.0\.0\.1: no key"):
        Options(engine_listen="127.0.0.1")
    with pytest.raises(RequestError, match="replicas: not supported with engine_listen"):
        Options(engine_listen="127.0.0.1", device_key=str(key), replicas=2)
    with pytest.raises(RequestError, match="engine_host: not supported with engine_listen or ray"):
        Options(engine_host="a,b", device_key=str(key), ray="auto")
    with pytest.raises(RequestError, match="with ray, give a number"):
        Options(ray="auto", replicas="auto")


# Engines that join a roster


@pytest.fixture
def roster_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """The port of the roster that is made next. Its leases are long enough for a busy machine."""
    made: list[RosterServer] = []
    begin = RosterServer.__init__

    def kept(self: RosterServer, *args: object, **how: object) -> None:
        begin(self, *args, **how)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(RosterServer, "__init__", kept)
    monkeypatch.setenv("SATCHEL_DEVICE_TIMEOUT_MS", "20000")
    yield lambda: until(lambda: made, "the roster listens")[-1].port


def loading(path: Path, key: Path, pool: ThreadPoolExecutor) -> Callable[[], Model]:
    """Loads the model, which waits for its engines."""
    options = Options(slots=4, engine_listen=f"{LOOPBACK}:0", device_key=str(key))
    return pool.submit(Model.load, path, options).result


def test_engines_join_serve_leave_and_are_lost(
    path: Path, key: Path, wanted: list[list[int]], roster_port: Callable[[], int]
) -> None:
    """The first that comes ends the load; one told to stop drains, one killed costs no token."""
    with ThreadPoolExecutor(1) as pool:
        loaded = loading(path, key, pool)
        at = f"{LOOPBACK}:{roster_port()}"
        with net_hosts.EngineHost(key, join=at, name="one") as one, loaded() as model:
            fleet = fleet_of(model)
            assert list(fleet.members) == ["one"] and fleet.facts()[0].host == one.name
            with net_hosts.EngineHost(key, join=at, name="two") as two:
                until(lambda: states(fleet) == ["ready", "ready"], "the second has joined")
                assert answers(model, 16) == wanted
                two.process.send_signal(signal.SIGTERM)
                until(lambda: list(fleet.members) == ["one"], "the second has left")
                assert two.process.wait() == 0, "once its requests were done"
            with net_hosts.EngineHost(key, join=at, name="three") as three:
                until(lambda: states(fleet) == ["ready", "ready"], "the third has joined")
                with ThreadPoolExecutor(1) as asking:
                    reading = until_amid(
                        lambda: asking.submit(answers, model, 16),
                        lambda: fleet.members["three"].service.requests,
                        "it has requests",
                    )
                    three.process.kill()
                    assert reading.result() == wanted
            with net_hosts.EngineHost(key, join=at, name="four"):
                until(
                    lambda: "four" in fleet.members and fleet.members["four"].usable, "the fourth has joined"
                )
                one.process.kill()
                assert answers(model, 4) == wanted[:4]


def test_the_last_engine_may_be_lost_and_requests_wait_for_the_next(
    path: Path, key: Path, wanted: list[list[int]], roster_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("SATCHEL_DEVICE_TIMEOUT_MS", "3000")
    with ThreadPoolExecutor(2) as pool:
        loaded = loading(path, key, pool)
        at = f"{LOOPBACK}:{roster_port()}"
        with net_hosts.EngineHost(key, join=at, name="one") as one, loaded() as model:
            fleet = fleet_of(model)
            one.process.kill()
            until(lambda: not fleet.members, "its lease has ended")
            assert "no member" in model.trouble
            read = pool.submit(answers, model, 4).result
            until(lambda: fleet.waiting == 4, "they wait")
            with net_hosts.EngineHost(key, join=at, name="two"):
                assert read() == wanted[:4]


def test_a_load_that_waits_for_engines_can_be_given_up(
    path: Path, key: Path, roster_port: Callable[[], int]
) -> None:
    options = Options(slots=4, engine_listen=f"{LOOPBACK}:0", device_key=str(key))
    fleets: list[Fleet] = []
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        begin = Fleet.begin

        def kept(self: Fleet, progress: object) -> None:
            fleets.append(self)
            begin(self, None)

        patch.setattr(Fleet, "begin", kept)
        loaded = pool.submit(Model.load, path, options)
        until(lambda: fleets, "it waits")
        fleets[0].close()
        with pytest.raises(RequestError, match="the model was closed"):
            loaded.result()
