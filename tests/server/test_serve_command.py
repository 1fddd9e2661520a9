"""The command `satchel serve`: prints its address, reloads its configuration, drains, stops."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from waiting import SECONDS, joined, ready, until

from satchel.cli.main import main
from satchel.runtime.sandbox.enter import lacking

pytest.importorskip("fastapi")
LACKS = lacking()

ASK = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 200, "ignore_eos": True}
CHAT = "/v1/chat/completions"
EMPTY = Path(__file__).parent / "no such folder"


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "satchel", *args]


def running(address: str) -> float:
    """The number of requests in the engine."""
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("satchel_running{"))


@contextmanager
def started(*args: str, config: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program and its address."""
    more = ["--config", str(config)] if config else []
    process = subprocess.Popen(
        command("serve", "--port", "0", *args, *more),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | dict.fromkeys(("HOME", "SATCHEL_MODELS"), str(EMPTY)),  # hides this machine's store
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    try:
        spoke = select.select([process.stderr], [], [], SECONDS)[0]
        assert spoke, f"the server said nothing within {SECONDS:g} s"
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield process, found[0]
    finally:
        process.kill()
        process.wait(SECONDS)
        process.stderr.close()


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_under_way_is_finished_before_it_stops(number: int) -> None:
    with started("--drain", str(SECONDS)) as (process, address):
        ready(address)
        got: list[str] = []

        def ask() -> None:
            with httpx.stream(
                "POST", address + CHAT, json=ASK | {"stream": True, "max_tokens": 60}, timeout=60
            ) as r:
                got.extend(r.iter_lines())

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: got, "the first piece of the answer")
        process.send_signal(number)
        joined(asking, "the request under way")
        assert got[-2:] == ["data: [DONE]", ""]
        assert process.wait(SECONDS) in (0, 130, -number)
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)


@pytest.mark.model
def test_what_takes_too_long_is_cut() -> None:
    with started("--drain", "1") as (process, address):
        ready(address)
        ends: list[str] = []

        def ask() -> None:
            try:
                body = ASK | {"max_tokens": 1900, "n": 8}
                ends.append(httpx.post(address + CHAT, json=body, timeout=SECONDS).text)
            except httpx.HTTPError as error:
                ends.append(type(error).__name__)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: running(address), "the request is under way")
        process.terminate()
        process.wait(SECONDS)
        joined(asking, "the request that was cut")
        assert "finish_reason" not in ends[0], "it is no whole answer"


@pytest.mark.model
def test_sighup_reads_the_configuration_again(bundled_model: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[serve]\nparallel = 2\n[models.one]\npath = "{bundled_model}"\n')
    with started(config=config) as (process, address):
        ready(address)

        def names() -> list[str]:
            return [m["id"] for m in httpx.get(f"{address}/v1/models").json()["data"]]

        assert names() == ["one"]
        config.write_text(config.read_text() + f'[models.two]\npath = "{bundled_model}"\n')
        process.send_signal(signal.SIGHUP)
        until(lambda: names() == ["one", "two"], "both models are known")
        config.write_text("[models.two\n")
        assert httpx.post(f"{address}/config/reload").status_code == 400
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any("the configuration was not read again" in line for line in process.stderr)
        assert names() == ["one", "two"]
        answer = httpx.post(address + CHAT, json=ASK | {"model": "two", "max_tokens": 2}, timeout=60)
        assert answer.json()["model"] == "two"


@pytest.mark.model
def test_logs_are_json_for_programs() -> None:
    with started("--log-json", "--log-level", "info") as (process, address):
        ready(address)
        httpx.post(address + CHAT, json=ASK | {"max_tokens": 2}, timeout=60)
        process.terminate()
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr]
        told = next(line for line in lines if line.get("route") == "/v1/chat/completions")
        assert (told["status"], told["completion_tokens"], told["finish"]) == (200, 2, "length")


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (("none.gguf",), "none.gguf", 1),
        (("--port", "70000"), "--port", 2),
        (("--log-level", "loud"), "expected debug, info, warning, error, got loud", 2),
        (("--ssl-cert-file", "x.pem"), "give both", 2),
        (("--api-key-file", os.devnull), "no key stands in it", 1),
    ],
)
def test_wrong_use_is_one_line(
    args: tuple[str, ...],
    said: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("satchel.server.log.set_up", lambda *_: None)  # it would keep this test's stderr
    monkeypatch.setattr("satchel.server.run.listen", lambda *_: pytest.fail("a server is started"))
    assert main(["serve", *args]) == code
    told = capfd.readouterr().err
    assert said in told and told.count("\n") == 1


def test_an_address_that_is_open_to_others_without_a_key_is_one_line() -> None:
    done = subprocess.run(
        command("serve", "--host", "0.0.0.0"), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 1
    assert "give a key with --api-key" in done.stderr and done.stderr.count("\n") == 1


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            command("serve", "--port", port), capture_output=True, text=True, timeout=SECONDS
        )
    assert done.returncode == 1
    assert "take another --port" in done.stderr


def test_small_answers_are_not_held_back() -> None:
    """Nagle's algorithm delays an answer by 40 ms; asyncio turns it off only for sockets of IPPROTO_TCP."""
    import socket

    from satchel.server.run import listen
    from satchel.server.settings import ServerSettings

    with listen("127.0.0.1", 0, ServerSettings()) as bound:
        assert bound.proto == socket.IPPROTO_TCP


@pytest.mark.model
@pytest.mark.parametrize(
    ("args", "table", "said"),
    [
        pytest.param((), "", LACKS, marks=pytest.mark.nightly),
        (("--worker", "thread"), "", "no sandbox: with --worker thread"),
        pytest.param(("--no-sandbox",), "", "", marks=pytest.mark.nightly),
        pytest.param((), "sandbox = false", "", marks=pytest.mark.nightly),
    ],
)
def test_a_sandbox_that_is_missing_is_said_once(
    tmp_path: Path, args: tuple[str, ...], table: str, said: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[serve]\n{table}\n")
    with started(*args, config=config) as (process, address):
        ready(address)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        lines = [line for line in process.stderr.read().splitlines() if "sandbox" in line]
    assert len(lines) == bool(said) and all(said in line for line in lines)
