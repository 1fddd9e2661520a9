"""A browser without a window, for tests of pages: Debian's chromium-headless-shell, which is chromium without
what only a window needs, or chromium. Tests of the page take 142 s on two cores in the one, 206 in the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = tuple(Path("/usr/bin") / name for name in ("chromium-headless-shell", "chromium"))
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """A browser of playwright, closed at the end. The test is skipped where either of both is absent."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    program = next((p for p in PROGRAMS if p.exists()), None)
    if program is None:
        pytest.skip("no chromium: apt-get install chromium-headless-shell")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()
