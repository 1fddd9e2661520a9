"""The page's files over HTTP: types, ETags, security policy, and which need a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from satchel.runtime.api.options import Options
from satchel.runtime.sampling import NAMES
from satchel.server.page.files import STATIC, files
from satchel.server.settings import ServerSettings
from satchel.store.resolve import default_model

HTML = {"accept": "text/html,*/*;q=0.8"}
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
SENT = ["/", "/dashboard", "/page/js/main.js", "/page/css/base.css", "/page/icon.svg"]
NO_FILES = ["nothing.js", "../routes.py", "..%2froutes.py", "%2e%2e/routes.py", "js", "js/", ""]
OUTSIDE = re.compile(r"""(?:https?:)?//[\w.-]+\.\w+|@import|url\(""")
SOURCES = sorted(p for p in STATIC.rglob("*") if p.is_file())


def test_every_file_is_one_that_is_sent() -> None:
    assert {p.relative_to(STATIC).as_posix() for p in SOURCES} == set(files())


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_file_names_another_place_or_parses_markup(path: Path) -> None:
    text = path.read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("//")]
    found = [line for line in lines if OUTSIDE.search(line) and "www.w3.org" not in line]
    assert found == []
    assert not re.search(MARKUP, text)
    assert not re.search(r"""\sstyle=["']|\son\w+=["']|<style""", text)


@pytest.mark.model
@pytest.mark.parametrize("path", SENT)
def test_a_file_has_its_type_a_policy_and_a_tag(server: str, path: str) -> None:
    answer = httpx.get(f"{server}{path}", headers=HTML)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(TYPES.get(Path(path).suffix, "text/html"))
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["form-action"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    known = httpx.get(
        f"{server}{path}", headers={**HTML, "if-none-match": f'"x", W/{answer.headers["etag"]}'}
    )
    assert (known.status_code, known.content) == (304, b"")
    assert httpx.head(f"{server}{path}", headers=HTML).content == b""


@pytest.mark.model
def test_a_program_at_the_root_gets_the_line_it_waits_for(server: str) -> None:
    assert httpx.get(server, headers={"accept": "*/*"}).text == "Ollama is running"
    assert httpx.head(server).status_code == 200


@pytest.mark.model
@pytest.mark.parametrize("path", NO_FILES)
def test_what_is_no_file_is_missing(server: str, path: str) -> None:
    answer = httpx.get(f"{server}/page/{path}")
    assert answer.status_code == 404
    assert "error" in answer.json()


@pytest.mark.model
def test_the_options_are_those_of_the_library(server: str) -> None:
    sampling = httpx.get(f"{server}/page/options").json()["sampling"]
    assert set(sampling) == set(NAMES)
    assert sampling["temperature"] == {"low": 0, "high": 100, "default": 0.8}


@pytest.mark.model
def test_the_dashboard_counts_what_was_asked(server: str) -> None:
    before = httpx.get(f"{server}/dashboard/stats").json()["models"][0]
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}
    assert httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60).status_code == 200
    after = httpx.get(f"{server}/dashboard/stats").json()["models"][0]
    assert after["name"] == before["name"] and after["state"] == "loaded"
    made = before["stats"]["generated_tokens"] if "stats" in before else 0
    assert after["stats"]["generated_tokens"] >= made + 4
    assert after["stats"]["seconds"]["time_to_first_token"]["count"] >= 1
    assert after["stats"]["kv_free"] <= after["stats"]["kv_blocks"]


@pytest.mark.model
def test_a_models_history_outlasts_its_loads(serving_of: Any) -> None:
    def found(server: str) -> dict[str, Any]:
        model: dict[str, Any] = httpx.get(f"{server}/dashboard/stats").json()["models"][0]
        return model

    name = default_model().stem
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}
    with serving_of([default_model()], Options(slots=1), ServerSettings(port=0)) as server:
        for times in (1, 2):
            assert httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60).status_code == 200
            told = found(server)["stats"]
            assert httpx.post(f"{server}/models/unload", json={"model": name}).status_code == 200
            after = found(server)
            assert after["state"] == "unloaded" and "n_ctx" not in after
            kept = after["stats"]
            assert kept["generated_tokens"] == told["generated_tokens"] == 4 * times
            assert sum(kept["requests"].values()) == times
            metrics = httpx.get(f"{server}/metrics").text
            assert f'satchel_generated_tokens_total{{model="{name}"}} {4 * times}.0\n' in metrics
            assert f'satchel_time_to_first_token_seconds_count{{model="{name}"}} {times}.0\n' in metrics
            assert f'satchel_requests_total{{finish="length",model="{name}"}} {times}.0\n' in metrics
            assert f'satchel_kv_blocks{{model="{name}"}} 0.0\n' in metrics
            assert f'satchel_model_loaded{{model="{name}"}} 0.0\n' in metrics
            assert kept["seconds"]["time_to_first_token"]["count"] == times
            assert kept["running"] == kept["kv_blocks"] == kept["kv_free"] == 0


@pytest.fixture(scope="module")
def keyed_server(serving_of: Any) -> Iterator[str]:
    with serving_of(
        [default_model()], Options(slots=1), ServerSettings(port=0, api_keys=["open sesame"])
    ) as address:
        yield address


@pytest.mark.model
def test_with_keys_the_page_is_open_and_what_it_shows_is_not(keyed_server: str) -> None:
    for path in ("/", "/dashboard", "/page/js/main.js", "/page/options"):
        assert httpx.get(f"{keyed_server}{path}", headers=HTML).status_code == 200
    assert httpx.post(f"{keyed_server}/page/pdf", json={"data": ""}).status_code == 401
    assert httpx.post(f"{keyed_server}/page/formulas", json={"formulas": []}).status_code == 401
    for path in ("/dashboard/stats", "/v1/models"):
        assert httpx.get(f"{keyed_server}{path}").status_code == 401
        headers = {"authorization": "Bearer open sesame"}
        assert httpx.get(f"{keyed_server}{path}", headers=headers).status_code == 200
