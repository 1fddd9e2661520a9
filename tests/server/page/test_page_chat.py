"""Chatting on the page: send, stream, stop, regenerate, edit, delete, and what survives a reload."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_talk import ANSWER, QUESTION, button, export, texts

pytestmark = pytest.mark.model
KIND = '"kind": "satchel-conversations"'


def test_an_answer_comes_with_its_counts_and_a_reload_keeps_it(page: Any, ask: Any, expect: Any) -> None:
    expect(page.locator(".empty")).to_be_visible()
    ask(page, "Who are you?")
    said = texts(page, ANSWER)
    assert len(said) == 1 and said[0]
    expect(page.locator(".message.last .facts")).to_have_text(re.compile(r"12 tokens · [\d.]+ tokens/s"))
    expect(page.locator("#meter-text")).to_have_text(re.compile(r"\d\d / 2,048"))
    expect(page.locator(".message.last .message-status")).to_contain_text("limit of tokens")
    expect(page.locator("#announcer")).to_have_text("The answer is complete.")
    page.reload()
    expect(page.locator(ANSWER)).to_have_text(said, use_inner_text=True)
    expect(page.locator(".conversation-link")).to_have_text("Who are you?")


def test_an_answer_that_hit_its_limit_goes_on(page: Any, ask: Any, expect: Any) -> None:
    ask(page, "Tell me a story about a dog.")
    (before,) = texts(page, ANSWER)
    button(page, "Continue").click()
    expect(page.locator(".message.coming")).to_have_count(0)
    expect(page.locator(ANSWER)).not_to_have_text(before)
    (after,) = texts(page, ANSWER)
    assert after.startswith(before) and len(after) > len(before)


def test_escape_stops_an_answer_and_keeps_what_came(
    open_page: Any, server: str, ask: Any, expect: Any
) -> None:
    tab = open_page(server, sampling={"temperature": 0.8, "seed": 1}).tab
    ask(tab, "Write a very long story about the sea.", wait=False)
    # Runs inside the page: the whole answer takes less time than one query from here.
    pressed = (
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))"
    )
    tab.wait_for_function(f"answer => document.querySelector(answer)?.textContent && {pressed}", arg=ANSWER)
    expect(tab.locator(".message.last .message-status")).to_have_text("Stopped.")
    (said,) = texts(tab, ANSWER)
    tab.reload()
    expect(tab.locator(ANSWER)).to_have_text(said, use_inner_text=True)  # a line's end between paragraphs


def test_an_answer_is_made_anew(page: Any, ask: Any, expect: Any) -> None:
    ask(page, "Who are you?")
    said = texts(page, ANSWER)
    page.evaluate("document.querySelector('.message.assistant').dataset.old = 1")
    button(page, "Answer again").click()
    expect(page.locator(".message.assistant[data-old]")).to_have_count(0)
    expect(page.locator(".message.assistant:not(.coming)")).to_have_count(1)
    assert texts(page, ANSWER) == said  # temperature 0


def test_a_question_that_is_edited_is_asked_anew(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "one"})
    ask(page, "first")
    ask(page, "second")
    button(page, "Edit", ".message.user >> nth=0").click()
    field = page.get_by_role("textbox", name="Edit the message")
    expect(field).to_be_focused()
    field.fill("another first")
    field.press("Enter")
    expect(page.locator(QUESTION)).to_have_text(["another first"])
    expect(page.locator(ANSWER)).to_have_text(["one"])


def test_an_edit_of_an_answer_changes_its_text_alone(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "one"})
    ask(page, "first")
    button(page, "Edit").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("*two*")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(f"{ANSWER} em")).to_have_text("two")
    page.reload()
    expect(page.locator(f"{ANSWER} em")).to_have_text("two")


def test_a_deleted_exchange_comes_back_by_undo(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "yes"})
    ask(page, "first")
    ask(page, "second")
    button(page, "Delete", ".message.user >> nth=0").click()
    expect(page.locator(QUESTION)).to_have_text(["second"])
    expect(page.locator(ANSWER)).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(QUESTION)).to_have_text(["first", "second"])


def test_what_is_asked_has_the_settings_of_its_chat(page: Any, ask: Any, expect: Any) -> None:
    bodies: list[dict] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    page.click("#toggle-settings")
    page.fill("#system", "You are a parrot.")
    page.fill("#sampling-seed", "7")
    page.fill("#sampling-top_p", "1.5")
    expect(page.locator("#sampling-top_p-wrong")).to_have_text("This must lie between 0 and 1.")
    page.fill("#sampling-temperature", "warm")
    expect(page.locator("#sampling-temperature-wrong")).to_have_text("This is not a number.")
    page.fill("#sampling-top_k", "2.5")
    expect(page.locator("#sampling-top_k-wrong")).to_have_text("This must be a whole number.")
    ask(page, "Hello")
    page.click("#new-chat")
    expect(page.locator("#system")).to_have_value("")
    ask(page, "Hello again")
    first, second = bodies
    assert first["messages"][0] == {"role": "system", "content": "You are a parrot."}
    assert first["seed"] == 7 and "top_p" not in first and first["temperature"] == 0
    assert [m["role"] for m in second["messages"]] == ["user"] and "seed" not in second
    page.reload()
    page.locator(".conversation-link", has_text=re.compile("^Hello$")).click()
    expect(page.locator("#system")).to_have_value("You are a parrot.")


def test_conversations_are_found_renamed_and_deleted(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "a word on penguins"})
    links = page.locator(".conversation-link")
    for text in ("About birds", "About fish"):
        page.click("#new-chat")
        ask(page, text)
    expect(links).to_have_text(["About fish", "About birds"])
    row = page.locator(".conversation", has_text="About birds")
    row.hover()
    row.get_by_role("button", name="Rename About birds").click()
    page.keyboard.type("Feathers")
    page.keyboard.press("Enter")
    expect(links).to_have_text(["About fish", "Feathers"])
    page.fill("#search", "feath PENGUINS")
    expect(links).to_have_text(["Feathers"])
    page.fill("#search", "")
    row = page.locator(".conversation", has_text="Feathers")
    row.hover()
    row.get_by_role("button", name="Delete Feathers").click()
    expect(links).to_have_text(["About fish"])
    page.get_by_role("button", name="Undo").click()
    expect(links).to_have_text(["About fish", "Feathers"])


def test_an_export_comes_back_in_another_browser(
    open_page: Callable[..., Any], server: str, ask: Any, expect: Any, canned: Any, tmp_path: Path
) -> None:
    one = open_page(server).tab
    canned(one, {"content": "**kept**"})
    ask(one, "Keep this")
    path = tmp_path / "out.json"
    assert json.loads(export(one, path))["conversations"][0]["messages"][0]["content"] == "Keep this"
    other = open_page(server).tab
    other.set_input_files("#import-file", path)
    expect(other.locator(".toast")).to_contain_text("1 conversation imported.")
    other.click(".conversation-link")
    expect(other.locator(f"{ANSWER} strong")).to_have_text("kept")


def test_an_import_brings_back_what_is_missing_and_takes_nothing(
    page: Any, ask: Any, expect: Any, canned: Any, tmp_path: Path
) -> None:
    canned(page, {"content": "yes"})
    ask(page, "first")
    ask(page, "second")
    export(page, tmp_path / "out.json")
    button(page, "Delete", ".message.user >> nth=1").click()
    expect(page.locator(QUESTION)).to_have_text(["first"])
    ask(page, "third")
    page.set_input_files("#import-file", tmp_path / "out.json")
    expect(page.locator(".toast")).to_contain_text("1 conversation imported.")
    expect(page.locator(QUESTION)).to_have_text(["first", "third"])
    button(page, "Later version", ".message.user.branched").click()
    expect(page.locator(QUESTION)).to_have_text(["first", "second"])
    page.set_input_files("#import-file", tmp_path / "out.json")
    expect(page.locator(".toast")).to_contain_text("here already")
    button(page, "Delete", ".message.user >> nth=1").click()
    button(page, "Delete", ".message.user >> nth=1").click()
    expect(page.locator(QUESTION)).to_have_text(["first"])
    page.set_input_files("#import-file", tmp_path / "out.json")
    expect(page.locator(QUESTION)).to_have_text(["first", "second"])


def test_an_export_as_markdown_is_read_as_it_was_shown(
    page: Any, ask: Any, expect: Any, canned: Any, tmp_path: Path
) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"a": "```"}'}}
    canned(page, {"reasoning_content": "One\ntwo."}, {"content": "**So** it is."}, {"tool_calls": [call]})
    page.click("#toggle-settings")
    page.fill("#system", "Be kind.")
    ask(page, "What is it?")
    button(page, "Answer again").click()
    expect(page.locator(".version-place:visible")).to_have_text("2 / 2")
    row = page.locator(".conversation")
    row.hover()
    text = export(page, tmp_path / "out.md", "Markdown", ".conversation button[aria-label^=Export]")
    day, body = text.split("\n\n", 2)[1:]
    assert re.fullmatch(r"`satchel-40m-[^`]*`, \d{4}-\d\d-\d\d", day) and text.startswith("# What is it?\n\n")
    assert body == (
        "**System prompt**\n\n> Be kind.\n\n## You\n\nWhat is it?\n\n## Satchel\n\n> One\n> two.\n\n"
        '**So** it is.\n\n`look`\n\n````json\n{"a": "```"}\n````\n'
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no conversations"),
        (f'{{{KIND}, "version": 2, "conversations": [{{"messages": [{{"role": "x"}}]}}]}}', "not whole"),
        (f'{{{KIND}, "version": 9, "conversations": []}}', "another version"),
    ],
)
def test_a_file_that_is_no_export_is_refused(
    page: Any, expect: Any, tmp_path: Path, text: str, line: str
) -> None:
    path = tmp_path / "in.json"
    path.write_text(text)
    page.set_input_files("#import-file", path)
    expect(page.locator(".toast")).to_contain_text(line)
    expect(page.locator(".conversation-link")).to_have_count(0)


def test_thinking_is_folded_and_calls_are_shown(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "get_time", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": '"Oslo"}'}}
    canned(
        page,
        {"reasoning_content": "Let me see."},
        {"content": "So."},
        {"tool_calls": [call]},
        {"tool_calls": [rest]},
    )
    ask(page, "What time is it?")
    expect(page.locator(".reasoning-text")).to_be_hidden()
    page.click(".reasoning summary")
    expect(page.locator(".reasoning-text")).to_have_text("Let me see.")
    expect(page.locator(".call-name")).to_have_text("get_time")
    expect(page.locator(".call pre")).to_have_text('{\n  "city": "Oslo"\n}')


def test_another_tab_sees_what_is_new(page: Any, ask: Any, expect: Any, canned: Any, server: str) -> None:
    other = page.context.new_page()
    other.goto(server)
    canned(page, {"content": "news"})
    ask(page, "Anything new?")
    expect(other.locator(".conversation-link")).to_have_text("Anything new?")
