"""Saved conversations: they are restored completely, never overwritten, and invalid files are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from satchel.cli.chat.history import ChatMessage, ChatSettings, Conversation, load, save
from satchel.errors import RequestError
from satchel.runtime.sampling import Sampling


def some_conversation() -> Conversation:
    turns = (
        ChatMessage("user", 'é 日本 "\n\x00'),
        ChatMessage("assistant", "", stopped=True),
        ChatMessage("user", "b"),
        ChatMessage("assistant", "c"),
    )
    settings = ChatSettings(Sampling(temperature=0.1, top_k=0, seed=2**64 - 1), 5)
    return Conversation("Fake 2M", "Be kind.", turns, settings)


def test_save_and_load(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    save(some_conversation(), file)
    assert load(file) == some_conversation()
    save(Conversation("other"), file)
    assert load(file) == Conversation("other")
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


@pytest.mark.parametrize("content", [b"my notes", b'{"kind": "other"}', b""])
def test_save_replaces_nothing_but_conversations(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes"
    file.write_bytes(content)
    with pytest.raises(RequestError, match="choose another name"):
        save(some_conversation(), file)
    assert file.read_bytes() == content


@pytest.mark.parametrize("target", [".", "no/such/folder/c.json"])
def test_save_where_no_file_can_be(tmp_path: Path, target: str) -> None:
    with pytest.raises(RequestError):
        save(some_conversation(), tmp_path / target)
    assert not list(tmp_path.iterdir())


def changed(**parts: Any) -> bytes:
    whole = {
        "kind": "satchel-conversation",
        "version": 1,
        "model": "m",
        "system": "",
        "settings": {},
        "messages": [],
    }
    return json.dumps({**whole, **parts}).encode()


def message(**parts: Any) -> list[Any]:
    return [{"role": "user", "content": "a", **parts}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"9" * 10_000, "is no JSON|is no conversation"),
        (b"[]", "is no conversation"),
        (b'{"kind": 1}', "is no conversation"),
        (changed(version=2), "version: expected 1, got 2"),
        (changed(version="x" * 999), "version: expected 1"),
        (changed(model=None), "model: expected text"),
        (changed(system=["a"]), "system: expected text"),
        (changed(system="\ud800"), "half of a surrogate pair"),
        (changed(settings=[]), "settings: expected an object"),
        (changed(settings={"temp\n": 1}), "is no setting"),
        (changed(settings={"temperature": "1"}), "temperature: expected a number"),
        (changed(settings={"temperature": float("nan")}), "temperature is nan"),
        (changed(settings={"top_k": True}), "top_k: expected a whole number"),
        (changed(settings={"top_k": 1.0}), "top_k: expected a whole number"),
        (changed(settings={"top_k": None}), "top_k: expected a whole number"),
        (changed(settings={"seed": 2**70}), "seed is"),
        (changed(settings={"max_tokens": 2**40}), "max_tokens is"),
        (changed(messages={}), "messages: expected a list"),
        (changed(messages=["a"]), r"messages\[0\]: expected an object"),
        (changed(messages=message(role="system")), r"messages\[0\].role: expected 'user', got 'system'"),
        (changed(messages=message(content=None)), r"messages\[0\].content: expected text"),
        (changed(messages=message(content="\udc00")), r"messages\[0\].content: half of a surrogate"),
        (changed(messages=message(stopped=1)), r"messages\[0\].stopped: expected true or false"),
        (changed(messages=message()[:1]), "the last of 1 has no answer"),
        (changed(messages=message()[::-1]), r"messages\[0\].role: expected 'user'"),
    ],
)
def test_hostile_conversations_are_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(content)
    with pytest.raises(RequestError, match=said) as error:
        load(file)
    text = str(error.value)
    assert text.startswith(f"{file}: ") and "\n" not in text and len(text) < len(str(file)) + 400


def test_a_conversation_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    with file.open("wb") as sparse:
        sparse.truncate((64 << 20) + 1)
    with pytest.raises(RequestError, match="too many"):
        load(file)


def test_random_damage_of_a_saved_file_is_one_error(tmp_path: Path) -> None:
    file, draw = tmp_path / "c.json", random.Random(1)
    save(some_conversation(), file)
    whole, refused = file.read_bytes(), 0
    for _ in range(300):
        data = bytearray(whole[: draw.randint(0, len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randint(0, 3)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data)
        try:
            assert isinstance(load(file), Conversation)
        except RequestError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50
