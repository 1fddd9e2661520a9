"""Test of bench/speculation.py: a task whose prompt is a module is answered, with drafts and without."""

from __future__ import annotations

import pytest
import speculation


def test_a_module_is_changed_with_the_same_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speculation, "LONG", {})
    monkeypatch.setattr(speculation, "LEAST", 0.0)
    assert speculation.main(["--tasks=code", "--rounds=1", "--tokens=12"]) == 0
    _, _, greedy, sampled = capsys.readouterr().out.splitlines()
    assert greedy.startswith("| code | greedy | ") and sampled.startswith("| code | sampled | ")
