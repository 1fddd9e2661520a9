"""pull, list, show, cp, rm, ps and stop on the command line, and -m with a name of the store."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub, Served
from tiny_file import write_model
from waiting import SECONDS, until

from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.store.journal import read_journal
from satchel.store.lock import guard
from satchel.store.resolve import default_model
from satchel.store.running import ServerClient

Capture = pytest.CaptureFixture[str]
SATCHEL = [sys.executable, *(["-S"] if sys.flags.no_site else []), "-m", "satchel"]
pytestmark = pytest.mark.usefixtures("environ")


def run(capfd: Capture, *args: str | Path) -> tuple[int, str, str]:
    code = main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.fixture
def pulled(hub: Hub, model: bytes, capfd: Capture) -> Path:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    code, out, err = run(capfd, "pull", "hf:u/r")
    assert (code, err) == (0, "")
    return Path(out.removesuffix("\n"))


def test_list_shows_what_was_pulled(pulled: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "list")
    head, line, bundled = out.splitlines()
    assert code == 0 and head.split() == ["NAME", "SIZE", "PLACE", "MODIFIED"]
    assert line.split()[:4] == ["hf:u/r:Q4_K_M", f"{pulled.stat().st_size / 1e3:.1f}", "kB", "store"]
    assert "bundled" in bundled.split()
    found = json.loads(run(capfd, "list", "--json")[1])[0]
    assert found["paths"] == [str(pulled)] and found["licence"] == "mit" and len(found["sha256"]) == 64
    assert json.loads(run(capfd, "list", "none", "--json")[1]) == []


def test_the_bundled_model_has_a_name_that_is_taken_everywhere(capfd: Capture) -> None:
    [entry] = json.loads(run(capfd, "list", "--json")[1])
    name = entry["name"]
    assert (entry["place"], entry["paths"]) == ("bundled", [str(default_model())])
    for command in ("show", "inspect"):
        code, out, err = run(capfd, command, name)
        assert (code, err) == (0, "") and out
    code, out, _ = run(capfd, "tokenize", "-m", name, "hi")
    assert code == 0 and out
    assert "it is not removed" in run(capfd, "rm", name)[2]


def test_hf_pulls_and_then_runs(
    hub: Hub, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": write_model(tmp_path / "tiny.gguf").read_bytes()})
    line = ("run", "-hf", "u/r:q4_k_m", "-no-cnv", "-n", "2", "--temp", "0", "-c", "64", "hi")
    code, first, err = run(capfd, *line)
    assert (code, err) == (0, "") and any("resolve" in path for path in hub.paths())
    hub.asked.clear()
    assert run(capfd, *line)[:2] == (0, first) and hub.asked == []
    code, _, err = run(capfd, "run", "-hf", "u/none", "--offline", "hi")
    assert code == 1 and "offline, and not in the store" in err and hub.asked == []


def test_show_says_what_a_model_is(pulled: Path, capfd: Capture) -> None:
    code, out, _ = run(capfd, "show", "r")
    lines = dict(line.strip().split("  ", 1) for line in out.splitlines()[1:])
    assert code == 0 and out.startswith("hf:u/r:Q4_K_M\n")
    assert lines["architecture"].strip() == "llama" and lines["context length"].strip() == "64"
    found = json.loads(run(capfd, "show", "r", "--json")[1])
    assert (found["quantization"], found["licence"], found["embedding"]) == ("Q8_0", "mit", 32)
    assert found["capabilities"] == ["completion"]
    assert run(capfd, "show", "r", "--license")[1] == "mit\n"
    assert "add_generation_prompt" in run(capfd, "show", "r", "--template")[1]


def test_show_of_the_bundled_model(bundled_model: Path, capfd: Capture) -> None:
    found = json.loads(run(capfd, "show", bundled_model, "--json")[1])
    assert found["parameters"] > 30e6 and found["capabilities"][0] == "completion" and found["context"] > 0


@pytest.mark.parametrize("command", [["inspect"], ["hash"], ["verify"], ["tokenize", "hi", "-m"]])
def test_a_name_is_a_model_in_every_command(command: list[str], pulled: Path, capfd: Capture) -> None:
    by_name, by_path = run(capfd, *command, "hf:u/r"), run(capfd, *command, pulled)
    assert by_name[0] == by_path[0] == 0 and by_name[1] == by_path[1]


@pytest.mark.parametrize("command", ["run", "bench", "perplexity", "embed", "chat"])
def test_a_changed_file_is_refused_in_one_line(command: str, pulled: Path, capfd: Capture) -> None:
    pulled.write_bytes(pulled.read_bytes() + b"x")
    code, out, err = run(capfd, command, "-m", "hf:u/r")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith("satchel: error: hf:u/r:Q4_K_M: ") and "changed since it was pulled" in err


def test_the_environment_names_a_model(pulled: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_MODEL", "hf:none/none")
    assert "hf:none/none: not in the store" in run(capfd, "run", "hi")[2]


def test_cp_and_rm(pulled: Path, capfd: Capture) -> None:
    assert run(capfd, "cp", "r", "mine") == (0, "mine is r\n", "")
    assert run(capfd, "rm", "hf:u/r", "mine") == (0, "removed hf:u/r:Q4_K_M\nremoved mine\n", "")
    assert not pulled.exists() and run(capfd, "rm", "mine")[0] == 1
    assert run(capfd, "rm")[0] == 2


def test_rm_of_what_cut_pulls_left(pulled: Path, capfd: Capture) -> None:
    root, folder = pulled.parents[3], pulled.parents[1] / "cut"
    left = folder / ".incoming" / "c-Q8_0.gguf"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(1 << 20))
    with guard(root, (folder / left.name).relative_to(root).as_posix()):  # like a pull in progress
        assert run(capfd, "rm", "--unfinished") == (0, "removed 0 B of unfinished downloads\n", "")
    assert run(capfd, "rm", "--unfinished")[1] == "removed 1.0 MB of unfinished downloads\n"
    assert not folder.exists() and pulled.exists()


def test_pull_without_a_name_gets_what_the_lock_file_has(pulled: Path, capfd: Capture) -> None:
    pulled.unlink()
    assert run(capfd, "pull") == (0, f"{pulled}\n", "") and pulled.exists()


def test_pull_offline(pulled: Path, hub: Hub, capfd: Capture) -> None:
    hub.asked.clear()
    assert run(capfd, "pull", "--offline", "hf:u/r") == (0, f"{pulled}\n", "")
    assert run(capfd, "pull", "--offline", "hf:u/x")[0] == 1 and hub.asked == []


def test_pull_shows_how_far_it_is_on_a_terminal(hub: Hub, model: bytes, capfd: Capture) -> None:
    hub.put_repo("u/r", {"r-Q4_K_M.gguf": model})
    main_end, other_end = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    child = subprocess.Popen([*SATCHEL, "pull", "hf:u/r"], stderr=other_end, stdout=subprocess.PIPE, env=env)
    os.close(other_end)
    shown = b""
    try:
        while data := os.read(main_end, 4096):
            shown += data
    except OSError:  # the other end has closed
        pass
    assert child.wait() == 0 and child.stdout is not None
    child.stdout.close()
    os.close(main_end)
    assert b"r-Q4_K_M.gguf" in shown and b"kB" in shown and b"0:00:0" in shown


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_was_ended_goes_on(
    end: signal.Signals, hub: Hub, bundled_model: Path, environ: dict[str, str], capfd: Capture
) -> None:
    data = bundled_model.read_bytes()
    hub.put_repo("u/r", {"r.gguf": data})
    served = next(file for path, file in hub.files.items() if "resolve" in path)
    served.free = 12 << 20
    child = subprocess.Popen([*SATCHEL, "pull", "hf:u/r"])

    def well_begun() -> bool:
        assert child.poll() is None
        known = map(read_journal, Path(environ["SATCHEL_MODELS"]).rglob("*.journal"))
        return any(found is not None and found[1].total >= 8 << 20 for found in known)

    until(well_begun, "8 MiB are kept")
    child.send_signal(end)
    assert child.wait(SECONDS) == (130 if end == signal.SIGINT else -end)
    served.go.set()
    assert [entry["place"] for entry in json.loads(run(capfd, "list", "--json")[1])] == ["bundled"]
    hub.asked.clear()
    code, out, _ = run(capfd, "pull", "hf:u/r")
    assert code == 0 and Path(out.strip()).read_bytes() == data
    spans = (headers["range"][6:].split("-") for path, headers in hub.asked if "range" in headers)
    assert sum(int(last) - int(first) + 1 for first, last in spans) <= len(data) - (8 << 20) + 1


def test_two_programs_that_pull_at_once(hub: Hub, model: bytes) -> None:
    hub.put_repo("u/r", {"r.gguf": model})
    next(file for path, file in hub.files.items() if "resolve" in path).pause = 0.2
    pulls = [subprocess.Popen([*SATCHEL, "pull", "hf:u/r"], stdout=subprocess.PIPE) for _ in range(2)]
    said = [pull.communicate()[0] for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0, 0] and said[0] == said[1]
    ranges = [headers["range"] for path, headers in hub.asked if "resolve" in path]
    assert len(ranges) == len(set(ranges)) == 2


def test_ps_and_stop_ask_a_server(hub: Hub, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = {
        "name": "tiny\x1b[2J",
        "size": 1234567,
        "context_length": 64,
        "kv_tokens": 512,
        "kv_tokens_used": 96,
        "expires_at": "2026-01-01T00:00:00Z",
    }
    stays = {"name": "m:latest", "expires_at": "2319-02-18T05:41:04.123456789Z"}
    hub.put_json("/api/ps", {"models": [loaded, stays]})
    hub.put_json("/api/generate", {"done": True})
    monkeypatch.setenv("SATCHEL_HOST", hub.url)
    code, out, _ = run(capfd, "ps")
    assert code == 0 and "\x1b" not in out and "KV CACHE" in out
    assert out.splitlines()[-2].split()[-5:] == ["1.2", "MB", "64", "96/512", "2026-01-01T00:00:00"]
    assert "2319" not in out and out.splitlines()[-1].split() == ["m:latest", "forever"]
    assert json.loads(run(capfd, "ps", "--json", "--host", hub.url.removeprefix("http://"))[1])[0] == loaded
    assert run(capfd, "stop", "m") == (0, "stopped m\n", "")
    assert hub.posted == [{"model": "m", "keep_alive": 0, "stream": False}]
    code, _, err = run(capfd, "stop", "other")
    assert code == 1 and "other: not loaded at" in err


def test_ps_where_no_server_runs(hub: Hub, capfd: Capture) -> None:
    hub.put_json("/api/ps", {"models": 3})
    hub.files["/x/api/ps"] = Served(status=401)
    for host, said in (
        ("127.0.0.1:1", "is `satchel serve` running?"),
        (hub.url, "expected a list of models"),
        (f"{hub.url}/x", "wants an API key"),
        (f"{hub.url}/y", "the server says 404"),
    ):
        code, _, err = run(capfd, "ps", "--host", host)
        assert code == 1 and said in err and len(err.splitlines()) == 1


def test_a_servers_key_is_sent(hub: Hub) -> None:
    hub.put_json("/api/ps", {"models": []})
    assert ServerClient.of({"SATCHEL_HOST": hub.url, "SATCHEL_API_KEY": "k"}).models() == []
    assert hub.asked[0][1]["authorization"] == "Bearer k"


def test_a_name_is_a_model_of_a_server(pulled: Path, tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    from satchel.server.catalog import _beside

    config = tmp_path / "satchel.toml"
    assert _beside(config, "hf:u/r") == pulled
    assert _beside(config, "none.gguf") == Path("none.gguf")
    with pytest.raises(RequestError, match=r"hf:u/x: not in the store"):
        _beside(config, "hf:u/x")
