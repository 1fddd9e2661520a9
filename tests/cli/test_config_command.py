"""The configuration file: the environment and flags override it, and no error in it is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satchel.cli.main import main


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("SATCHEL_CONFIG", str(path))
    return path


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, tuple[object, str]]:
    assert main(["config", "show", *args]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row["option"]: (row["value"], row["source"]) for row in found["options"]}


def test_each_layer_stands_above_the_one_before(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("[defaults]\nthreads = 2\n[serve]\nport = 1\nparallel = 3\nhost = 'x'\ndrain = 5\n")
    monkeypatch.setenv("LLAMA_ARG_PORT", "7")
    monkeypatch.setenv("SATCHEL_N_PARALLEL", "4")
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "9")
    rows = shown(capsys, "serve", "--json", "--", "--parallel", "5")
    assert rows["--threads"] == (2, "file")
    assert rows["--drain"] == (5.0, "file")
    assert rows["--port"] == (7, "environment")
    assert rows["--parallel"] == (5, "flag")
    assert rows["--ctx-size"] == (0, "default")
    assert shown(capsys, "serve", "--json")["--parallel"] == (4, "environment")


def test_keys_are_not_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("[serve]\napi-key = ['secret-1']\n")
    assert main(["config", "show"]) == 0
    said = capsys.readouterr().out
    assert "secret-1" not in said
    assert "(set)" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[srve]\n", "nothing reads [srve]; did you mean [serve]?"),
        ("serve = 3\n", "expected a table [serve]"),
        ("[run]\nthread = 3\n", "thread is no option of this command; did you mean threads?"),
        ("[run]\nthreads = 'x'\n", "-t:"),
        ("[run\n", "no TOML"),
        (f"[run]\nthreads = {'[' * 3000}\n", "too deep to read"),
        (f"[run]\nthreads = {'9' * 5000}\n", "no TOML"),
    ],
)
def test_what_is_wrong_is_said(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    config.write_text(text)
    assert main(["run", "hello"]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_file_that_is_named_must_be_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--config", str(tmp_path / "none.toml"), "run", "hello"]) == 1
    assert "No such file" in capsys.readouterr().err
