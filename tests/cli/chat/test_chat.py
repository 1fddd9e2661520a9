"""`satchel chat`: turns from a pipe, cancelled and regenerated answers, slash commands."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel

from satchel.cli.chat import reader
from satchel.cli.chat.display import Look
from satchel.cli.chat.history import ChatMessage, ChatSettings, Conversation
from satchel.cli.chat.loop import answer_turns
from satchel.cli.chat.output import TextOutput
from satchel.cli.chat.session import How, Session
from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.runtime.api.defaults import RequestDefaults
from satchel.runtime.grammar import AnyJson
from satchel.runtime.sampling import Sampling

Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture
def chat(fake: FakeModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Chat:
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", fake.load)
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)

    def call(stdin: str, *args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        code = main(["chat", "-m", "some.gguf", *args])
        return code, *capfd.readouterr()

    return call


def session(fake: FakeModel, **settings: Any) -> Session:
    kept = Conversation("Fake 2M", "", (), ChatSettings(Sampling(**settings)))
    return Session(fake, kept, Look(), interactive=True, out=TextOutput())  # type: ignore[arg-type]


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def contents(fake: FakeModel) -> list[str]:
    return [m["content"] for m in fake.conversations[-1]]


# Turns from a pipe


def test_each_line_is_a_turn_and_answers_alone_are_on_stdout(chat: Chat, fake: FakeModel) -> None:
    fake.scripts += [["One", "."], ["Two."]]
    assert chat("first\n\nsecond\n", "-sys", "Be brief.") == (0, "One.\nTwo.\n", "")
    assert contents(fake) == ["Be brief.", "first", "One.", "second"]


def test_the_prompt_of_the_command_line_is_the_first_turn(chat: Chat, fake: FakeModel) -> None:
    assert chat("second\n", "-p", "/first", "-st")[0] == 0
    assert (len(fake.asked), contents(fake)) == (1, ["/first"])


def test_a_flag_goes_before_the_file_s_sampling(chat: Chat, fake: FakeModel) -> None:
    fake.request_defaults = RequestDefaults(Sampling(temperature=0.25, top_k=7))
    assert chat("hi\n/set min_p 0.5\nho\n", "--top-k", "40")[0] == 0
    drawn = [asked["sampling"] for asked in fake.asked]
    assert [(s.temperature, s.top_k, s.min_p) for s in drawn] == [(0.25, 40, 0.05), (0.25, 40, 0.5)]


def test_what_fails_is_told_and_the_rest_goes_on(chat: Chat, fake: FakeModel) -> None:
    code, out, err = chat("/sett x\n/set top_k 0\nhi\n")
    assert (code, out) == (1, "Hello!\n")
    assert err.splitlines() == ["error: no command /sett; did you mean /set?", "top_k 40 → 0"]
    assert fake.asked[0]["sampling"].top_k == 0


def test_exit_ends(chat: Chat, fake: FakeModel) -> None:
    assert chat("/bye\nhi\n") == (0, "", "")


def test_ctrl_c_ends_a_piped_chat(chat: Chat, fake: FakeModel) -> None:
    fake.scripts.append(["a ", interrupt, "b"])
    code, out, _ = chat("one\ntwo\n")
    assert (code, out, len(fake.asked)) == (130, "a \n", 1)


def test_raw_completion_is_not_a_chat(chat: Chat) -> None:
    code, _, err = chat("", "-no-cnv")
    assert code == 2 and "satchel complete" in err


@pytest.mark.parametrize(
    ("typed", "turns"),
    [
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a \\\nb\\\nc\nd\n", ["a \nb\nc", "d"]),
        ('"""a\n\nb"""\nc\n', ["a\n\nb", "c"]),
        ('"""\na\n"""\n', ["a"]),
        ('"""a"""\n', ["a"]),
        ('""""""\n', [""]),
        ('say """x\n', ['say """x']),
        ("", []),
        ("\n", [""]),
    ],
)
def test_lines_that_belong_together(typed: str, turns: list[str]) -> None:
    stream = io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8")
    assert list(reader.read_lines(stream, lambda: None)) == turns


@pytest.mark.parametrize(
    ("typed", "said"), [(b"a\\\n", "1 lines"), (b'"""a\nb', "2 lines"), (b"a\n\xff\n", "line 2")]
)
def test_lines_that_cannot_be_sent(typed: bytes, said: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(typed), "utf-8")
    with pytest.raises(RequestError, match=said):
        list(reader.read_lines(stream, lambda: None))


# Answers: cancelled and regenerated


def test_a_stopped_answer_stays_and_is_marked(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    fake.scripts.append(["so ", "far", interrupt, "never"])
    s = session(fake)
    answer_turns(s, ["go on", "and?"])
    assert s.conversation.turns[1] == ChatMessage("assistant", "so far", stopped=True)
    assert contents(fake) == ["go on", "so far", "and?"]
    assert "stopped" in capsys.readouterr().out


def test_stopped_before_the_first_word_takes_the_message_back(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.while_reading.append(interrupt)
    s = session(fake)
    answer_turns(s, ["word " * 1500])
    assert s.conversation.turns == () and "taken back" in capsys.readouterr().out


def test_a_full_context_keeps_the_conversation(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    fake.context = 8
    fake.scripts.append(["a", "b"])
    s = session(fake)
    s.how = How(on_overflow="error")
    answer_turns(s, ["one two", "word " * 20])
    assert [t.content for t in s.conversation.turns] == ["one two", "ab"]
    out = capsys.readouterr().out
    assert "would have 23 tokens, the context holds 8" in out and "/clear" in out
    answer_turns(s, ["/clear", "one two"])
    assert [t.content for t in s.conversation.turns] == ["one two", "Hello!"]


def test_a_full_context_forgets_the_oldest_turns_and_says_so_once(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.context = 12
    s = session(fake)
    s.conversation = replace(s.conversation, system="be kind")
    answer_turns(s, ["one two three", "four five", "six seven", "eight"])
    assert contents(fake) == ["be kind", "six seven", "Hello!", "eight"]
    said = capsys.readouterr().out
    assert said.count("is full") == 1 and "error" not in said.replace("--on-overflow error", "")
    assert "the context of 12 tokens is full: 4 messages are forgotten (--on-overflow error" in said
    assert len(s.conversation.turns) == 8, "what is saved and shown stays whole"
    assert (fake.asked[-1]["on_overflow"], fake.asked[-1]["max_tokens"]) == ("shift", 4 * 12)
    answer_turns(s, ["ten"])
    assert contents(fake) == ["be kind", "six seven", "Hello!", "eight", "Hello!", "ten"]
    answer_turns(s, ["/undo", "/clear", "new"])
    assert contents(fake) == ["be kind", "new"]


def test_a_message_that_is_longer_than_the_context_is_refused(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.context = 8
    s = session(fake)
    answer_turns(s, ["one two", "word " * 20, "three"])
    assert [t.content for t in s.conversation.turns] == ["one two", "Hello!", "three", "Hello!"]
    out = capsys.readouterr().out
    assert "the message alone would have 20 tokens, the context holds 8" in out and "forgotten" not in out
    assert contents(fake) == ["one two", "Hello!", "three"]


def filled(fake: FakeModel, piece: str, how: How) -> Session:
    """A session whose first answer, of these pieces, fills the context of four tokens."""
    fake.context = 4
    fake.scripts.append([piece] * 9)
    s = session(fake)
    s.how = how
    answer_turns(s, ["one two"])
    return s


def test_structured_output_cannot_shift_and_says_what_to_do(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(fake, "{ ", How(grammar=AnyJson()))
    assert (fake.asked[0]["on_overflow"], fake.asked[0]["max_tokens"]) == ("error", -1)
    assert "is full, and structured output cannot shift; /clear or -c makes room" in capsys.readouterr().out


def test_a_shift_within_an_answer_is_told_with_the_choice(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    def shift() -> None:
        assert fake.reply is not None
        fake.reply.shifts, fake.reply.notes = 1, ("the context was full: 9 older tokens were forgotten",)

    fake.scripts.append(["a", shift, "b"])
    answer_turns(session(fake), ["one"])
    line = (
        "note: the context was full: 9 older tokens were forgotten; --on-overflow error ends the answer there"
    )
    assert capsys.readouterr().out.splitlines().count(line) == 1


def test_an_answer_that_fills_the_context_is_told(
    fake: FakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    s = filled(fake, "a ", How(on_overflow="error"))
    assert s.conversation.turns[1].content == "a a a "
    out = capsys.readouterr().out
    assert "the context of 4 tokens is full; /clear" in out and "100% of 4" in out


def test_regen_answers_the_last_message_again(fake: FakeModel) -> None:
    fake.scripts += [["first"], ["second"], ["third"]]
    s = session(fake, seed=10)
    answer_turns(s, ["q", "/regen", "/regen"])
    assert [t.content for t in s.conversation.turns] == ["q", "third"]
    assert [a["sampling"].seed for a in fake.asked] == [10, 11, 12]
    assert contents(fake) == ["q"]


@pytest.mark.parametrize(
    ("before", "said"), [([], "nothing was answered"), (["/set temp 0", "q"], "would be the same")]
)
def test_regen_that_makes_no_sense(
    fake: FakeModel, capsys: pytest.CaptureFixture[str], before: list[str], said: str
) -> None:
    answer_turns(session(fake), [*before, "/regen"])
    assert said in capsys.readouterr().out


def test_a_message_that_is_no_text_is_refused(fake: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    answer_turns(session(fake), ["ab\udcff"])
    assert "character 2" in capsys.readouterr().out and not fake.asked


# Commands


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("/set temperature 0.2", "temperature 0.8 → 0.2"),
        ("/set temp 1", "temperature 0.8 → 1"),
        ("/set top-k 5", "top_k 40 → 5"),
        ("/set max_tokens 7", "max_tokens -1 → 7"),
        ("/set seed 3", "seed random → 3"),
        ("/set seed -1", "seed random → random"),
        ("/set top_p", "top_p 0.95"),
        ("/set", "repeat_last_n        64"),
        ("/set temperatur 1", "error: no setting temperatur; did you mean temperature?"),
        ("/set temperature", "temperature 0.8"),
        ("/set temperature hot", "error: temperature: expected a number, got 'hot'"),
        ("/set temperature nan", "error: temperature is nan"),
        ("/set temperature 1e999", "error: temperature is inf"),
        ("/set top_k 1.5", "error: top_k: expected a whole number, got '1.5'"),
        ("/set top_k " + "9" * 5000, "error: top_k: expected a whole number"),
        ("/set max_tokens -2", "error: max_tokens is -2"),
        ("/system Be kind.", "system prompt set"),
        ("/system", "there is no system prompt"),
        ('/system ""', "system prompt taken away"),
        ("/clear", "the conversation is forgotten"),
        ("/clear all", "error: /clear takes nothing after its name"),
        ("/help", "/regen"),
        ("/?", "/regen"),
        ("/", "error: no command /"),
        ("/claer", "did you mean /clear?"),
        ("/etc/passwd", "// begins a message with a slash"),
        ("/save", "error: /save needs the name of a file"),
        ("/read /no/such/file", "error: /no/such/file: No such file"),
        ("/load /dev/zero", "error: /dev/zero: expected a file, got something else"),
        ("/load /no/such/file", "error: /no/such/file: No such file"),
    ],
)
def test_commands(fake: FakeModel, capsys: pytest.CaptureFixture[str], typed: str, shown: str) -> None:
    answer_turns(session(fake), [typed])
    assert shown in capsys.readouterr().out
    assert not fake.asked


def test_set_reaches_the_next_answer(fake: FakeModel) -> None:
    answer_turns(session(fake), ["/set min_p 0.5", "/set max_tokens 3", "/system Be kind.", "hi"])
    assert (fake.asked[0]["sampling"].min_p, fake.asked[0]["max_tokens"]) == (0.5, 3)
    assert contents(fake) == ["Be kind.", "hi"]


def test_two_slashes_begin_a_message(fake: FakeModel) -> None:
    answer_turns(session(fake), ["//etc is a folder"])
    assert contents(fake) == ["/etc is a folder"]


def test_save_with_its_state_and_load_without_a_fitting_one(
    fake: FakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, state = tmp_path / "c.json", tmp_path / "c.json.kv"
    answer_turns(session(fake), ["hi", f"/save +state {file}"])
    assert fake.saved == [state] and "2 tokens saved" in capsys.readouterr().out
    state.write_text("no state")
    answer_turns(session(fake), [f"/load {file}", f"/save +state {file}"])
    out = capsys.readouterr().out
    assert "2 messages loaded" in out and "computed again" in out
    assert "no saved state" in out and state.read_text() == "no state"


def test_a_session_goes_on_in_the_next_run(chat: Chat, fake: FakeModel, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert chat("one\n", "--session", str(file))[0] == 0
    assert chat("two\n", "--session", str(file))[0] == 0
    asked, kept = ([m["content"] for m in c] for c in fake.conversations[-2:])
    assert asked == ["one", "Hello!", "two"] and kept == [*asked, "Hello!"]
    assert fake.saved == [file.with_name("talk.json.kv")] * 2
    file.write_text("{}")
    assert chat("three\n", "--session", str(file))[0] != 0 and file.read_text() == "{}"


def test_read_sends_a_file(fake: FakeModel, tmp_path: Path) -> None:
    file = tmp_path / "a b.txt"
    file.write_text("/set is\ntext here\n", encoding="utf-8")
    answer_turns(session(fake), [f'/read "{file}"'])
    assert contents(fake) == ["/set is\ntext here"]


def test_save_and_load_in_a_chat(fake: FakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.json"
    answer_turns(session(fake), ["/set top_k 7", "hi", f"/save {file}"])
    other = session(fake)
    other.conversation = Conversation("Another")
    answer_turns(other, [f"/load {file}", "more"])
    assert contents(fake) == ["hi", "Hello!", "more"]
    assert fake.asked[-1]["sampling"].top_k == 7
    assert "they were written with Fake 2M; this is Another" in capsys.readouterr().out
