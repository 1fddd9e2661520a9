"""docs/api.md names everything public of the package, and all of it has a docstring. tests/test_site.py looks
at the page that the site makes of it.
"""

from __future__ import annotations

import inspect
import re

import api_page

import satchel
from satchel.runtime import kernels


def test_the_page_has_every_class_and_what_calls_return() -> None:
    classes = [f"satchel.{name}" for name, _ in api_page.exported()]
    returned = [f"{kind.__module__}.{kind.__name__}" for kind in api_page.results()]
    custom = [f"satchel.runtime.kernels.{name}" for name in kernels.__all__ if name not in ("CUDA", "PTX")]
    assert sorted(api_page.directives()) == sorted(classes + returned + custom)


def test_members_that_are_listed_are_all() -> None:
    """A class whose members have an order of their own lists each."""
    kinds = dict(api_page.exported())
    for path, listed in api_page.directives().items():
        if listed:
            assert sorted(listed) == sorted(api_page.members(kinds[path.removeprefix("satchel.")]))


def test_what_is_left_out_is_left_out_of_the_site() -> None:
    text = (api_page.PAGE.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")
    left_out = {name for names in re.findall(r'"!\^\(([\w|]+)\)\$"', text) for name in names.split("|")}
    assert left_out == api_page.INNER


def test_every_member_has_a_docstring() -> None:
    kinds = [*(kind for _, kind in api_page.exported()), *api_page.results()]
    bare = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in api_page.members(kind).items()
        if api_page.undocumented(member)
    ]
    assert not bare and all(inspect.getdoc(kind) for kind in kinds)


def test_every_name_is_exported_or_said_not_to_be_a_class() -> None:
    others = {name for name in satchel.__all__ if not inspect.isclass(getattr(satchel, name))}
    assert others == {"__version__", "kernels"}
