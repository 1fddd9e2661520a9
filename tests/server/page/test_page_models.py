"""The models on the page: their states, loading and unloading, and downloads from a test registry."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub_server
import pytest

import satchel.store.store
from satchel.runtime.api.options import Options
from satchel.server.settings import ServerSettings
from satchel.store.remote import Pace

pytestmark = pytest.mark.model
KEYS = ServerSettings(port=0, api_keys=["of a user"], admin_keys=["of an admin"])
# Small ranges, so that a file of two megabytes needs many.
PACE = Pace(workers=2, piece=1 << 17, block=1 << 15, patience=60.0, pause=0.01)
# The status of a request with the page's own key.
SENT = """async ([path, body]) => {
  const headers = { "Content-Type": "application/json", Authorization: "Bearer of a user" };
  return (await fetch(path, { method: "POST", headers, body: JSON.stringify(body) })).status;
}"""


@pytest.fixture
def hub(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    monkeypatch.setattr(satchel.store.store, "Pace", lambda: PACE)
    with hub_server.registries(tmp_path, monkeypatch) as running:
        running.put_ollama("library/small", "latest", tiny.read_bytes())
        running.put_repo("user/repo", {"model-Q8_0.gguf": tiny.read_bytes()})
        yield running


@pytest.fixture
def at(hub: hub_server.Hub, tiny: Path, serving_of: Any) -> Iterator[str]:
    broken = tiny.with_name("broken.gguf")
    broken.write_bytes(b"GGUF")
    with serving_of([tiny, broken], Options(slots=1), ServerSettings(port=0)) as address:
        yield address


@pytest.fixture
def tab(at: str, open_page: Callable[..., Any]) -> Any:
    """The page with its models open, of which one fails to load."""
    return opened(open_page(at, expected="the server responded with a status of 500").tab)


def listed(tab: Any, name: str) -> Any:
    """The row of a model that the server has."""
    return tab.locator("#models-dialog > .models li").filter(has_text=re.compile(f"^{re.escape(name)}"))


def coming(tab: Any) -> Any:
    """The rows of downloads."""
    return tab.locator("#models-dialog form li")


def opened(tab: Any) -> Any:
    """The page, with its models open."""
    tab.wait_for_selector("#thread > *")  # earlier key presses have no effect
    tab.keyboard.press("Control+.")
    tab.wait_for_selector("#models-dialog .model-name")
    return tab


def download(tab: Any, name: str) -> None:
    tab.fill("#download-name", f" {name} ")
    tab.keyboard.press("Enter")


@pytest.fixture
def halted(hub: hub_server.Hub, tiny: Path) -> hub_server.Served:
    """The file of the model "small", which stops coming in its middle."""
    path = f"/v2/library/small/blobs/sha256:{hub_server.sha(tiny.read_bytes())}"
    file = hub.files[path]
    file.free, file.step = len(file.data) // 2, 1 << 14
    return file


def test_models_are_loaded_and_unloaded(tab: Any, expect: Any) -> None:
    state = listed(tab, "tiny").locator(".model-state")
    expect(state).to_contain_text("loaded ·")
    listed(tab, "tiny").get_by_role("button", name="Unload tiny").click()
    expect(state).to_contain_text("unloaded ·")
    button = listed(tab, "tiny").get_by_role("button", name="Load tiny")
    button.click()
    expect(state).to_have_text(re.compile("^loaded"))
    expect(listed(tab, "tiny").get_by_role("button", name="Unload tiny")).to_be_focused()
    listed(tab, "broken").get_by_role("button", name="Load broken").click()
    expect(listed(tab, "broken").locator(".model-state")).to_contain_text("failed")
    expect(listed(tab, "broken").locator(".wrong")).to_contain_text("broken.gguf")
    expect(listed(tab, "broken").locator(".wrong")).not_to_contain_text("/")


def test_a_load_shows_how_far_it_is(page: Any, expect: Any) -> None:
    state = {"name": "big", "state": "loading", "percent": 40, "size": 5_300_000_000, "error": ""}
    found = {"time": 0, "admin": True, "models": [state]}
    page.route("**/dashboard/stats", lambda route: route.fulfill(json=found))
    opened(page)
    expect(listed(page, "big").locator(".model-state")).to_have_text("loading, 40 % · 5.3 GB")
    expect(listed(page, "big").get_by_role("progressbar")).to_have_js_property("value", 40)
    expect(listed(page, "big").get_by_role("button")).to_have_attribute("aria-disabled", "true")


def test_a_download_survives_a_reload(tab: Any, expect: Any, halted: hub_server.Served) -> None:
    download(tab, "small")
    half = re.compile(r"kB of 2 MB, [1-9]\d? %")
    expect(coming(tab).locator(".model-state")).to_have_text(half)
    tab.reload()
    expect(tab.locator("#open-models.running")).to_be_visible()
    opened(tab)
    expect(coming(tab).locator(".model-name")).to_have_text("small")
    expect(coming(tab).locator(".model-state")).to_have_text(half)
    halted.go.set()
    expect(listed(tab, "small").locator(".model-state")).to_contain_text("unloaded")
    expect(coming(tab)).to_have_count(0)
    expect(tab.locator("#model option[value=small]")).to_have_count(1)
    listed(tab, "small").get_by_role("button", name="Load small").click()
    expect(listed(tab, "small").locator(".model-state")).to_have_text(re.compile("^loaded"))
    tab.reload()
    opened(tab)
    expect(coming(tab)).to_have_count(0)


def test_a_cancelled_download_ends_and_goes_on_when_it_is_begun_again(
    tab: Any, expect: Any, hub: hub_server.Hub, halted: hub_server.Served, caplog: pytest.LogCaptureFixture
) -> None:
    download(tab, "small")
    # A tenth is more than the first block of each of two parts: that much is kept.
    expect(coming(tab).locator(".model-state")).to_have_text(re.compile(r"kB of 2 MB, [1-9]\d %"))
    coming(tab).get_by_role("button", name="Cancel small").click()
    expect(coming(tab)).to_have_count(0)
    expect(tab.locator("#download-name")).to_be_focused()
    tab.reload()
    opened(tab)
    expect(coming(tab)).to_have_count(0)
    before = len(hub.asked)
    halted.go.set()
    download(tab, "small")
    expect(listed(tab, "small")).to_be_visible()
    again = [had["range"] for path, had in hub.asked[before:] if "blobs" in path and "range" in had]
    assert "bytes=0-131071" not in again, "what came before is kept"
    gc.collect()  # a task whose error nobody read logs it here
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    "name", ["user/repo", "user/repo:Q8_0", "hf:user/repo", "https://huggingface.co/user/repo/tree/main"]
)
def test_a_repository_is_downloaded_by_name_or_address(
    tab: Any, expect: Any, hub: hub_server.Hub, name: str
) -> None:
    download(tab, name)
    expect(listed(tab, "hf:user/repo")).to_be_visible()
    assert "/api/models/user/repo" in hub.paths()


def test_a_download_that_fails_says_why(tab: Any, expect: Any, hub: hub_server.Hub, tiny: Path) -> None:
    download(tab, "nothing")
    expect(coming(tab).locator(".wrong")).to_contain_text("nothing")
    hub.put_ollama("library/nothing", "latest", tiny.read_bytes())
    coming(tab).get_by_role("button", name="Try again").click()
    expect(listed(tab, "nothing")).to_be_visible()
    expect(coming(tab)).to_have_count(0)


def test_without_the_role_models_are_only_shown(
    open_page: Callable[..., Any], tiny: Path, serving_of: Any, expect: Any
) -> None:
    with serving_of([tiny], Options(slots=1), KEYS) as address:
        tab = open_page(address, expected="40").tab
        expect(tab.locator("#key-dialog")).to_be_visible()  # earlier key presses have no effect
        tab.keyboard.type("of a user")
        tab.keyboard.press("Enter")
        expect(tab.locator("#model")).to_be_enabled()
        opened(tab)
        expect(listed(tab, "tiny").locator(".model-state")).to_contain_text("loaded")
        expect(listed(tab, "tiny").get_by_role("button")).to_have_count(0)
        expect(tab.locator("#download-name")).to_be_hidden()
        for path in ("/api/pull", "/models/load", "/models/unload"):
            assert tab.evaluate(SENT, [path, {"model": "tiny"}]) == 403
        tab.evaluate("sessionStorage['satchel.key'] = JSON.stringify('of an admin')")
        tab.reload()
        expect(tab.locator("#model")).to_be_enabled()
        opened(tab)
        expect(listed(tab, "tiny").get_by_role("button", name="Unload tiny")).to_be_visible()
        expect(tab.locator("#download-name")).to_be_visible()
