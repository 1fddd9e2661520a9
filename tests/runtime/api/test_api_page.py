"""docs/api.md has every public name of the package, and every docstring that it needs."""

from __future__ import annotations

import inspect
import re

import api_page
import pytest

import satchel
from satchel.runtime.option import options_of


def test_the_page_is_current() -> None:
    """`python tests/support/api_page.py` writes it."""
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page()


def test_every_exported_name_is_on_the_page() -> None:
    named = {name for names in api_page.SECTIONS.values() for name in names}
    assert named | {"__version__", "kernels"} == set(satchel.__all__)


def test_every_member_has_a_docstring() -> None:
    kinds = [*(kind for _, kind in api_page.exported()), *api_page.results()]
    bare = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in api_page.members(kind).items()
        if api_page.undocumented(member)
    ]
    assert not bare and all(inspect.getdoc(kind) for kind in kinds)


def test_every_option_is_listed() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    for kind in (satchel.Options, satchel.GenerateOptions, satchel.Sampling):
        listed = text.split(f"\n### {kind.__name__}\n")[1].split("\n### ")[0]
        own = {name for name, option in options_of(kind).items() if not option.inside}
        assert own <= set(re.findall(r"^- `(\w+): ", listed, re.M))


def test_links_of_the_page_have_their_headings() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    headings = {h.lower().replace(".", "") for h in re.findall(r"^#+ (.*)$", text, re.M)}
    links = re.findall(r"\(#([^)]+)\)", text)
    assert "modelchat" in links and set(links) <= headings


@pytest.mark.parametrize("field", ["- `rank: int`: Number of likelier tokens", "- `token: int`"])
def test_fields_of_results_have_their_comments(field: str) -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    assert field in text.split("\n### Logprob\n")[1].split("\n### ")[0].splitlines()
