"""Branches: an edit and a regeneration keep what was there, with arrows between the versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_talk import ANSWER, QUESTION, button, export, texts

pytestmark = pytest.mark.model
# A notice would go after some seconds, and its button with it.
NOTICES_STAY = """() => {
  const set = setTimeout;
  window.setTimeout = (run, ms) => (ms > 5000 ? 0 : set(run, ms));
}"""
ANSWERS, QUESTIONS = ".message.assistant", ".message.user"


@pytest.fixture
def numbered(page: Any, ask: Any) -> Any:
    """A tab whose answers are 1, 2, 3 ... with two questions and their answers."""
    count = iter(range(1, 100))

    def answer(route: Any) -> None:
        chunks = [{"choices": [{"delta": {"content": str(next(count))}}]}]
        chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(headers={"content-type": "text/event-stream"}, body=body)

    page.route("**/v1/chat/completions", answer)
    ask(page, "first")
    ask(page, "second")
    return page


def earlier(tab: Any, message: str) -> None:
    button(tab, "Earlier version", message).click()


def later(tab: Any, message: str) -> None:
    button(tab, "Later version", message).click()


def test_an_early_answer_made_again_keeps_all_that_came_later(numbered: Any, expect: Any) -> None:
    tab = numbered
    button(tab, "Answer again", f"{ANSWERS} >> nth=0").click()
    expect(tab.locator(ANSWER)).to_have_text(["3"])
    expect(tab.locator(".version-place:visible")).to_have_text(["2 / 2"])
    earlier(tab, f"{ANSWERS} >> nth=0")
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])
    expect(tab.locator(QUESTION)).to_have_text(["first", "second"])
    expect(tab.locator("#announcer")).to_have_text(re.compile("^Version 1 of 2"))
    tab.reload()
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])
    later(tab, f"{ANSWERS} >> nth=0")
    expect(tab.locator(ANSWER)).to_have_text(["3"])
    tab.reload()
    expect(tab.locator(ANSWER)).to_have_text(["3"])


def test_an_edited_question_keeps_the_earlier_one_and_its_answers(numbered: Any, expect: Any) -> None:
    tab = numbered
    button(tab, "Edit", f"{QUESTIONS} >> nth=0").click()
    tab.keyboard.press("Control+a")
    tab.keyboard.type("another first")
    tab.keyboard.press("Enter")
    expect(tab.locator(ANSWER)).to_have_text(["3"])
    expect(tab.locator(QUESTION)).to_have_text(["another first"])
    earlier(tab, f"{QUESTIONS} >> nth=0")
    expect(tab.locator(QUESTION)).to_have_text(["first", "second"])
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])
    tab.fill("#search", "another")
    expect(tab.locator(".conversation-link")).to_have_count(1)


def test_a_question_sent_again_unchanged_is_answered_again(numbered: Any, expect: Any) -> None:
    tab = numbered
    button(tab, "Edit", f"{QUESTIONS} >> nth=0").click()
    tab.keyboard.press("Enter")
    expect(tab.locator(ANSWER)).to_have_text(["3"])
    expect(tab.locator(f"{QUESTIONS} .versions:visible")).to_have_count(0)
    earlier(tab, f"{ANSWERS} >> nth=0")
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])


def test_an_edited_answer_keeps_its_text_and_both_go_on(numbered: Any, expect: Any) -> None:
    tab = numbered
    button(tab, "Edit", f"{ANSWERS} >> nth=0").click()
    tab.keyboard.press("Control+a")
    tab.keyboard.type("mine")
    tab.get_by_role("button", name="Save", exact=True).click()
    expect(tab.locator(ANSWER)).to_have_text(["mine", "2"])
    earlier(tab, f"{ANSWERS} >> nth=0")
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])


def test_a_request_holds_its_own_branch_alone(numbered: Any, ask: Any, expect: Any) -> None:
    tab, bodies = numbered, []
    tab.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    button(tab, "Answer again", f"{ANSWERS} >> nth=0").click()
    expect(tab.locator(ANSWER)).to_have_text(["3"])
    ask(tab, "third")
    earlier(tab, f"{ANSWERS} >> nth=0")
    ask(tab, "fourth")
    said = [[m["content"] for m in body["messages"]] for body in bodies]
    assert said == [["first"], ["first", "3", "third"], ["first", "1", "second", "2", "fourth"]]


def test_the_arrows_work_by_keys_and_keep_the_focus(numbered: Any, expect: Any) -> None:
    tab = numbered
    for text in ("3", "4"):
        button(tab, "Answer again").click()
        expect(tab.locator(ANSWER)).to_have_text(["1", text])
    button(tab, "Earlier version").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator(ANSWER)).to_have_text(["1", "3"])
    expect(button(tab, "Earlier version")).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])
    expect(button(tab, "Earlier version")).to_be_disabled()
    expect(button(tab, "Later version")).to_be_focused()


def test_deleting_takes_one_version_and_undo_keeps_what_came_since(
    numbered: Any, ask: Any, expect: Any
) -> None:
    tab = numbered
    button(tab, "Answer again", f"{ANSWERS} >> nth=0").click()
    expect(tab.locator(ANSWER)).to_have_text(["3"])
    earlier(tab, f"{ANSWERS} >> nth=0")
    tab.evaluate(NOTICES_STAY)
    expect(tab.locator("#send")).to_have_attribute("aria-label", "Send")  # no answer is under way
    button(tab, "Delete", f"{ANSWERS} >> nth=0").click()
    expect(tab.locator(ANSWER)).to_have_text(["3", "2"])
    ask(tab, "since")
    tab.get_by_role("button", name="Undo").click()
    expect(tab.locator(QUESTION)).to_have_text(["first", "second", "since"])
    expect(tab.locator(ANSWER)).to_have_text(["1", "2", "4"])
    expect(tab.locator(".version-place:visible")).to_have_text(["1 / 2"])


def test_an_answer_stopped_before_its_first_word_gives_way_to_the_earlier_one(
    numbered: Any, expect: Any
) -> None:
    tab = numbered
    tab.unroute("**/v1/chat/completions")
    tab.route("**/v1/chat/completions", lambda route: None)  # no answer comes
    button(tab, "Answer again").click()
    expect(tab.locator(".message.coming")).to_have_count(1)
    tab.keyboard.press("Escape")
    expect(tab.locator(ANSWER)).to_have_text(["1", "2"])
    expect(tab.locator(".versions:visible")).to_have_count(0)


def test_an_early_answer_goes_on_from_its_own_text(
    page: Any, ask: Any, expect: Any, limited: Callable[..., None]
) -> None:
    bodies: list[dict] = []
    limited(page, "half")
    ask(page, "first")
    ask(page, "second")
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    button(page, "Continue", f"{ANSWERS} >> nth=0").click()
    expect(page.locator(ANSWER)).to_have_text(["halfhalf", "half"])
    assert [m["content"] for m in bodies[0]["messages"]] == ["first", "half"]


OLD = """async () => {
  const done = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  await done(indexedDB.deleteDatabase("satchel"));
  const request = indexedDB.open("satchel", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  const opened = await done(request);
  const answer = { role: "assistant", reasoning: "", calls: [], finish: "stop", trouble: "", counts: null };
  const messages = [
    { id: "1", role: "user", content: "old" }, { id: "2", content: "kept", ...answer },
    { id: "3", role: "user", content: "then" }, { id: "4", content: "too", ...answer },
  ];
  const made = { id: "a", title: "", created: 1, updated: 1, model: "", system: "", sampling: {}, messages };
  await done(opened.transaction("conversations", "readwrite").objectStore("conversations").put(made));
  opened.close();
}"""


def test_conversations_of_an_earlier_page_are_kept(page: Any, expect: Any) -> None:
    page.evaluate(OLD)
    page.reload()
    page.click(".conversation-link")
    expect(page.locator(QUESTION)).to_have_text(["old", "then"])
    expect(page.locator(ANSWER)).to_have_text(["kept", "too"])


def test_an_export_holds_every_branch(
    numbered: Any, open_page: Any, server: str, expect: Any, tmp_path: Path
) -> None:
    button(numbered, "Answer again", f"{ANSWERS} >> nth=0").click()
    expect(numbered.locator(ANSWER)).to_have_text(["3"])
    export(numbered, tmp_path / "out.json")
    other = open_page(server).tab
    other.set_input_files("#import-file", tmp_path / "out.json")
    other.click(".conversation-link")
    expect(other.locator(ANSWER)).to_have_text(["3"])
    earlier(other, f"{ANSWERS} >> nth=0")
    assert texts(other, ANSWER) == ["1", "2"]


@pytest.mark.parametrize("parents", [["1", "0"], ["", "7"], ["1", "1"]], ids=["circle", "lost", "itself"])
def test_a_file_whose_branches_are_no_tree_is_refused(
    page: Any, expect: Any, tmp_path: Path, parents: list[str]
) -> None:
    ids = ["0" * 24, "1" * 24]
    full = [ids[int(p)] if p in ("0", "1") else p and "7" * 24 for p in parents]
    pairs = zip(ids, full, strict=True)
    messages = [{"id": id, "parent": parent, "role": "user", "content": "x"} for id, parent in pairs]
    path = tmp_path / "in.json"
    found = {"kind": "satchel-conversations", "version": 2, "conversations": [{"messages": messages}]}
    path.write_text(json.dumps(found))
    page.set_input_files("#import-file", path)
    expect(page.locator(".toast")).to_contain_text("conversation 1 is not whole")


def test_a_tab_that_waits_for_an_answer_keeps_what_another_tab_asks(
    page: Any, ask: Any, expect: Any, canned: Any, server: str
) -> None:
    canned(page, {"content": "yes"})
    ask(page, "first")
    other = page.context.new_page()
    other.goto(server)
    expect(other.locator(QUESTION)).to_have_text(["first"])
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: None)  # no answer comes
    ask(page, "here", wait=False)
    expect(other.locator(QUESTION)).to_have_text(["first", "here"])
    canned(other, {"content": "there"})
    ask(other, "elsewhere")
    expect(page.locator(QUESTION)).to_have_text(["first", "here", "elsewhere"])
    page.locator("#question").press("Escape")
    expect(page.locator(".message.coming")).to_have_count(0)
    for tab in (page, other):
        tab.reload()
        expect(tab.locator(QUESTION)).to_have_text(["first", "here", "elsewhere"])
        expect(tab.locator(ANSWER).last).to_have_text("there")
