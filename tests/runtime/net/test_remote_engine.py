"""An engine of another host (`satchel engine`, --engine-host): the same answers as here, a host or a process
that is lost, and servers that survive what clients send.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import net_hosts
import numpy as np
import pytest
from net_hosts import LOOPBACK, PATIENT
from tiny_file import write_model
from waiting import until

from satchel import Model, Options
from satchel.errors import DeviceError, RequestError, SatchelError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.recovering import RECONNECT_NAME
from satchel.runtime.kv.identity import weights_identity
from satchel.runtime.net import engine_server
from satchel.runtime.net.address import Address
from satchel.runtime.net.engine_server import EngineServer, Offered
from satchel.runtime.net.key import make_key, read_key
from satchel.runtime.net.link import Link, LinkError, greet
from satchel.runtime.net.remote_process import protocol, send_whole
from satchel.runtime.net.server import Lent
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.worker.service import WorkerService
from satchel.runtime.worker.wire import encode

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are not sent there")
WARM = Sampling(temperature=1.5, top_k=0, seed=11)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("remote engine") / "tiny.gguf")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_hosts.key_in(tmp_path_factory.mktemp("key"))


def served(key: Path, port: int = 0, engines: int = 4, folders: tuple[Path, ...] = ()) -> EngineServer:
    offered = Offered(Lent((), folders), Options(device="cpu", threads=1), engines)
    return EngineServer(Address(LOOPBACK, port), read_key(key), offered, PATIENT)


@pytest.fixture(scope="module")
def server(key: Path) -> Iterator[EngineServer]:
    with served(key) as found:
        yield found


@pytest.fixture(autouse=True)
def vacant(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves the server they share without a session."""
    yield
    if "server" in request.fixturenames:
        shared: EngineServer = request.getfixturevalue("server")
        until(lambda: not shared.sessions, "all sessions have ended")


def there(path: Path, key: Path, server: EngineServer, **options: Any) -> WorkerModel:
    """The model with its engine at the server."""
    host = f"{LOOPBACK}:{server.port}"
    model = Model.load(path, Options(slots=4, engine_host=host, device_key=str(key)), **options)
    assert isinstance(model, WorkerModel)
    return model


def prompts(count: int, length: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [[int(t) for t in rng.integers(100, 250, length)] for _ in range(count)]


def answers(model: Model, asked: list[list[int]], most: int = 24) -> list[list[int]]:
    """All at once, in threads."""

    def one(ids: list[int]) -> list[int]:
        reply = model.generate(ids, max_tokens=most, sampling=WARM, ignore_eos=True)
        reply.read()
        return reply.ids

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, asked))


def said(model: Model) -> list[int]:
    reply = model.generate("Hello", max_tokens=4, sampling=GREEDY)
    reply.read()
    return reply.ids


@pytest.fixture(scope="module")
def hello_said(path: Path) -> list[int]:
    with Model.load(path, threads=1) as model:
        return said(model)


@pytest.fixture(scope="module")
def wanted(path: Path) -> list[list[int]]:
    with Model.load(path, slots=4, threads=1) as model:
        return answers(model, prompts(5), 60)


def test_answers_and_methods_are_those_of_an_engine_here(path: Path, key: Path, server: EngineServer) -> None:
    asked = prompts(6)
    with Model.load(path, slots=4, threads=1) as here, there(path, key, server) as far:
        assert answers(far, asked) == answers(here, asked)
        assert far.context == here.context and far.cache == here.cache
        np.testing.assert_array_equal(far.logits(asked[0]), here.logits(asked[0]))
        assert far.stats().requests["length"] >= 6
        assert f"an engine of {LOOPBACK}:{server.port}" in repr(far)
        assert far.worker.pid == 0 and far.sandbox
        assert said(far) == said(here)


def test_a_killed_engine_is_not_noticed(
    path: Path, key: Path, server: EngineServer, wanted: list[list[int]]
) -> None:
    """kill -9 of the process on the host, during answers: none loses, repeats or changes a token."""
    with there(path, key, server) as far:
        replies = [far.generate(ids, max_tokens=60, sampling=WARM, ignore_eos=True) for ids in prompts(5)]
        for reply in replies:
            reply.start()
        next(replies[0])
        (session,) = server.sessions
        assert isinstance(session, engine_server.EngineSession) and session._process is not None
        os.kill(session._process.pid, signal.SIGKILL)
        for reply in replies:
            reply.read()
        assert [r.ids for r in replies] == wanted
        assert far.stats().worker_restarts == 1


def test_a_host_that_comes_back_goes_on(path: Path, key: Path, wanted: list[list[int]]) -> None:
    first = served(key)
    try:
        with there(path, key, first) as far:
            replies = [far.generate(ids, max_tokens=60, sampling=WARM, ignore_eos=True) for ids in prompts(5)]
            for reply in replies:
                reply.start()
            next(replies[0])
            first.close()
            with served(key, first.port):
                for reply in replies:
                    reply.read()
                assert [r.ids for r in replies] == wanted
    finally:
        first.close()


def test_a_host_that_stays_away_is_an_error(path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECONNECT_NAME, "0.01")
    server = served(key)
    with there(path, key, server) as far:
        server.close()
        with pytest.raises(DeviceError, match=f"on {LOOPBACK}:{server.port} could not be reached"):
            while True:
                said(far)
    with pytest.raises(DeviceError, match="start `satchel engine --listen` there"):
        there(path, key, server)


def test_the_end_of_a_client_ends_its_engine(path: Path, key: Path, server: EngineServer) -> None:
    with there(path, key, server) as far:
        said(far)
        (session,) = server.sessions
    until(lambda: not server.sessions, "the session has ended")
    assert isinstance(session, engine_server.EngineSession)
    assert session.over.is_set()


def test_one_engine_for_one_program(path: Path, key: Path, hello_said: list[int]) -> None:
    with served(key, engines=1) as server, there(path, key, server) as far:
        with pytest.raises(DeviceError, match="another program has the engine of this host"):
            there(path, key, server)
        assert said(far) == hello_said


def test_a_host_that_another_program_has_is_asked_now_and_then(
    path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    monkeypatch.setattr(WorkerService, "_pause", lambda service, seconds: pauses.append(seconds))
    with served(key, engines=1) as held, served(key) as free:
        engines = ",".join(f"{LOOPBACK}:{server.port}" for server in (held, free))
        with there(path, key, held):
            model = Model.load(path, slots=4, engine_host=engines, device_key=str(key))
            assert isinstance(model, WorkerModel) and model.fleet is not None
            until(lambda: len(pauses) >= 12, "it has been asked for some times")
        with model:
            members = model.fleet.members
            until(lambda: all(m.state == "ready" for m in members.values()), "the host can be had")
            assert pauses[:6] == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
            assert model.fleet.restarts == 0, "there was no process to lose"
            told = [r.getMessage() for r in caplog.records if "another program has the engine" in r.message]
            assert len(told) <= 5, "not once a try: by the load, that it joins later, and by the member once"


def test_saved_conversations_stay_at_home(
    path: Path, key: Path, server: EngineServer, tmp_path: Path, hello_said: list[int]
) -> None:
    with there(path, key, server) as far:
        with pytest.raises(RequestError, match="need an engine of the program's own host"):
            far.save_state(tmp_path / "a.state", "Hello")
        assert not list(tmp_path.iterdir())
        assert said(far) == hello_said


def test_another_file_of_that_name_is_refused(path: Path, key: Path, tmp_path: Path) -> None:
    write_model(tmp_path / path.name, "qwen2")
    with served(key, folders=(tmp_path,)) as server, pytest.raises(DeviceError, match="has other weights"):
        there(path, key, server)
    empty = tmp_path / "empty"
    empty.mkdir()
    with served(key, folders=(empty,)) as server, pytest.raises(DeviceError, match="not on this host"):
        there(path, key, server)


def test_a_wrong_key_is_refused(path: Path, server: EngineServer, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    with pytest.raises(DeviceError, match="it refused the key"):
        there(path, tmp_path / "other", server)
    with pytest.raises(RequestError, match="no key: give the file"):
        Model.load(path, engine_host=f"{LOOPBACK}:{server.port}")
    with pytest.raises(RequestError, match="expected HOST or HOST:PORT"):
        Model.load(path, engine_host="a b", device_key=str(tmp_path / "other"))


# ---- what a client that holds the key may send


def linked(key: Path, server: EngineServer) -> Link:
    import socket

    return greet(socket.create_connection((LOOPBACK, server.port)), read_key(key), PATIENT)


def last_words(link: Link) -> str:
    """Why the server ended the session; "" if it only closed the connection."""
    try:
        while True:
            message, _ = link.receive()
            if "over" in message:
                return str(message["over"])
    except LinkError:
        return ""


def hello(path: Path) -> dict[str, Any]:
    with open_gguf(path) as gguf:
        return {"hello": protocol(), "identity": weights_identity(gguf), "stamps": [[1]]}


def opening(path: Path, **changes: Any) -> dict[str, Any]:
    return {"open": str(path), "options": encode(replace(Options(), **changes)), "beat": 1.0, "again": False}


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        ({"hello": "x"}, None, "another version of Satchel"),
        ({"stamps": 3}, None, "expected the stamps of a file"),
        ({}, {"submit": 1}, "expected a model to open"),
        ({}, {"options": None}, "expected options"),
        ({}, {"options": {"$": "Options", "v": {"context": []}}}, "options that cannot be read"),
        ({}, {"options": {"$": "Path", "v": "/etc/passwd"}}, "options that cannot be read|expected options"),
        ({"identity": "0" * 64}, {}, "has other weights"),
        ({}, {"open": "/etc/passwd"}, "not on this host"),
    ],
)
def test_what_a_client_sends_wrongly_is_told(
    path: Path, key: Path, server: EngineServer, first: Any, then: Any, why: str
) -> None:
    import re

    with linked(key, server) as link:
        link.send({**hello(path), **first})
        if then is not None:
            send_whole(link, then if "submit" in then else {**opening(path), **then})
        assert re.search(why, last_words(link))
    until(lambda: not server.sessions, "the session has ended")


@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": ("/srv/x.gguf",)},
        {"control_vectors": ("/srv/x.gguf",)},
    ],
)
def test_no_path_of_the_options_is_opened(path: Path, key: Path, server: EngineServer, changes: Any) -> None:
    with linked(key, server) as link:
        link.send(hello(path))
        send_whole(link, opening(path, **changes))
        assert "which opens no other file" in last_words(link)


def test_the_sandbox_and_the_devices_are_the_hosts_choice(
    path: Path, key: Path, server: EngineServer
) -> None:
    asked = opening(path, sandbox=False, threads=7, device="cuda:5", chat_template="chatml")
    with linked(key, server) as link:
        link.send(hello(path))
        send_whole(link, asked)
        while "ready" not in (message := link.receive()[0]):
            assert "failed" not in message and "over" not in message, message
        assert message["stamps"] == [[1]] and not message["sandbox"].startswith("none: it is switched off")
        (session,) = server.sessions
        assert isinstance(session, engine_server.EngineSession)
        _, options = session._model(asked, hello(path)["identity"])
        assert (options.threads, options.device, options.sandbox, options.chat_template) == (
            1,
            "cpu",
            True,
            "",
        )


@pytest.mark.parametrize("text", [b"[1]", b"{", b"[" * 5000, b"\xff\xfe"])
def test_messages_that_are_none_end_the_session(
    path: Path, key: Path, server: EngineServer, text: bytes
) -> None:
    with linked(key, server) as link:
        link.send(hello(path))
        link.send({"piece": 0}, text)
        last_words(link)
    until(lambda: not server.sessions, "the session has ended")


def test_a_message_is_bounded(
    path: Path, key: Path, server: EngineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_server, "MOST_MESSAGE", 1000)
    with linked(key, server) as link:
        link.send(hello(path))
        link.send({"piece": 1}, b"x" * 2000)
        last_words(link)
    until(lambda: not server.sessions, "the session has ended")


def test_a_second_model_ends_the_session(path: Path, key: Path, server: EngineServer) -> None:
    with linked(key, server) as link:
        link.send(hello(path))
        send_whole(link, opening(path))
        send_whole(link, opening(path))
        last_words(link)
    until(lambda: not server.sessions, "the session has ended")


def test_long_requests_come_in_pieces(
    path: Path, key: Path, server: EngineServer, hello_said: list[int]
) -> None:
    """A request of more than a frame may hold: the biases of many tokens."""
    with there(path, key, server) as far:
        with pytest.raises(SatchelError):
            far.generate([1] * 400_000, max_tokens=1).read()
        assert said(far) == hello_said


def test_what_is_sent_has_a_digest() -> None:
    assert len(protocol()) == 64 and json.loads(json.dumps(protocol())) == protocol()


def test_the_commands(path: Path, key: Path, hello_said: list[int]) -> None:
    """`satchel engine` in a process of its own, and its end by a signal."""
    with net_hosts.EngineHost(key) as host:
        model = Model.load(path, engine_host=host.name, device_key=str(key))
        with model:
            assert said(model) == hello_said
        host.process.terminate()
        assert host.process.wait() == 0


def test_engines_of_two_hosts_share_requests_and_one_may_be_lost(
    path: Path, key: Path, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECONNECT_NAME, "0.01")
    with served(key) as first, served(key) as second:
        hosts = ",".join(f"{LOOPBACK}:{s.port}" for s in (first, second))
        model = Model.load(path, slots=4, engine_host=hosts, device_key=str(key))
        assert isinstance(model, WorkerModel) and model.fleet is not None
        with model:
            assert f"engines of {hosts}" in repr(model) and model.slots == 8
            replies = [
                model.generate(ids, max_tokens=60, sampling=WARM, ignore_eos=True) for ids in prompts(5)
            ]
            for reply in replies:
                reply.start()
            next(replies[0])
            first.close()
            for reply in replies:
                reply.read()
            assert [r.ids for r in replies] == wanted
            facts = {member.host: member for member in model.fleet.facts()}
            assert list(facts) == hosts.split(",") and facts[hosts.split(",")[1]].state == "ready"
            with served(key, first.port):
                members = model.fleet.members.values()
                until(lambda: all(m.state == "ready" for m in members), "the host is back in the fleet")
    with pytest.raises(RequestError, match="name more hosts"):
        Model.load(path, engine_host=hosts, device_key=str(key), replicas=2)


@pytest.mark.parametrize("away", [0, 1])
def test_a_host_that_is_not_there_at_the_start_joins_later(
    away: int, path: Path, key: Path, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECONNECT_NAME, "0.01")
    with served(key) as gone:
        pass
    with served(key) as there_now:
        hosts = [there_now.port, there_now.port]
        hosts[away] = gone.port
        engines = ",".join(f"{LOOPBACK}:{port}" for port in hosts)
        model = Model.load(path, slots=4, engine_host=engines, device_key=str(key))
        assert isinstance(model, WorkerModel) and model.fleet is not None
        with model:
            assert sorted(m.state for m in model.fleet.members.values()) == ["joining", "ready"]
            found = [model.generate(ids, max_tokens=60, sampling=WARM, ignore_eos=True) for ids in prompts(5)]
            for reply in found:
                reply.read()
            assert [reply.ids for reply in found] == wanted
            with served(key, gone.port):
                members = model.fleet.members
                until(lambda: all(m.state == "ready" for m in members.values()), "the host has come")
                assert {m.cache for m in (x.service for x in members.values())} == {model.fleet.cache}
    with pytest.raises(DeviceError, match="could not be reached"):
        Model.load(path, engine_host=f"{LOOPBACK}:{gone.port},{LOOPBACK}:{gone.port}", device_key=str(key))
