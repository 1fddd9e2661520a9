"""/model changes the model and keeps the conversation; /image is answered in words."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_file import write_model

from satchel.cli.main import main

Chat = Callable[..., tuple[int, list[dict[str, Any]]]]
TEMPLATE = "{% for m in messages %}{{ m.content }}|{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, one of which is in the store."""
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)
    for name in ("HF_HOME", "OLLAMA_MODELS", "HOME", "SATCHEL_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name, temperature in (("one", 0.5), ("two", 0.25)):
        write_model(
            tmp_path / f"{name}.gguf",
            tokenizer__chat_template=TEMPLATE,
            general__name=name,
            general__sampling__temp=temperature,
        )
    return tmp_path


@pytest.fixture
def chat(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Chat:
    def call(stdin: str, *args: str) -> tuple[int, list[dict[str, Any]]]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        code = main(["chat", "-m", "one.gguf", "-c", "64", "-n", "3", "-s", "1", "--json", *args])
        return code, [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    return call


def texts(events: list[dict[str, Any]], kind: str = "note") -> list[str]:
    return [event["message" if kind == "error" else "text"] for event in events if event["event"] == kind]


def test_another_model_goes_on_with_the_conversation(chat: Chat) -> None:
    code, events = chat("hi\n/set top_k 7\n/model two.gguf\nho\n/set temperature\n/set top_k\n")
    assert code == 0
    assert any(text.strip() == "two goes on with 2 messages" for text in texts(events))
    first, second = [event for event in events if event["event"] == "answer"]
    assert second["prompt_tokens"] > first["prompt_tokens"], "the first message is still there"
    assert texts(events)[-2:] == ["temperature 0.25", "top_k 7"], "its own temperature, the user's top_k"


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(chat: Chat, folder: Path) -> None:
    (folder / "broken.gguf").write_bytes(b"GGUF nothing")
    code, events = chat("hi\n/model broken.gguf\n/model nowhere\nho\n/show\n")
    assert code == 1
    broken, nowhere = texts(events, "error")
    assert "broken.gguf" in broken and broken.endswith("; one stays")
    assert "no model of that name" in nowhere and nowhere.endswith("; one stays")
    assert len([event for event in events if event["event"] == "answer"]) == 2
    assert "  one" in texts(events)


def test_models_are_listed_and_the_one_that_answers_is_marked(
    chat: Chat, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["cp", "two.gguf", "second"]) == 0
    capfd.readouterr()
    code, events = chat("/model\n/model second\n/model\n")
    rows = [text for text in texts(events) if "gguf" in text or "second" in text]
    assert code == 0
    assert rows[0].startswith("  second ") and rows[1] == f"* {folder / 'one.gguf'}"
    assert any(row.startswith("* second ") and row.endswith("store") for row in rows)
    assert "/model NAME or /model FILE loads another; the conversation stays" in texts(events)


def test_pictures_are_answered_in_words(chat: Chat) -> None:
    code, events = chat("/image photo.png\n/help\n")
    assert code == 1 and "pictures are not read yet, and nothing was attached" in texts(events, "error")[0]
    listed = [text.split()[0] for text in texts(events)]
    assert {"/model", "/image"} <= {*listed}
