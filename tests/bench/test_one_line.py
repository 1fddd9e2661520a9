"""How benches end where something is wrong."""

from __future__ import annotations

import pytest
from one_line import errors_in_one_line

from satchel.errors import RequestError


def test_an_error_is_one_line_behind_the_programs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["somewhere/quality.py"])
    with pytest.raises(SystemExit) as ended, errors_in_one_line():
        raise RequestError("m.gguf: can't be read")
    assert ended.value.code == "quality: m.gguf: can't be read"


def test_other_errors_keep_their_backtrace() -> None:
    with pytest.raises(ZeroDivisionError), errors_in_one_line():
        print(1 // 0)
