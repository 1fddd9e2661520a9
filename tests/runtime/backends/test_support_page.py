"""docs/support.md: its tables are what the backends of this tree answer."""

from __future__ import annotations

import pytest
import support_page

from satchel.runtime.device.libraries import libraries


def test_the_tables_are_current() -> None:
    usable = {found.name for found in libraries() if not found.reason}
    if not {"cpu", support_page.PORTABLE} <= usable:
        pytest.skip("the CPU's library or the emulated GPU was not built")
    text = support_page.PAGE.read_text(encoding="utf-8")
    assert support_page.page(text) == text
