"""The page before axe-core, which finds what a screen reader, a keyboard or weak eyes cannot use: nothing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from page_talk import button, new_folder

pytestmark = pytest.mark.model
RICH = """# Title

**Bold** `code` [link](https://a.b/), $x^2$ and a note[^1].

$$
\\frac{a}{b}
$$

- [x] done
- [ ] to do

```python
@a
def f(x):  # why
    return 'b' + str(42)
```

| a | b |
|---|---|
| 1 | 2 |

> quoted

[^1]: Here.
"""
UNFOLD = "(part) => part.querySelectorAll('details').forEach((folded) => { folded.open = true; })"
WINDOWS = {"wide": {"width": 1400, "height": 900}, "narrow": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("the package axe-playwright-python is not installed")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def findings(tab: Any, axe: str) -> list[str]:
    """A line for each rule that the page breaks, with the elements that break it."""
    tab.evaluate(axe)
    report = tab.evaluate("axe.run({ resultTypes: ['violations'] })")
    assert len(report["passes"]) > 10
    return [f"{v['id']}: {[n['html'][:150] for n in v['nodes']]}" for v in report["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", WINDOWS)
def test_axe_finds_nothing(
    open_page: Any, server: str, ask: Any, expect: Any, canned: Any, axe: str, size: str, scheme: str
) -> None:
    # axe-core is a script of the test's; the page's policy would refuse it.
    options = {"viewport": WINDOWS[size], "color_scheme": scheme, "bypass_csp": True}
    tab = open_page(server, **options).tab
    assert findings(tab, axe) == []
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}
    canned(tab, {"reasoning_content": "Hm."}, {"content": RICH}, {"tool_calls": [call]})
    tab.set_input_files("#document-files", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"})
    expect(tab.locator("#documents .document-name")).to_have_text("a.txt")
    ask(tab, "What is it?")
    button(tab, "Answer again").click()
    expect(tab.locator(".message.last .version-place")).to_have_text("2 / 2")
    expect(tab.locator(".message.coming, .formula.plain")).to_have_count(0)
    tab.locator("#thread").evaluate(UNFOLD)
    assert findings(tab, axe) == []
    for name in ("sidebar", "settings"):
        if not tab.locator(f"#{name}").is_visible():
            tab.click(f"#toggle-{name}")
        tab.locator(f"#{name}").evaluate(UNFOLD)
        assert findings(tab, axe) == []
        if size == "narrow":
            tab.keyboard.press("Escape")
    new_folder(tab)
    assert findings(tab, axe) == []
    for keys, shown in (
        ("Control+/", ".shortcuts"),
        ("Control+.", ".models .model-name"),
        ("Control+Shift+f", ".choices"),
    ):
        tab.keyboard.press(keys)
        expect(tab.locator(shown)).to_be_visible()
        assert findings(tab, axe) == []
        tab.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_dashboard(
    open_page: Any, server: str, expect: Any, axe: str, scheme: str
) -> None:
    tab = open_page(server, path="/dashboard", color_scheme=scheme, bypass_csp=True).tab
    expect(tab.locator("#models td")).not_to_have_count(0)
    assert findings(tab, axe) == []
