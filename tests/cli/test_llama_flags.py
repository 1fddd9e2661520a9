"""The flags of llama-cli and llama-server: every spelling of the table is run, and does what its row says."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import llama_flags_page as page
import pytest

from satchel.cli import main as program
from satchel.cli.llama_cpp.table import OLDER, ROWS, TABLES
from satchel.cli.llama_cpp.verdict import NOTE, REFUSED, SAME, Row
from satchel.cli.usage import UsageError

pytest.importorskip("fastapi")
ALL = [row for rows in (*TABLES, OLDER) for row in rows]
COMMANDS = {"chat": "llama-cli", "run": "llama-cli", "serve": "llama-server"}
# What must stand beside a flag so that the command takes it.
BESIDE = {
    "-hff": ["-hf", "user/repo"],
    "--spec-draft-n-max": ["--lookup"],
    "--spec-draft-n-min": ["--lookup"],
    "--ssl-key-file": ["--ssl-cert-file", "cert.pem"],
    "--ssl-cert-file": ["--ssl-key-file", "key.pem"],
}
FILES = {
    "prompt.txt": "hi",
    "system.txt": "Be brief.",
    "g.gbnf": 'root ::= "a"',
    "s.json": '{"type": "object"}',
    "keys": "secret",
    "t.jinja": "{{ messages[0].content }}",
}


class Reached(Exception):
    """The command has read its options and is about to load the model."""


Give = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("flags")
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Give]:
    """Runs a command up to the load of its model, and returns what it wrote to stderr."""

    def reached(*_: object, **__: object) -> None:
        raise Reached

    def served(read: Callable[[], object], *_: object) -> None:
        read()
        raise Reached

    def given(*args: str) -> str:
        capsys.readouterr()
        sys.stdin = io.TextIOWrapper(io.BytesIO(b""))
        try:
            with pytest.raises(Reached):
                program.dispatch(list(args))
        finally:
            sys.stdin = sys.__stdin__
        return capsys.readouterr().err

    monkeypatch.setattr("satchel.cli.once.open_model", reached)
    monkeypatch.setattr("satchel.cli.chat.start.open_model", reached)
    monkeypatch.setattr("satchel.server.run.run_server", served)
    monkeypatch.setattr("satchel.server.log.set_up", lambda *_: None)  # it would keep this test's stderr
    monkeypatch.setattr("satchel.store.Store.pull", lambda *_: Path("pulled.gguf"))
    monkeypatch.setenv("SATCHEL_MODELS", str(folder / "store"))
    monkeypatch.setenv("SATCHEL_CONFIG", "")
    monkeypatch.chdir(folder)
    yield given


def arguments(row: Row, flag: str, command: str) -> list[str]:
    """A command line with one spelling of a flag."""
    prompt = ["say hi"] if command == "run" and "-p" not in row.flags else []
    values = [] if flag.startswith(("--no-", "-no")) else row.values
    return [command, flag, *values, *BESIDE.get(row.flags[0], []), *prompt]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("row", ALL, ids=lambda row: row.flags[0].strip("-"))
def test_each_spelling_does_what_its_row_says(row: Row, command: str, give: Give) -> None:
    for flag in row.flags:
        if flag in program.HELP:
            continue
        args = arguments(row, flag, command)
        if flag in page.options(command):
            assert (command, flag) == ("chat", "-no-cnv") or "has no effect" not in check_taken(give, args)
            continue
        verdict = page.verdict_of(command, flag)
        if verdict.runs:
            assert verdict.kind == SAME
        elif verdict.kind == NOTE:
            line = f"satchel: note: {flag} has no effect: {verdict.text}\n"
            assert give(*args) == line
            if row.values and " " not in row.value:
                assert give(command, f"{flag}={row.values[0]}", *args[2 + len(row.values) :]) == line
        else:
            assert verdict.kind == REFUSED
            with pytest.raises(UsageError, match=flag) as caught:
                program.dispatch(args)
            assert verdict.text in str(caught.value)


def check_taken(give: Give, args: list[str]) -> str:
    """Runs a command whose flag it declares; a conversation without a template is the one that is refused."""
    if args[0] == "chat" and args[1] in ("-no-cnv", "--no-conversation"):
        with pytest.raises(UsageError, match="a chat is always in turns"):
            program.dispatch(args)
        return ""
    return give(*args)


def test_a_flag_that_means_the_same_is_declared() -> None:
    for row in ALL:
        for flag in row.flags:
            if row.cli is not None and row.cli.kind == SAME and not row.cli.runs:
                assert flag in page.options("chat") | page.options("run"), flag
            if row.server is not None and row.server.kind == SAME and not row.server.runs:
                assert flag in page.options("serve"), flag


def test_each_flag_stands_in_the_table_once() -> None:
    flags = [flag for row in ALL for flag in row.flags]
    assert len(set(flags)) == len(flags) == len(ROWS)
    assert all(flag.startswith("-") and (row.cli or row.server) for row in ALL for flag in row.flags)


@pytest.mark.parametrize(
    "flag", ["--metrics", "--slots", "--embeddings", "--timeout=600", "-cb", "--jinja", "--rerank"]
)
def test_the_server_does_not_deny_being_one(flag: str, give: Give) -> None:
    said = give("serve", flag)
    assert "no server" not in said and "one conversation" not in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (["--metrics"], "--metrics is not supported: `satchel serve` has it"),
        (["--host=0.0.0.0"], "--host is not supported: `satchel serve` has it"),
        (["--cache_reuse"], "--cache-reuse is not supported: `satchel serve` has it"),
        (["--image"], "--image is not supported: models here read text alone"),
    ],
)
def test_a_flag_of_another_program_is_refused_by_name(flag: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        program.dispatch(["run", *flag, "say hi"])


def test_a_note_takes_its_value_and_nothing_else(give: Give) -> None:
    assert give("run", "-fa", "say hi").startswith("satchel: note: -fa has no effect")
    assert give("run", "-fa", "on", "say hi").count("\n") == 1
    assert give("chat", "--prio", "3", "--mlock", "-c", "512").count("\n") == 2
    with pytest.raises(UsageError, match="--prio requires a value, such as 2"):
        program.dispatch(["run", "--prio"])


@pytest.mark.parametrize(
    ("line", "command"), [(["serve", "-cl"], ["list"]), (["run", "--version"], ["--version"])]
)
def test_a_flag_runs_the_command_that_it_stands_for(
    line: list[str], command: list[str], capsys: pytest.CaptureFixture[str], give: Give
) -> None:
    assert program.dispatch(line) == 0
    said = capsys.readouterr().out
    assert program.dispatch(command) == 0
    assert said and capsys.readouterr().out == said


def test_the_page_is_current() -> None:
    """`python tests/support/llama_flags_page.py` writes it."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_suggestions_are_options_that_the_command_takes() -> None:
    for given in ("--max-tokens", "--no-warmupp", "--mlok"):
        with pytest.raises(UsageError) as caught:
            program.dispatch(["run", given, "say hi"])
        near = str(caught.value).partition("did you mean ")[2].partition("?")[0]
        assert not near or near in page.options("run")
