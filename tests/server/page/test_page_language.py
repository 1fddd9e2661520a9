"""The page's languages: one table, whose rows are whole and used, and a page without an English text left."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from page_talk import new_folder

from satchel.server.page.files import STATIC

pytestmark = pytest.mark.model
LANGUAGES = ["de-AT", "fr-FR", "es-MX", "zh-CN", "ja-JP"]
WORDS = """async () => (await import("/page/js/language/words.js")).WORDS"""
# The texts of the page and of what its controls are called.
SHOWN = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode.data.trim());
  for (const name of ["aria-label", "placeholder", "title"])
    for (const node of document.querySelectorAll(`[${name}]`)) texts.push(node.getAttribute(name));
  return texts;
}"""
THEMES = {f"Theme: {name}" for name in ("system", "light", "dark")}
STATES = {"loaded", "unloaded", "failed"}  # a model's, as the server gives them
NAMES = {"Satchel", "Ctrl K", "Top p", "Top k", "Min p", "JSON", "Markdown", "satchel serve --api-key"}


def sources() -> str:
    kept = (p for p in STATIC.rglob("*") if p.suffix in (".js", ".html") and p.stem != "words")
    return "\n".join(p.read_text(encoding="utf-8") for p in kept)


def test_each_row_is_whole_and_used(page: Any) -> None:
    text = re.sub(r'"\s*\+\s*"', "", sources())  # texts that go over two lines
    for english, others in page.evaluate(WORDS).items():
        values = sorted(re.findall(r"\{\w+\}", english))
        assert len(others) == 5, english
        for other in others:
            assert other.strip() and sorted(re.findall(r"\{\w+\}", other)) == values, (english, other)
        assert english in text or json.dumps(english)[1:-1] in text or english in STATES | THEMES, english


def test_each_text_of_the_code_has_a_row(page: Any) -> None:
    words = page.evaluate(WORDS)
    asked = re.findall(r'\bt\(\s*"((?:[^"\\]|\\.)*)"', sources())
    assert len(asked) > 60
    assert [text for text in asked if json.loads(f'"{text}"') not in words] == []


def test_each_text_of_the_html_has_a_row(page: Any, server: str) -> None:
    words = page.evaluate(WORDS)
    for name in ("index.html", "dashboard.html"):
        body = (STATIC / name).read_text(encoding="utf-8").partition("<body")[2]
        found = re.findall(r">\s*([^<>]*?[A-Za-z][^<>]*?)\s*<", body)
        found += re.findall(r'(?:aria-label|title|placeholder)="([^"]+)"', body)
        assert [
            text for text in found if text not in words and text not in NAMES and "Ctrl" not in text
        ] == []


@pytest.mark.parametrize("locale", LANGUAGES)
def test_no_english_is_left(
    open_page: Any, server: str, ask: Any, expect: Any, canned: Any, locale: str
) -> None:
    tab = open_page(server, locale=locale).tab
    column = LANGUAGES.index(locale)
    words = tab.evaluate(WORDS)
    english = {text for text, others in words.items() if others[column] != text} - NAMES
    texts = set(tab.evaluate(SHOWN))
    canned(tab, {"reasoning_content": "1"}, {"content": "2\n\n- [x] 3\n\n```\n4\n```\n\n5[^1]\n\n[^1]: 6"})
    tab.fill("#question", "7")
    tab.keyboard.press("Enter")
    expect(tab.locator(".message.last .facts")).not_to_be_empty()
    expect(tab.locator("html")).to_have_attribute("lang", locale[:2])
    tab.click("#toggle-settings")
    for control in ("#shortcuts", "#preset-save", "#export-all", "#open-models"):
        tab.click(control)
        texts |= set(tab.evaluate(SHOWN))
        tab.keyboard.press("Escape")
    new_folder(tab, "8")
    tab.keyboard.press("Control+Shift+f")
    texts |= set(tab.evaluate(SHOWN))
    tab.goto(f"{server}/dashboard")
    expect(tab.locator("#models td")).not_to_have_count(0)
    texts |= set(tab.evaluate(SHOWN))
    assert len(texts) > 100
    assert sorted(texts & english) == []


def test_a_chosen_language_stays(page: Any, expect: Any) -> None:
    expect(page.locator("#new-chat")).to_have_text("New chat")
    page.select_option("#language", "de")
    expect(page.locator("#new-chat")).to_have_text("Neuer Chat")
    expect(page.get_by_role("button", name="Senden")).to_be_visible()
    page.reload()
    expect(page.locator("#new-chat")).to_have_text("Neuer Chat")
    expect(page.locator("#language")).to_have_value("de")


def test_an_answer_under_way_is_not_lost_to_a_language(page: Any, expect: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: None)  # no answer comes
    page.fill("#question", "Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".message.coming")).to_have_count(1)
    page.select_option("#language", "de")
    expect(page.locator(".toast")).to_contain_text("An answer is under way")
    expect(page.locator("#language")).to_have_value("en")
