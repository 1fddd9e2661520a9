"""`satchel chat --session` with a real model: the second run computes nothing twice."""

import io
import sys
from pathlib import Path

import pytest
from devices import needs

from satchel import Model
from satchel.cli.main import main


@needs("cpu")
def test_the_state_of_a_session_is_used_and_goes_with_its_conversation(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file, state = tmp_path / "talk.json", tmp_path / "talk.json.kv"
    words = "Tell me about the sea, the rivers that run into it, and the ships. " * 4

    def chat(stdin: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        args = ["--session", str(file), "--temp", "0", "-n", "20", "-c", "512"]
        assert main(["chat", "-m", str(bundled_model), *args]) in (0, None)
        return capfd.readouterr().err

    chat(words + "\n")
    with Model.load(bundled_model, context=512) as model:
        tokens = model.restore_state(state).tokens
    assert tokens >= 64
    assert f"{tokens} tokens restored" in chat("And the wind?\n")
    chat("/clear\n")
    assert file.exists() and not state.exists()
