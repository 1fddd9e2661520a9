"""What tests of the page see of a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ANSWER, QUESTION = ".message.assistant .message-body", ".message.user .message-body"


def texts(tab: Any, selector: str) -> list[str]:
    return [t.strip() for t in tab.locator(selector).all_inner_texts()]


def button(tab: Any, label: str, message: str = ".message.last") -> Any:
    return tab.locator(message).get_by_role("button", name=label, exact=True)


def new_folder(tab: Any, name: str = "New folder") -> None:
    """Makes a folder in the list of conversations."""
    tab.locator("#new-folder").dispatch_event("click")  # where a narrow page hides it too
    named(tab, name)


def named(tab: Any, name: str) -> None:
    """Gives the new folder, whose name is asked for, this one."""
    tab.wait_for_selector("input.rename:focus")
    tab.fill("input.rename", name)
    tab.keyboard.press("Enter")
    tab.wait_for_selector(f".folder-name:has-text('{name}')")


def export(tab: Any, path: Path, form: str = "JSON", opener: str = "#export-all") -> str:
    """Exports conversations into the file, and returns its text."""
    tab.locator(opener).click()
    with tab.expect_download() as download:
        tab.get_by_role("button", name=form, exact=True).click()
    download.value.save_as(path)
    return path.read_text(encoding="utf-8")
