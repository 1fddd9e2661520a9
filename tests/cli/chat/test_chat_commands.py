"""Chat commands that change what is saved or shown: names, settings, /undo, /edit, /stats; and --json."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel

from satchel.cli.chat import names
from satchel.cli.chat.commands import completions
from satchel.cli.chat.display import Look
from satchel.cli.chat.history import Conversation
from satchel.cli.chat.loop import answer_turns
from satchel.cli.chat.output import TextOutput
from satchel.cli.chat.registry import ALIASES, COMMANDS, find
from satchel.cli.chat.session import Session
from satchel.cli.main import main

Say = Callable[..., str]


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture
def say(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Say:
    """Runs turns in one chat; returns the output."""
    monkeypatch.setattr(names, "chats_folder", lambda: tmp_path / "chats")
    session = Session(fake, Conversation("Fake 2M"), Look(), interactive=True, out=TextOutput())  # type: ignore[arg-type]

    def run(*turns: str) -> str:
        answer_turns(session, turns)
        return capsys.readouterr().out

    return run


def contents(fake: FakeModel) -> list[str]:
    return [m["content"] for m in fake.conversations[-1]]


def test_every_command_has_its_line_and_every_alias_its_command() -> None:
    assert all(c.line and not c.line.endswith(".") for c in COMMANDS.values())
    assert all(find(alias) is not None for alias in ALIASES)
    assert dict(completions("/reg")) == {
        "/regenerate": "Answer the last message again",
        "/regen": "Answer the last message again",
    }


def test_undo(say: Say, fake: FakeModel) -> None:
    assert "nothing was said yet" in say("/undo")
    assert "taken back: two" in say("one", "two", "/undo")
    say("three")
    assert contents(fake) == ["one", "Hello!", "three"]


def test_edit_sends_the_changed_message(
    say: Say, fake: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ncase $(cat "$1") in old) echo new > "$1";; new) ;; *) exit 3;; esac\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    assert "nothing was said yet" in say("/edit")
    say("old", "/edit")
    assert contents(fake) == ["new"]
    assert "nothing was changed" in say("/edit")
    assert "ended with 3" in say("/clear", "other", "/edit")
    monkeypatch.setenv("EDITOR", str(tmp_path / "none"))
    assert "$EDITOR names the editor" in say("/edit")


def test_names_stand_for_files_of_the_users_folder(say: Say, tmp_path: Path) -> None:
    assert "none is saved yet" in say("/sessions")
    assert f"saved to {tmp_path}/chats/my talk.json" in say("hi", "/save my talk", "/save")
    assert "my talk" in say("/sessions") and "2 messages  hi" in say("/sessions")
    assert "2 messages loaded" in say("/clear", "/load my talk")
    assert "no conversation is saved as nobody; there are: my talk" in say("/load nobody")
    assert [word for word, _ in completions("/load m")] == ["/load my talk"]
    assert (tmp_path / "chats").stat().st_mode & 0o077 == 0


def test_a_file_is_found_by_a_plain_name_too(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    say("hi", "/save ./plain")
    assert "2 messages loaded" in say("/load plain")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("/set reasoning high", "reasoning auto → high"),
        ("/set reasoning 64", "reasoning auto → 64"),
        ("/set nothink", "reasoning auto → off"),
        ("/set think off", "reasoning auto → off"),
        ("/set reasoning a b", "error: reasoning: expected"),
        ("/set verbose on", "verbose off → on"),
        ("/set verbose yes", "error: verbose: expected on or off, got 'yes'"),
        ("/set quiet", "verbose off → off"),
        ("/set markdown off", "markdown off → off"),
        ("/set stop END", "stop none → 'END'"),
        ("/set parameter top_k 3", "top_k 40 → 3"),
        ("/set format xml", "error: format: expected json or none"),
        ("/set reason on", "did you mean reasoning?"),
        ("/set system x", "system prompt set"),
        ("/set noformat", "format none → none"),
        ("/? shortcuts", "Ctrl-R"),
        ("/help me", "error: /help me: there is"),
        ("/show", "Fake 2M"),
        ("/show template", "there is no template"),
        ("/show parameters", "top_k                40"),
        ("/show all", "error: /show all: there are info"),
        ("/stats", "answer tokens:        0"),
    ],
)
def test_settings_and_facts(say: Say, typed: str, shown: str) -> None:
    assert shown in say(typed)


def test_what_is_set_reaches_the_next_answer(say: Say, fake: FakeModel) -> None:
    say(
        "/set reasoning 9",
        "/set stop END",
        "/set stop ALSO",
        "hi",
        "/set stop none",
        "/set reasoning auto",
        "ho",
    )
    assert (fake.asked[0]["reasoning"], fake.asked[0]["stop"]) == (9, ("END", "ALSO"))
    assert fake.asked[1]["reasoning"] is None and fake.asked[1]["stop"] == ()


def test_verbose_prints_the_timings(say: Say) -> None:
    shown = say("/set verbose on", "hi")
    assert "  load duration:        0.000 s" in shown and "  eval rate:            2.00 tokens/s" in shown


def chat_json(
    fake: FakeModel, stdin: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", fake.load)
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
    code = main(["chat", "-m", "some.gguf", "--json"])
    out, err = capfd.readouterr()
    assert not err or code
    return code, [json.loads(line) for line in out.splitlines()]


def test_json_is_one_object_a_line(
    fake: FakeModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.scripts.append(["<think>", "hm", "</think>", "a\n", "b"])
    code, events = chat_json(fake, 'hi\n{"text": "two\\nlines"}\n/set top_k x\n', monkeypatch, capfd)
    assert code == 1
    assert [e["event"] for e in events[:2]] == ["start", "thinking"]
    assert "".join(e["text"] for e in events if e["event"] == "piece") == "a\nbHello!"
    answers = [e for e in events if e["event"] == "answer"]
    assert len(answers) == 2 and answers[1]["text"] == "Hello!" and answers[1]["finish_reason"] == "stop"
    assert events[-1] == {"event": "error", "message": "top_k: expected a whole number, got 'x'"}
    assert contents(fake)[-1] == "two\nlines"


@pytest.mark.parametrize("line", ["{", '{"text": 1}', '{"text": "a", "more": 1}', "{" * 100_000])
def test_json_that_is_no_turn_ends_it(
    fake: FakeModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    code, events = chat_json(fake, line + "\n", monkeypatch, capfd)
    assert code == 1 and [e["event"] for e in events] == ["start"]
