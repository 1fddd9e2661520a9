"""A full context on the page: the oldest part is forgotten, which is said once, or the answer stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from page_talk import ANSWER, button, export

from satchel.runtime.api.options import Options
from satchel.server.settings import ServerSettings
from satchel.store.resolve import default_model

pytestmark = pytest.mark.model
CONTEXT = 128
FORGOT = "The context is full: the model no longer sees an older part of this chat"
STORY = "Write a long story about the sea."
# An answer of this form is longer than the context.
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": CONTEXT}


@pytest.fixture(scope="module")
def small(serving_of: Any) -> Iterator[str]:
    """A server whose model has a small context."""
    options = Options(slots=1, context=CONTEXT)
    with serving_of([default_model()], options, ServerSettings(port=0)) as address:
        yield address


@pytest.fixture
def tab(small: str, open_page: Callable[..., Any], expect: Any) -> Any:
    tab = open_page(small, sampling={"temperature": 0}, expected="status of").tab
    expect(tab.locator("#meter-text")).to_contain_text("128")  # the context is known
    return tab


def forgets(tab: Any) -> Any:
    return tab.locator(".context-note:visible").filter(has_text=FORGOT)


def test_the_oldest_part_is_forgotten_and_that_is_said_once(
    tab: Any, ask: Any, expect: Any, tmp_path: Path
) -> None:
    bodies: list[dict[str, Any]] = []
    tab.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/completions") else None)
    ask(tab, STORY)
    assert bodies[0]["on_overflow"] == "shift" and bodies[0]["max_tokens"] == CONTEXT
    expect(forgets(tab)).to_have_count(1)
    ask(tab, "What is it about?")
    expect(tab.locator(".trouble:visible")).to_have_count(0)
    assert [m["content"] for m in bodies[-1]["messages"]] == ["What is it about?"]
    assert len(bodies[-2]["messages"]) == 3, "the whole conversation is tried first"
    expect(forgets(tab)).to_have_count(1)
    expect(tab.locator("article.assistant").first.locator(".context-note")).to_be_visible()
    said = json.loads(export(tab, tmp_path / "chats.json"))["conversations"][0]["messages"]
    assert [m["overflow"]["cut"] > 0 for m in said if m["role"] == "assistant"] == [True, True]
    button(tab, "Choose what a full context does", "article.assistant >> nth=0").click()
    expect(tab.locator("#overflow")).to_be_focused()


def test_an_answer_stops_where_the_user_wants_it(tab: Any, ask: Any, expect: Any) -> None:
    tab.click("#toggle-settings")
    tab.select_option("#overflow", "error")
    ask(tab, STORY)
    last = tab.locator(".message.last")
    expect(last.locator(".message-status:visible")).to_have_text("Stopped: the context is full.")
    expect(last.get_by_role("button", name="Continue")).to_have_count(0)
    ask(tab, "What is it about?")
    expect(last.locator(".trouble")).to_contain_text("This conversation is too long for the model.")
    tab.reload()
    expect(tab.locator("#overflow")).to_have_value("error")


def test_an_answer_of_a_fixed_form_says_that_it_cannot_go_on(tab: Any, ask: Any, expect: Any) -> None:
    tab.click("#toggle-settings")
    tab.click("#form-part summary")
    tab.fill("#schema", json.dumps(NUMBERS))
    ask(tab, "Count.")
    line = "the context is full, and an answer of a fixed form cannot go on in one."
    expect(tab.locator(".message.last .message-status:visible")).to_contain_text(line)
    expect(forgets(tab)).to_have_count(0)


def test_a_question_longer_than_the_context_is_an_error(tab: Any, ask: Any, expect: Any) -> None:
    ask(tab, "sea " * CONTEXT)
    expect(tab.locator(".message.last .trouble")).to_contain_text("too long for the model")
    expect(tab.locator(ANSWER)).to_be_empty()


def test_the_system_prompt_and_the_latest_exchanges_stay(tab: Any, ask: Any, canned: Any) -> None:
    canned(tab, {"content": "Well. " * 20})
    tab.click("#toggle-settings")
    tab.fill("#system", "Be kind.")
    for question in ("One?", "Two?", "Three?"):
        ask(tab, question)
    tab.unroute("**/v1/chat/completions")
    bodies: list[dict[str, Any]] = []
    tab.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/completions") else None)
    ask(tab, "Four?")
    said = [m["content"].strip() for m in bodies[-1]["messages"]]
    assert said[0] == "Be kind." and said[-1] == "Four?" and "One?" not in said and len(said) > 3


def test_the_response_says_what_a_full_context_did(small: str) -> None:
    def overflow(**more: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, **more}
        answer = httpx.post(f"{small}/v1/chat/completions", json=body, timeout=60)
        found: dict[str, Any] = answer.json().get("overflow", {})
        return found

    found = overflow(max_tokens=2 * CONTEXT, on_overflow="shift")
    assert found["shifts"] >= 2 and found["cut_tokens"] > 0 and not found["full"]
    assert overflow() == {"shifts": 0, "cut_tokens": 0, "cut_messages": 0, "full": True}
    assert overflow(max_tokens=4) == {}
