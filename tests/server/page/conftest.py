"""The page in a browser. `page` is a tab of a new user; at its end there must have been no request to
another host, no violation of the content security policy, and no script error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from browser import browsing
from waiting import SECONDS

# Short, deterministic answers.
SAMPLING = {"temperature": 0, "max_tokens": 12}
WINDOW = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
BREACHES = "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as browser:
        yield browser


@dataclass
class Watched:
    """A tab that is checked. errors: expected error texts, by a part of each."""

    tab: Any
    origin: str
    wrong: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def watch(self) -> None:
        # A route for all requests would cost as much as the rest of a test; the browser's flags disable
        # name resolution instead.
        self.tab.context.on("request", lambda request: self._asked(request.url))
        self.tab.context.add_init_script(BREACHES)
        self.tab.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.tab.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))
        self.tab.on("console", self._said)

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.origin}/", "blob:", "data:")):
            self.wrong.append(f"asked for {url}")

    def _said(self, message: Any) -> None:
        if message.type == "error" and not any(part in message.text for part in self.expected):
            self.wrong.append(message.text)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Watched]]:
    """open_page(server, **context options): a tab at the chat page."""
    opened: list[Watched] = []

    def start(
        server: str, path: str = "/", sampling: dict | None = None, expected: str = "", **options: Any
    ) -> Watched:
        context = browser.new_context(**{**WINDOW, **options})
        context.set_default_timeout(1000 * SECONDS)
        defaults = json.dumps({"sampling": SAMPLING if sampling is None else sampling})
        # Only where the page has not stored its own settings.
        context.add_init_script(f"localStorage['satchel.defaults'] ??= {defaults!r}")
        watched = Watched(context.new_page(), server, expected=[expected] if expected else [])
        opened.append(watched)
        watched.watch()
        watched.tab.goto(f"{server}{path}")
        if path == "/":
            watched.tab.wait_for_selector("#thread > *")  # earlier key presses have no effect
        return watched

    yield start
    for watched in opened:
        watched.tab.context.close()
    assert [w.wrong for w in opened] == [[] for _ in opened]


@pytest.fixture
def page(open_page: Callable[..., Watched], server: str) -> Any:
    return open_page(server).tab


@pytest.fixture
def expect() -> Any:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    sync_api.expect.set_options(timeout=1000 * SECONDS)
    return sync_api.expect


def stream(*chunks: dict, finish: str = "stop") -> str:
    """The body of a streamed answer with these deltas."""
    told = [{"choices": [{"delta": delta}]} for delta in chunks]
    told.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in told) + "data: [DONE]\n\n"


@pytest.fixture
def canned() -> Callable[..., None]:
    """canned(tab, delta, ...): the next answers are these, whatever the request."""

    def give(tab: Any, *chunks: dict) -> None:
        headers = {"content-type": "text/event-stream"}
        body = stream(*chunks)
        tab.route("**/v1/chat/completions", lambda route: route.fulfill(headers=headers, body=body))

    return give


@pytest.fixture
def limited() -> Callable[..., None]:
    """limited(tab, text): the next answers are this text, cut off at the limit of tokens."""

    def give(tab: Any, text: str) -> None:
        headers = {"content-type": "text/event-stream"}
        body = stream({"content": text}, finish="length")
        tab.route("**/v1/chat/completions", lambda route: route.fulfill(headers=headers, body=body))

    return give


@pytest.fixture
def ask(expect: Any) -> Callable[..., None]:
    """ask(tab, text): sends a question, and waits for the whole answer."""

    def send(tab: Any, text: str, wait: bool = True) -> None:
        expect(tab.locator("#send")).to_have_attribute("aria-label", "Send")  # no answer is under way
        tab.fill("#question", text)
        tab.keyboard.press("Enter")
        if wait:
            expect(tab.locator(".message.assistant.last:not(.coming)")).to_be_visible()
            expect(tab.locator("#send")).to_have_attribute("aria-label", "Send")

    return send
