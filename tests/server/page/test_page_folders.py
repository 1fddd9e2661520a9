"""Folders of conversations: made, renamed, removed, filled by menu and by keyboard, kept, and exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_talk import ANSWER, export, named, new_folder

pytestmark = pytest.mark.model
# A conversation as the page's second database version kept it.
OLDER = """() => new Promise((resolve, reject) => {
  const request = indexedDB.open("satchel", 2);
  request.onerror = () => reject(request.error);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  request.onsuccess = () => {
    const messages = [
      { id: "b", parent: "", next: "c", role: "user", content: "Old?" },
      { id: "c", parent: "b", next: "", role: "assistant", content: "Very.", calls: [], counts: null },
    ];
    const one = { id: "a", title: "", created: 1, updated: 1, model: "", sampling: {}, first: "b" };
    const write = request.result.transaction("conversations", "readwrite");
    write.objectStore("conversations").put({ ...one, messages });
    write.oncomplete = () => (request.result.close(), resolve());
  };
})"""


@pytest.fixture
def talked(page: Any, ask: Any, canned: Any) -> Any:
    """A page with two conversations."""
    canned(page, {"content": "Well."})
    ask(page, "Birds")
    page.click("#new-chat")
    ask(page, "Fish")
    return page


def folder(tab: Any, name: str) -> Any:
    return tab.locator(".folder").filter(has=tab.locator(".folder-name", has_text=name))


def made(tab: Any, name: str) -> Any:
    """A new folder."""
    new_folder(tab, name)
    return folder(tab, name)


def tool(row: Any, label: str) -> None:
    row.hover()
    row.get_by_role("button", name=label).click()


def test_a_folder_is_made_renamed_filled_and_removed(talked: Any, expect: Any) -> None:
    trips = made(talked, "Trips")
    tool(talked.locator(".conversation", has_text="Birds"), "Move Birds")
    talked.locator("#folder-dialog").get_by_role("button", name="Trips").click()
    expect(trips.locator(".conversation-link")).to_have_text(["Birds"])
    expect(talked.locator(".conversation-link")).to_have_text(["Birds", "Fish"])
    tool(trips.locator(".folder-head"), "Rename Trips")
    talked.keyboard.type("Travel")
    talked.keyboard.press("Enter")
    travel = folder(talked, "Travel")
    expect(travel).to_have_count(1)  # the new name is shown once it is stored
    talked.reload()
    expect(travel.locator(".conversation-link")).to_have_text(["Birds"])
    expect(talked.locator(".folder")).to_have_count(1)
    tool(travel.locator(".folder-head"), "Remove Travel")
    expect(talked.locator(".folder")).to_have_count(0)
    expect(talked.locator(".conversation-link")).to_have_text(["Fish", "Birds"])
    talked.get_by_role("button", name="Undo").click()
    expect(travel.locator(".conversation-link")).to_have_text(["Birds"])
    tool(talked.locator(".conversation", has_text="Birds"), "Move Birds")
    talked.locator("#folder-dialog").get_by_role("button", name="No folder").click()
    expect(travel.locator(".conversation-link")).to_have_count(0)
    expect(talked.locator(".conversation-link")).to_have_text(["Fish", "Birds"])


def test_a_conversation_is_moved_by_keys(talked: Any, expect: Any) -> None:
    made(talked, "Trips")
    keys = talked.keyboard
    keys.press("Control+k")
    keys.press("ArrowDown")
    expect(folder(talked, "Trips").locator(".folder-name")).to_be_focused()
    keys.press("F2")
    named(talked, "Travel")
    keys.press("Control+k")
    for _ in range(3):  # the folder, Fish, Birds
        keys.press("ArrowDown")
    keys.press("Control+Shift+f")
    dialog = talked.locator("#folder-dialog")
    expect(dialog.get_by_role("button", name="No folder")).to_be_focused()
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(folder(talked, "Travel").locator(".conversation-link")).to_have_text(["Birds"])
    talked.locator("#question").focus()
    keys.press("Control+Shift+f")  # the open conversation
    for _ in range(2):
        keys.press("ArrowDown")
    keys.press("Enter")
    named(talked, "Food")
    expect(folder(talked, "Food").locator(".conversation-link")).to_have_text(["Fish"])


def test_a_folder_is_folded_and_a_search_unfolds_it(talked: Any, expect: Any) -> None:
    trips = made(talked, "Trips")
    tool(talked.locator(".conversation", has_text="Birds"), "Move Birds")
    talked.locator("#folder-dialog").get_by_role("button", name="Trips").click()
    trips.locator(".folder-name").click()
    expect(trips.locator(".folder-name")).to_have_attribute("aria-expanded", "false")
    expect(trips.locator(".folder-name")).to_be_focused()
    expect(talked.locator(".conversation-link")).to_have_text(["Fish"])
    talked.reload()
    expect(talked.locator(".conversation-link")).to_have_text(["Fish"])
    talked.fill("#search", "bird")
    expect(trips.locator(".conversation-link")).to_have_text(["Birds"])
    talked.fill("#search", "fish")
    expect(talked.locator(".folder")).to_have_count(0)


def test_an_answer_that_ends_leaves_a_name_that_is_typed(talked: Any, ask: Any, expect: Any) -> None:
    talked.unroute("**/v1/chat/completions")
    talked.route("**/v1/chat/completions", lambda route: None)  # no answer comes
    ask(talked, "Cats", wait=False)
    expect(talked.locator(".message.coming")).to_have_count(1)
    talked.click("#new-folder")
    expect(talked.locator("input.rename")).to_be_focused()
    talked.keyboard.type("Pe")
    talked.locator("#send").dispatch_event("click")  # stops it
    expect(talked.locator(".message.coming")).to_have_count(0)
    talked.keyboard.type("ts")
    talked.keyboard.press("Enter")
    expect(folder(talked, "Pets")).to_be_visible()


def test_folders_are_exported_and_imported(
    talked: Any, open_page: Callable[..., Any], server: str, expect: Any, tmp_path: Path
) -> None:
    trips = made(talked, "Trips")
    made(talked, "Empty")
    tool(talked.locator(".conversation", has_text="Birds"), "Move Birds")
    talked.locator("#folder-dialog").get_by_role("button", name="Trips").click()
    expect(trips.locator(".conversation-link")).to_have_text(["Birds"])
    told = json.loads(export(talked, tmp_path / "all.json"))
    assert [one["name"] for one in told["folders"]] == ["Empty", "Trips"]
    other = open_page(server).tab
    other.set_input_files("#import-file", tmp_path / "all.json")
    expect(folder(other, "Trips").locator(".conversation-link")).to_have_text(["Birds"])
    expect(folder(other, "Empty")).to_be_visible()
    other.reload()
    expect(folder(other, "Trips").locator(".conversation-link")).to_have_text(["Birds"])
    trips.locator(".conversation").hover()
    told = json.loads(export(talked, tmp_path / "one.json", opener="[aria-label='Export Birds']"))
    assert [one["name"] for one in told["folders"]] == ["Trips"]


def test_another_tab_sees_a_new_folder(talked: Any, expect: Any, server: str) -> None:
    other = talked.context.new_page()
    other.goto(server)
    expect(other.locator(".conversation-link")).to_have_count(2)
    made(talked, "Trips")
    expect(folder(other, "Trips")).to_be_visible()


def test_conversations_of_the_database_before_stay(
    open_page: Callable[..., Any], server: str, expect: Any
) -> None:
    tab = open_page(server, path="/page/icon.svg", expected="404").tab  # of the browser's favicon.ico
    tab.evaluate(OLDER)
    tab.goto(server)
    tab.click(".conversation-link")
    expect(tab.locator(ANSWER)).to_have_text("Very.")
    tool(tab.locator(".conversation"), "Move Old?")
    tab.locator("#folder-dialog").get_by_role("button", name="New folder").click()
    named(tab, "Kept")
    expect(folder(tab, "Kept").locator(".conversation-link")).to_have_text(["Old?"])
