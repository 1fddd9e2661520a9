"""Accessibility and errors of the page: narrow screens, keyboard only, themes, a server that is unreachable,
loading, busy or wants a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from page_talk import new_folder
from waiting import until

from satchel.runtime.api.options import Options
from satchel.server.settings import ServerSettings
from satchel.store.resolve import default_model

pytestmark = pytest.mark.model
ANSWER = ".message.assistant .message-body"
LONG = "\n\n".join(["A line of text that is long enough to be wrapped on a narrow screen."] * 30)
WIDE = (
    "| "
    + " | ".join(["wide"] * 30)
    + " |\n"
    + "|---" * 30
    + "|\n\n```\n"
    + "x" * 400
    + "\n```\n\n"
    + "y" * 400
)


def sideways(tab: Any) -> int:
    """Pixels by which the page is wider than its window."""
    return tab.evaluate("document.scrollingElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_scrolls_sideways(
    open_page: Any, server: str, ask: Any, expect: Any, canned: Any, width: int
) -> None:
    tab = open_page(server, viewport={"width": width, "height": 780}, has_touch=True).tab
    assert sideways(tab) == 0
    canned(tab, {"content": WIDE})
    ask(tab, "z" * 300)
    assert sideways(tab) == 0
    assert tab.evaluate("document.getElementById('scroller').scrollWidth") <= width
    send = tab.locator("#send").bounding_box()
    assert send["x"] + send["width"] <= width
    for name in ("sidebar", "settings"):
        tab.click(f"#toggle-{name}")
        expect(tab.locator(f"#{name}")).to_be_visible()
        assert sideways(tab) == 0
        tab.keyboard.press("Escape")
        expect(tab.locator(f"#{name}")).to_be_hidden()
    tab.goto(f"{server}/dashboard")
    expect(tab.locator("#models td")).not_to_have_count(0)
    assert sideways(tab) == 0


def test_all_of_it_by_keys_alone(page: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "Hi"})
    keys = page.keyboard
    expect(page.locator("#question")).to_be_focused()
    keys.type("One")
    keys.press("Shift+Enter")
    keys.type("two")
    keys.press("Enter")
    expect(page.locator(".message.user .message-body")).to_have_text("One\ntwo")
    expect(page.locator(ANSWER)).to_have_text("Hi")
    keys.press("ArrowUp")
    expect(page.get_by_role("textbox", name="Edit the message")).to_be_focused()
    keys.press("Escape")
    expect(page.get_by_role("textbox", name="Edit the message")).to_have_count(0)
    keys.press("Control+Shift+o")
    expect(page.locator(".empty")).to_be_visible()
    keys.press("Control+k")
    expect(page.locator("#search")).to_be_focused()
    keys.type("one")
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.locator(ANSWER)).to_have_text("Hi")
    outlined = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
    keys.press("Shift+Tab")
    assert page.evaluate(outlined)


def test_tab_reaches_every_control(page: Any, ask: Any, canned: Any) -> None:
    canned(page, {"content": "Hi"})
    ask(page, "Hello")
    active = "document.activeElement.getAttribute('aria-label') || document.activeElement.id"
    reached = set()
    for _ in range(50):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(active))
    wanted = {"new-chat", "Search conversations", "export-all", "model", "Theme: system"}
    assert wanted | {"Settings of this chat", "Copy", "Edit", "Delete", "Your question"} <= reached


def test_shortcuts_are_listed_and_work(page: Any, expect: Any) -> None:
    keys, dialog = page.keyboard, page.locator("#shortcuts-dialog")
    keys.press("Control+/")
    expect(dialog.locator("dt")).to_have_count(12)
    expect(dialog).to_contain_text("New chat")
    keys.press("Control+b")
    expect(page.locator("#sidebar")).to_be_visible()  # a dialog is open: other shortcuts wait
    keys.press("Escape")
    expect(dialog).to_have_count(0)
    keys.press("Control+b")
    expect(page.locator("#sidebar")).to_be_hidden()
    keys.press("Control+b")
    expect(page.locator("#search")).to_be_focused()
    keys.press("Control+,")
    expect(page.locator("#settings")).to_be_visible()
    keys.press("Control+,")
    expect(page.locator("#settings")).to_be_hidden()
    keys.press("Control+.")
    expect(page.locator("#models-dialog")).to_be_visible()
    keys.press("Escape")
    page.click("#shortcuts")
    expect(dialog).to_be_visible()


def test_the_focus_is_never_lost(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "Hi"})
    ask(page, "Hello")
    last = page.locator(".message.last")
    last.get_by_role("button", name="Edit").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(last.get_by_role("button", name="Edit")).to_be_focused()
    last.get_by_role("button", name="Answer again").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#question")).to_be_focused()
    expect(page.locator(".version-place:visible")).to_have_text("2 / 2")
    last.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".version-place:visible")).to_have_text("2 / 2")
    expect(page.locator("#question")).to_be_focused()


def test_each_page_has_one_first_heading_and_skips_no_level(
    page: Any, ask: Any, canned: Any, server: str
) -> None:
    levels = """[...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
      .filter((h) => h.checkVisibility()).map((h) => Number(h.localName[1]))"""
    canned(page, {"content": "# One\n\n## Two"})
    ask(page, "Hello")
    assert page.locator("h1").inner_text() == "Hello"
    for path in ("", "/dashboard"):
        if path:
            page.goto(server + path)
        found = page.evaluate(levels)
        assert found.count(1) == 1
        heads = found[found.index(1) :]
        assert all(below <= above + 1 for above, below in pairwise(heads))


# Controls that are narrower or lower than 44 pixels; a checkbox is hit through its label.
SMALL = """() => [...document.querySelectorAll("button, a, select, summary, textarea, label.check, input")]
  .filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest("label.check input"))
  .filter((e) => !e.matches(".message-body a, .skip"))
  .map((e) => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
  .filter(([, box]) => box.width < 43.9 || box.height < 43.9)
  .map(([what, box]) => `${what} ${box.width} x ${box.height}`)"""


def test_targets_for_a_finger_are_large(
    open_page: Any, server: str, ask: Any, expect: Any, canned: Any
) -> None:
    window = {"width": 390, "height": 780}
    tab = open_page(server, viewport=window, has_touch=True, is_mobile=True).tab
    assert tab.evaluate(SMALL) == []
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}
    canned(tab, {"reasoning_content": "Hm."}, {"content": "```c\nint x;\n```"}, {"tool_calls": [call]})
    ask(tab, "Hello")
    tab.locator(".message.last").get_by_role("button", name="Answer again").click()
    expect(tab.locator(".version-place:visible")).to_have_text("2 / 2")
    assert tab.evaluate(SMALL) == [] and sideways(tab) == 0
    tab.click("#toggle-sidebar")
    new_folder(tab)
    assert tab.evaluate(SMALL) == []
    tab.click("[aria-label='Move Hello']")
    expect(tab.locator("#folder-dialog")).to_be_visible()
    assert tab.evaluate(SMALL) == []
    for _ in range(2):
        tab.keyboard.press("Escape")
    tab.click("#toggle-settings")
    expect(tab.locator("#settings")).to_be_visible()
    assert tab.evaluate(SMALL) == []
    tab.keyboard.press("Escape")
    tab.click("#open-models")
    expect(tab.locator(".models .model-name")).to_be_visible()
    assert tab.evaluate(SMALL) == [] and sideways(tab) == 0
    tab.keyboard.press("Escape")
    tab.goto(f"{server}/dashboard")
    expect(tab.locator("#models td")).not_to_have_count(0)
    assert tab.evaluate(SMALL) == []


def test_a_panel_over_the_conversation_keeps_the_focus(open_page: Any, server: str, expect: Any) -> None:
    tab = open_page(server, viewport={"width": 390, "height": 780}).tab
    tab.click("#toggle-sidebar")
    for _ in range(20):
        tab.keyboard.press("Tab")
        assert not tab.evaluate("document.activeElement.closest('main')")
    tab.keyboard.press("Escape")
    expect(tab.locator("#toggle-sidebar")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen(
    open_page: Any, server: str, expect: Any, scheme: str
) -> None:
    tab = open_page(server, color_scheme=scheme).tab
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(251, 250, 247)", "rgb(25, 24, 23)"
    assert tab.evaluate(paper) == (dark if scheme == "dark" else light)
    tab.click("#theme")
    assert tab.evaluate(paper) == light
    tab.click("#theme")
    assert tab.evaluate(paper) == dark
    tab.reload()
    expect(tab.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert tab.evaluate(paper) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(open_page: Any, server: str, scheme: str) -> None:
    tab = open_page(server, color_scheme=scheme).tab
    pairs = [("ink", "paper"), ("soft", "paper"), ("soft", "sunk"), ("soft", "raised"), ("accent", "paper")]
    pairs += [("wrong", "wrong-wash"), ("on-accent", "accent"), ("accent", "accent-wash"), ("ink", "sunk")]
    for pair, light in zip(pairs, tab.evaluate(LIGHT, pairs), strict=True):
        assert (max(light) + 0.05) / (min(light) + 0.05) >= 4.5, pair


# The relative luminance of a colour, as WCAG 2 defines it.
LIGHT = """(pairs) => pairs.map((pair) => pair.map((name) => {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `var(--${name})`;
  const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
  const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}))"""


def test_a_reader_who_scrolls_up_stays_there(
    open_page: Any, server: str, ask: Any, expect: Any, canned: Any
) -> None:
    window = {"width": 900, "height": 420}
    tab = open_page(server, sampling={"seed": 3, "max_tokens": 100}, viewport=window).tab
    canned(tab, {"content": LONG})
    ask(tab, "Something long")
    tab.unroute("**/v1/chat/completions")
    place = "document.getElementById('scroller')"
    end = f"{place}.scrollHeight - {place}.clientHeight - {place}.scrollTop"
    until(lambda: tab.evaluate(end) < 2, "the page is at its end")
    ask(tab, "Write a long story about the sea.", wait=False)
    expect(tab.locator(".message.last .message-body")).not_to_be_empty()
    until(lambda: tab.evaluate(end) < 60, "the page follows the answer")
    tab.mouse.move(450, 200)
    tab.mouse.wheel(0, -400)
    expect(tab.locator("#jump")).to_be_visible()
    top = tab.evaluate(f"{place}.scrollTop")
    expect(tab.locator(".message.coming")).to_have_count(0)
    assert tab.evaluate(f"{place}.scrollTop") == top
    tab.click("#jump")
    expect(tab.locator("#jump")).to_be_hidden()


def test_a_server_that_is_away_is_tried_again(open_page: Any, server: str, ask: Any, expect: Any) -> None:
    watched = open_page(server, expected="ERR_INTERNET_DISCONNECTED")
    tab = watched.tab
    expect(tab.locator("#model")).to_be_enabled()
    tab.context.set_offline(True)
    ask(tab, "Are you there?")
    trouble = tab.locator(".trouble")
    expect(trouble).to_contain_text("The server does not answer.")
    tab.context.set_offline(False)
    trouble.get_by_role("button", name="Try again").click()
    expect(tab.locator(ANSWER)).not_to_be_empty()
    expect(tab.locator(".trouble:visible")).to_have_count(0)


def refusal(status: int, code: str, **more: object) -> dict:
    body = json.dumps({"error": {"message": "no", "code": code, **more}})
    return {"status": status, "content_type": "application/json", "body": body}


def test_a_model_that_loads_is_waited_for(open_page: Any, server: str, ask: Any, expect: Any) -> None:
    watched = open_page(server, expected="503")
    tab, left = watched.tab, [2]

    def loads(route: Any) -> None:
        left[0] -= 1
        fallback = left[0] < 0
        route.fallback() if fallback else route.fulfill(**refusal(503, "loading", percent=40))

    tab.route("**/v1/chat/completions", loads)
    ask(tab, "Are you ready?", wait=False)
    expect(tab.locator(".message-status.waits")).to_have_text("Loading the model: 40 %")
    expect(tab.locator(ANSWER)).not_to_be_empty()
    assert left[0] == -1
    tab.route("**/health", lambda route: route.fulfill(**refusal(503, "loading", percent=7)), times=1)
    tab.reload()
    expect(tab.locator("#banner")).to_contain_text("The model is being loaded: 7 %")
    expect(tab.locator("#banner")).to_be_hidden()


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [
        (503, "queue_full", "The server is busy."),
        (400, "context_length_exceeded", "It has 5,000 tokens, and there is room for 2,048."),
        (400, "invalid", "no"),
        (500, "internal_error", "The server broke off: no. Try again."),
    ],
)
def test_a_refusal_is_one_line_with_a_way_on(
    open_page: Any, server: str, ask: Any, expect: Any, status: int, code: str, line: str
) -> None:
    watched = open_page(server, expected=str(status))
    tab = watched.tab
    answer = refusal(status, code, n_prompt_tokens=5000, n_ctx=2048)
    tab.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
    ask(tab, "Hello")
    expect(tab.locator(".trouble")).to_contain_text(line)
    expect(tab.locator(".trouble").get_by_role("button", name="Try again")).to_be_visible()


@pytest.mark.parametrize("end", ['data: {"error": {"message": "lost"}}\n\n', "", "data: {"])
def test_an_answer_that_breaks_off_keeps_its_words(page: Any, ask: Any, expect: Any, end: str) -> None:
    chunk = json.dumps({"choices": [{"delta": {"content": "Half of"}}]})
    headers = {"content-type": "text/event-stream"}
    body = f"data: {chunk}\n\n{end}"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(headers=headers, body=body))
    ask(page, "Hello")
    expect(page.locator(ANSWER)).to_have_text("Half of")
    expect(page.locator(".trouble")).to_contain_text("The server broke off")


@pytest.fixture(scope="module")
def keyed_server(serving_of: Any) -> Iterator[str]:
    settings = ServerSettings(port=0, api_keys=["open sesame"])
    with serving_of([default_model()], Options(slots=1), settings) as address:
        yield address


def test_the_key_is_asked_for_and_kept_with_the_tab(
    open_page: Any, keyed_server: str, ask: Any, expect: Any
) -> None:
    watched = open_page(keyed_server, expected="401")
    tab, dialog = watched.tab, watched.tab.locator("#key-dialog")
    expect(dialog).to_be_visible()
    tab.keyboard.type("wrong")
    tab.keyboard.press("Enter")
    expect(tab.locator("#key-wrong")).to_be_visible()
    tab.keyboard.type("open sesame")
    tab.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(tab.locator("#model")).to_be_enabled()
    ask(tab, "Hello")
    expect(tab.locator(ANSWER)).not_to_be_empty()
    tab.reload()
    expect(tab.locator("#model")).to_be_enabled()
    tab.goto(f"{keyed_server}/dashboard")
    expect(tab.locator("#models td")).not_to_have_count(0)
    assert tab.evaluate("localStorage.getItem('satchel.key')") is None


def test_the_dashboard_shows_what_runs(open_page: Any, server: str, expect: Any) -> None:
    tab = open_page(server, path="/dashboard").tab
    expect(tab.locator("#models td").first).to_have_text(default_model().stem)
    expect(tab.locator("#running")).to_have_text("0")
    expect(tab.locator("#rate-plot")).to_have_attribute("aria-label", "0 tokens a second")
    drawn = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    assert tab.locator("#rate-plot").evaluate(drawn)


def test_the_dashboard_shows_a_model_that_was_unloaded(serving_of: Any, open_page: Any, expect: Any) -> None:
    model = default_model()
    with serving_of([model], Options(slots=1), ServerSettings(port=0)) as address:
        httpx.post(f"{address}/v1/completions", json={"prompt": "A", "max_tokens": 3, "ignore_eos": True})
        watched = open_page(address, path="/dashboard", expected="ERR_CONNECTION_REFUSED")
        cells = watched.tab.locator("#models td")
        expect(cells.nth(6)).to_have_text("3")
        httpx.post(f"{address}/models/unload", json={"model": model.stem})
        expect(cells.nth(1)).to_have_text("unloaded")
        expect(cells.nth(6)).to_have_text("3")
        expect(cells.nth(4)).to_have_text("1")


def test_the_dashboard_leads_back_to_the_chat(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "Hi"})
    ask(page, "Hello")
    page.click("text=Dashboard")
    page.get_by_role("link", name="Back to the chat").click()
    expect(page.locator(ANSWER)).to_have_text("Hi")
