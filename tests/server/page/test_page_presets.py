"""Presets and the form of answers: JSON schema, stop texts and thinking, in the request and under a name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from page_talk import ANSWER, export

pytestmark = pytest.mark.model
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip


def bodies(tab: Any) -> list[dict[str, Any]]:
    """The bodies of requests from now on."""
    seen: list[dict[str, Any]] = []
    tab.on("request", lambda r: seen.append(r.post_data_json) if r.url.endswith("/completions") else None)
    return seen


def settings(tab: Any, **values: str) -> None:
    """Fills in the settings of the open chat."""
    if not tab.locator("#settings").is_visible():
        tab.click("#toggle-settings")
    if not tab.locator("#schema").is_visible():
        tab.click("#form-part summary")
    for name, value in values.items():
        if name == "thinking":
            tab.select_option("#thinking", value)
        else:
            tab.fill(f"#{name}", value)


def save(tab: Any, name: str) -> None:
    tab.click("#preset-save")
    tab.fill("#preset-name", name)
    tab.keyboard.press("Enter")


def test_answers_follow_a_schema(open_page: Any, server: str, ask: Any) -> None:
    tab = open_page(server, sampling={"temperature": 0, "max_tokens": 80}).tab
    settings(tab, schema=json.dumps(SCHEMA))
    ask(tab, "Where is the Colosseum?")
    assert json.loads(tab.locator(ANSWER).inner_text())["city"] in ("Oslo", "Rome")


def test_an_answer_ends_at_a_stop_text(open_page: Any, server: str, ask: Any, expect: Any) -> None:
    tab = open_page(server).tab
    ask(tab, "Who are you?")
    word = tab.locator(ANSWER).inner_text().split()[2]
    settings(tab, stop=f"never said\n{word}")
    tab.locator(".message.last").get_by_role("button", name="Answer again").click()
    expect(tab.locator(".message.last .version-place")).to_have_text("2 / 2")
    expect(tab.locator(".message.coming")).to_have_count(0)
    assert word not in tab.locator(ANSWER).inner_text()


def test_the_form_is_in_the_request(page: Any, ask: Any, canned: Any) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    settings(page, schema=json.dumps(SCHEMA), stop="END\n\n\\n\\n", thinking="512")
    page.click("#tools-part summary")
    page.fill("#tools", '[{"name": "look"}]')
    ask(page, "one")
    settings(page, schema="", stop="", thinking="none")
    ask(page, "two")
    first, second = seen
    assert first["response_format"]["json_schema"]["schema"] == SCHEMA and "tools" not in first
    assert first["stop"] == ["END", "\n\n"] and first["reasoning_budget_tokens"] == 512
    assert second["reasoning_effort"] == "none" and second["tools"][0]["function"]["name"] == "look"
    assert not {"stop", "response_format", "reasoning_budget_tokens"} & set(second)


@pytest.mark.parametrize(("text", "said"), [("{", "no JSON"), ("[1]", "must be an object")])
def test_a_schema_that_is_none_is_said_and_not_sent(
    page: Any, ask: Any, expect: Any, canned: Any, text: str, said: str
) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    settings(page, schema=text)
    expect(page.locator("#schema-wrong")).to_contain_text(said)
    expect(page.locator("#schema")).to_have_attribute("aria-invalid", "true")
    ask(page, "one")
    assert "response_format" not in seen[0]


def test_a_preset_holds_all_settings_and_comes_back(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "yes"})
    given = {"system": "Be brief.", "schema": json.dumps(SCHEMA), "stop": "END", "thinking": "none"}
    settings(page, **given)
    page.fill("#sampling-seed", "7")
    expect(page.locator("#preset")).to_have_value("")
    save(page, "Brief")
    expect(page.locator("#preset")).to_have_value("Brief")
    page.fill("#sampling-seed", "8")
    expect(page.locator("#preset")).to_have_value("")
    page.select_option("#preset", "")
    ask(page, "Hello")
    page.reload()
    page.click("#new-chat")
    expect(page.locator("#system")).to_have_value("")
    page.select_option("#preset", "Brief")
    for name, value in {**given, "sampling-seed": "7"}.items():
        expect(page.locator(f"#{name}")).to_have_value(value)
    seen = bodies(page)
    ask(page, "Hello")
    assert seen[0]["messages"][0]["content"] == "Be brief." and seen[0]["seed"] == 7


def test_a_preset_is_replaced_and_deleted(page: Any, expect: Any) -> None:
    settings(page, system="one")
    save(page, "Mine")
    settings(page, system="two")
    save(page, "Mine")
    expect(page.locator("#preset option")).to_have_text(["None", "Mine"])
    settings(page, system="")
    page.select_option("#preset", "Mine")
    expect(page.locator("#system")).to_have_value("two")
    page.click("#preset-delete")
    expect(page.locator("#preset option")).to_have_text(["None"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#preset option")).to_have_text(["None", "Mine"])


def test_an_export_holds_the_form(
    page: Any, ask: Any, expect: Any, canned: Any, open_page: Any, server: str, tmp_path: Any
) -> None:
    canned(page, {"content": "yes"})
    settings(page, schema="{}", stop="END", thinking="high")
    ask(page, "Hello")
    export(page, tmp_path / "out.json")
    other = open_page(server).tab
    other.set_input_files("#import-file", tmp_path / "out.json")
    other.click(".conversation-link")
    expect(other.locator("#schema")).to_have_value("{}")
    expect(other.locator("#stop")).to_have_value("END")
    expect(other.locator("#thinking")).to_have_value("high")


def test_settings_that_no_preset_holds_come_back_by_undo(page: Any, expect: Any) -> None:
    settings(page, system="a long prompt")
    page.click("#reset")
    expect(page.locator("#system")).to_have_value("")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#system")).to_have_value("a long prompt")
    save(page, "Mine")
    page.select_option("#preset", "")
    expect(page.locator("#system")).to_have_value("")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
