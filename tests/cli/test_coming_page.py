"""docs/coming-from.md: every row of its tables is true of the program."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi")

import coming_page as page
from coming_page import OLLAMA, ROUTES, VLLM, Row

from satchel.cli.main import commands, declared, parsed

SERVE = declared(parsed("serve"))


def test_the_page_is_current() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


@pytest.mark.parametrize("row", OLLAMA, ids=lambda row: row.theirs)
def test_a_command_of_ollama(row: Row) -> None:
    """What stands beside it is a command with these options; one without it is no command here."""
    if not row.ours:
        assert row.theirs.split()[1] not in commands() and row.text
        return
    _, name, *words = row.ours.split()
    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", " ".join(words))) <= set(declared(parsed(name)))


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_of_ollama(route: str) -> None:
    assert route in page.bodies()


def test_no_route_is_left_out() -> None:
    assert set(page.bodies()) == set(ROUTES)


@pytest.mark.parametrize("row", VLLM[1:], ids=lambda row: row.theirs)
def test_a_flag_of_vllm(row: Row) -> None:
    """What stands beside it is an option of `satchel serve`; one without it says why."""
    assert row.ours in SERVE if row.ours else row.text and row.theirs not in SERVE
