"""`satchel search`: the Hub's repositories and the store's own names, from a stand-in for the Hub."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import parse_qs

import pytest
from hub_server import Hub, Served

from satchel.cli.main import main
from satchel.store import Store
from satchel.store.search import search

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("environ")


def entry(repo: str, *files: str, **changes: Any) -> dict[str, Any]:
    return {"id": repo, "siblings": [{"rfilename": name} for name in ("README.md", *files)], **changes}


def run(capfd: Capture, *args: str) -> tuple[int, str, str]:
    code = main(["search", *args])
    return code, *capfd.readouterr()


def test_a_search_lists_repositories_with_the_line_to_pull_each(hub: Hub, capfd: Capture) -> None:
    files = [f"x-{quant}.gguf" for quant in ("Q2_K", "Q4_K_M", "Q8_0")]
    first = entry(
        "u/x-GGUF", *files, "mmproj-x.gguf", downloads=12345, gguf={"total": 1_235_814_432}, gated=False
    )
    second = entry("v/y-GGUF", "y-Q6_K.gguf", gated="manual")
    hub.put_json("/api/models", [first, second])
    code, out, err = run(capfd, "x", "y z", "-n", "7")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "On the Hugging Face Hub:",
        "  u/x-GGUF  1.2 B weights  12,345 downloads",
        "    Q2_K Q4_K_M Q8_0",
        "    satchel pull hf:u/x-GGUF:Q4_K_M",
        "  v/y-GGUF  gated: accept its licence first",
        "    Q6_K",
        "    satchel pull hf:v/y-GGUF:Q6_K",
    ]
    asked = parse_qs(hub.queries[-1])
    assert hub.paths() == ["/api/models"] and asked["search"] == ["x y z"] and asked["limit"] == ["7"]
    assert (asked["filter"], asked["sort"]) == (["gguf"], ["downloads"])


def test_the_line_that_it_prints_pulls(hub: Hub, model: bytes, capfd: Capture) -> None:
    hub.put_repo("u/r", {"r-Q5_0.gguf": model, "r-Q8_0.gguf": model})
    hub.put_json("/api/models", [entry("u/r", "r-Q5_0.gguf", "r-Q8_0.gguf")])
    line = run(capfd, "r")[1].splitlines()[-1]
    assert main(line.split()[1:]) == 0
    capfd.readouterr()
    hub.put_json("/api/models", [])
    code, out, err = run(capfd, "R", "q5")
    assert code == 0 and out.splitlines()[0] == "On this machine:" and "  hf:u/r:Q5_0  " in out
    assert "the Hub has no GGUF files for 'R q5'" in err


def test_offline_is_said_and_opens_no_connection(
    hub: Hub, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "satchel: note: offline, so the Hub was not searched\n"
    assert run(capfd, "satchel", "--offline")[2] == line
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = run(capfd, "satchel")
    assert (code, err, hub.asked) == (0, line, []) and "bundled" in out


def test_a_hub_that_cannot_be_reached_is_one_line(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", base)
        code, out, err = run(capfd, "satchel")
    assert code == 1 and "bundled" in out, "what this machine has is listed all the same"
    assert err.startswith(f"satchel: error: {base}: the connection failed") and err.count("\n") == 1
    assert "--offline searches this machine alone" in err and "expand" not in err


def test_the_token_goes_to_the_endpoint(hub: Hub, environ: dict[str, str]) -> None:
    hub.put_json("/api/models", [])
    assert search(["x"], 3, environ) == []
    assert search(["x"], 3, {**environ, "HF_TOKEN": "hf_secret"}) == []
    assert [headers.get("authorization") for _, headers in hub.asked] == [None, "Bearer hf_secret"]


@pytest.mark.parametrize(
    "body",
    [
        {"error": "no"},
        "text",
    ],
)
def test_what_is_no_list_is_refused(hub: Hub, capfd: Capture, body: Any) -> None:
    hub.put_json("/api/models", body)
    code, _, err = run(capfd, "x")
    assert code == 1 and "expected a list of repositories, got" in err


def test_malformed_entries_are_left_out(hub: Hub, environ: dict[str, str]) -> None:
    odd = [None, 7, {}, {"id": 3}, {"id": "a"}, {"id": "../b"}, {"id": "a/b:Q8_0"}, {"id": "a/b/c.gguf"}]
    loose = {
        "id": "a/b",
        "siblings": [None, {}, {"rfilename": 7}],
        "gguf": [],
        "downloads": True,
        "gated": None,
    }
    hub.put_json("/api/models", [*odd, {"id": "a/\x1b[2J"}, loose])
    [found] = search(["x"], 20, environ)
    assert (found.name, found.quants, found.weights, found.downloads) == ("hf:a/b", (), None, None)


def test_a_refusal_of_the_hub_is_told(hub: Hub, capfd: Capture) -> None:
    hub.files["/api/models"] = Served(status=401)
    code, _, err = run(capfd, "x")
    assert code == 1 and "the server says 401" in err and err.count("\n") == 1


def test_json(hub: Hub, capfd: Capture, store: Store) -> None:
    hub.put_json("/api/models", [entry("u/x", "x-Q8_0.gguf", downloads=3)])
    code, out, _ = run(capfd, "x", "--json")
    found = json.loads(out)
    assert code == 0 and found["hub"][0]["pull"] == "hf:u/x:Q8_0" and found["hub"][0]["downloads"] == 3
