"""Files attached to a message: by command, by pattern, by name in the text; a file that is not text is a
one-line error.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_model import FakeModel

from satchel.cli.chat.attach import LARGEST, Attachment, attached, mentioned, with_files
from satchel.cli.chat.display import Look
from satchel.cli.chat.history import Conversation
from satchel.cli.chat.loop import answer_turns
from satchel.cli.chat.output import TextOutput
from satchel.cli.chat.session import Session
from satchel.errors import RequestError


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("first\r\nsecond\n", encoding="utf-8")
    (tmp_path / "b c.txt").write_text("```\ncode\n```", encoding="utf-8")
    return tmp_path


def run(fake: FakeModel, *turns: str) -> list[str]:
    talk = Session(fake, Conversation(), Look(), interactive=True, out=TextOutput())  # type: ignore[arg-type]
    answer_turns(talk, turns)
    return [message["content"] for message in fake.conversations[-1]] if fake.conversations else []


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("see @a.txt", ["a.txt"]),
        ("(see) @a.txt, and more", ["a.txt"]),
        ("@a.txt", ["a.txt"]),
        ('@"b c.txt"?', ["b c.txt"]),
        ("@'b c.txt'", ["b c.txt"]),
        ("@a.txt @a.txt", ["a.txt"]),
        ("me@a.txt", []),
        ("@nobody said", []),
        ("@", []),
        ("@\0", []),
        ("@" + "x" * 5000, []),
    ],
)
def test_files_that_a_message_names(here: Path, typed: str, names: list[str]) -> None:
    assert [one.name for one in mentioned(typed)[0]] == names


@pytest.mark.parametrize(
    "name", ["nofile.txt", "no/such.txt", "no/such", "~/x.md", "Main.java", "a-b.tar.gz"]
)
def test_a_message_that_names_a_missing_file_is_not_sent(
    here: Path, fake: FakeModel, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for text in (f"see @{name}", f"see @a.txt, @{name}!", f"@{name}", f'see @"{name}"'):
        assert run(fake, text) == []
        assert f"{name}: no such file; nothing was sent" in capsys.readouterr().out
    assert run(fake, f"see `@{name}`") == [f"see `@{name}`"], "in backquotes it is text"


@pytest.mark.parametrize(
    "text",
    [
        "ask @nobody",
        "ask me@nofile.txt",
        "price @ 3.50 each",
        "what does @app.get('/x') do?",
        "explain:\n@functools.cache\ndef f(): ...",
        "explain:\n    @app.task\n    def f(): ...",
    ],
)
def test_a_word_that_is_no_file_is_sent(here: Path, fake: FakeModel, text: str) -> None:
    assert run(fake, text) == [text]


def test_a_message_carries_its_files(here: Path, fake: FakeModel) -> None:
    whole = run(fake, "/file a.txt", "compare @'b c.txt'", "and now?")
    first = "a.txt:\n```\nfirst\nsecond\n```\n\nb c.txt:\n````\n```\ncode\n```\n````\n\ncompare @'b c.txt'"
    assert whole == [first, "Hello!", "and now?"]


def test_a_pattern_names_many(here: Path, fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    content = run(fake, "/glob *.txt", "compare")[0]
    assert content.index("a.txt:") < content.index("b c.txt:") < content.index("compare")
    run(fake, "/glob *.md")
    assert "*.md: matches no file" in capsys.readouterr().out


def test_no_file_is_attached_any_more(here: Path, fake: FakeModel) -> None:
    assert run(fake, "/file a.txt", '/file ""', "hi") == ["hi"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "there is no text in it"),
        (b" \n", "there is no text in it"),
        (b"a\0b", "is a binary file; only text can be attached"),
        (b"a\xff", "expected UTF-8 text, got byte 0xff at 1"),
        (b"a" * (LARGEST + 1), "1,048,577 bytes are too many: at most 1,048,576 fit"),
    ],
)
def test_what_cannot_be_attached_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(RequestError, match=said) as error:
        attached(file)
    assert "\n" not in str(error.value)


def test_no_file_at_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "pipe", "expected a file"),
        (tmp_path / "no", "No such"),
    ):
        with pytest.raises(RequestError, match=said):
            attached(path)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfhi")
    assert attached(tmp_path / "f").text == "hi"
    assert with_files("q", [Attachment("n", "t")]) == "n:\n```\nt\n```\n\nq"
