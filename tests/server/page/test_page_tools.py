"""Tools on the page: a list in the settings, checked while it is typed; calls are shown and nothing is
executed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.model
CITY, DAYS = {"enum": ["Oslo", "Rome"]}, {"type": "integer", "minimum": 1, "maximum": 3}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": CITY, "days": DAYS},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


def bodies(tab: Any) -> list[dict[str, Any]]:
    """The bodies of requests from now on."""
    seen: list[dict[str, Any]] = []

    def note(request: Any) -> None:
        if request.url.endswith("/v1/chat/completions"):
            seen.append(request.post_data_json)

    tab.on("request", note)
    return seen


def give(tab: Any, text: str, forced: bool = False) -> None:
    if not tab.locator("#settings").is_visible():
        tab.click("#toggle-settings")
    if not tab.locator("#tools").is_visible():
        tab.click("#tools-part summary")
    tab.fill("#tools", text)
    tab.set_checked("#tools-forced", forced)


def test_a_call_is_forced_and_shown(open_page: Any, server: str, ask: Any, expect: Any) -> None:
    tab = open_page(server, sampling={"temperature": 0, "max_tokens": 80}).tab
    seen = bodies(tab)
    give(tab, json.dumps([WEATHER], indent=1), forced=True)
    ask(tab, "Weather in Rome for two days?")
    assert seen[0]["tools"] == [{"type": "function", "function": WEATHER}]
    assert seen[0]["tool_choice"] == "required"
    expect(tab.locator(".call-name").first).to_have_text("weather")
    given = json.loads(tab.locator(".call pre").first.inner_text())
    assert given["city"] in ("Oslo", "Rome") and given["days"] in (1, 2, 3)
    tab.reload()
    expect(tab.locator(".call-name").first).to_have_text("weather")
    expect(tab.locator("#tools")).to_have_value(json.dumps([WEATHER], indent=1))
    expect(tab.locator("#tools-forced")).to_be_checked()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{", "no JSON"),
        ('{"name": "a"}', "must be a list"),
        ("[1]", "Tool 1: it must be an object"),
        ('[{"name": "a b"}]', "Tool 1: its name"),
        ('[{"name": "a"}, {"function": {"name": "a"}}]', "Tool 2: a occurs twice"),
        ('[{"name": "a", "parameters": []}]', "its parameters must be"),
    ],
)
def test_what_is_wrong_with_the_list_is_said_and_not_sent(
    page: Any, ask: Any, expect: Any, canned: Any, text: str, said: str
) -> None:
    seen = bodies(page)
    canned(page, {"content": "yes"})
    give(page, text)
    expect(page.locator("#tools-wrong")).to_contain_text(said)
    expect(page.locator("#tools")).to_have_attribute("aria-invalid", "true")
    ask(page, "hi")
    assert "tools" not in seen[0] and "tool_choice" not in seen[0]
    give(page, " ")
    expect(page.locator("#tools-wrong")).to_be_hidden()


def called(number: int, arguments: str, name: str = "weather") -> dict[str, Any]:
    return {"index": number, "id": f"id{number}", "function": {"name": name, "arguments": arguments}}


def test_an_answer_that_is_only_a_call_is_in_the_next_request(
    page: Any, ask: Any, expect: Any, canned: Any
) -> None:
    seen = bodies(page)
    canned(page, {"tool_calls": [called(0, '{"city": "Oslo"}')]}, {"tool_calls": [called(1, "")]})
    ask(page, "Weather in Oslo?")
    expect(page.locator(".call-name")).to_have_text(["weather", "weather"])
    ask(page, "It is 3 degrees.")
    first = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    calls = [
        {"id": "id0", "type": "function", "function": first},
        {"id": "id1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
    ]
    assert seen[1]["messages"] == [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "user", "content": "It is 3 degrees."},
    ]


@pytest.mark.parametrize(
    ("delta", "sent"),
    [
        ({"tool_calls": [called(0, '{"city": "Os')]}, {"content": 'weather {"city": "Os'}),
        ({"reasoning_content": "Hm."}, {"content": "", "reasoning_content": "Hm."}),
        ({"content": "Well."}, {"content": "Well."}),
    ],
    ids=["a call cut off", "thinking alone", "text"],
)
def test_any_answer_is_in_the_next_request(
    page: Any, ask: Any, canned: Any, delta: dict[str, Any], sent: dict[str, Any]
) -> None:
    seen = bodies(page)
    canned(page, delta)
    ask(page, "one")
    ask(page, "two")
    assert seen[1]["messages"][1] == {"role": "assistant", **sent}


def test_the_server_takes_an_answer_that_is_only_a_call(
    page: Any, ask: Any, expect: Any, canned: Any
) -> None:
    give(page, json.dumps([WEATHER]))
    canned(page, {"tool_calls": [called(0, '{"city": "Oslo", "days": 1}')]})
    ask(page, "Weather in Oslo?")
    page.unroute("**/v1/chat/completions")
    ask(page, "Thanks.")
    expect(page.locator(".trouble:visible")).to_have_count(0)
    expect(page.locator(".message.last .facts")).to_contain_text("tokens")
