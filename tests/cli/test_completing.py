"""Shell completion: the candidates, and the scripts in the shells themselves."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from terminal import PYTHON, REASON, Terminal, installed

from satchel.cli.completing.candidates import FILES, VALUES, candidates, models
from satchel.cli.completing.scripts import SCRIPTS
from satchel.cli.main import commands, main, parsed
from satchel.store.resolve import default_model

SHELLS = {
    "bash": ["bash", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("satchel comp", {"complete", "completion"}),
        ("satchel --v", {"--version"}),
        ("satchel nope x", set()),
        ("satchel help ru", {"run"}),
        ("satchel run --cache", {"--cache-ram", "--cache-type-k", "--cache-type-v"}),
        ("satchel run -ctk q", {"q8_0", "q4_0"}),
        ("satchel run --cache_type_k q8", {"q8_0"}),
        ("satchel run --worker=p", {"--worker=process"}),
        ("satchel run --stream-weights o", {"on", "off"}),
        ("satchel run --activations 1", {"16"}),
        ("satchel run --worker = p", {"process"}),
        ("satchel run --worker =", {"thread", "process"}),
        ("satchel run --no-esc", {"--no-escape"}),
        ("satchel run -m ", {FILES, default_model().stem}),
        ("satchel run -f x", {FILES}),
        ("satchel run a", {FILES}),
        ("satchel run -n ", set()),
        ("satchel run -- --wor", {FILES}),
        ("satchel completion z", {"zsh"}),
        ("satchel completion p", {"powershell"}),
        ("satchel chat --json-schema-f", {"--json-schema-file"}),
    ],
)
def test_words(line: str, found: set[str]) -> None:
    assert {c.word for c in candidates(line.split(" "))} == found


def test_models_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "OLLAMA_MODELS", "HOME", "SATCHEL_MODELS"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(
        "satchel.cli.completing.candidates.VALUES", {**VALUES, "--model": lambda: ["hf:a/b:Q8_0"]}
    )
    assert [c.word for c in candidates(["satchel", "run", "-m", "hf:a"])] == ["hf:a/b:Q8_0", FILES]
    assert list(models()) == [default_model().stem]


def test_every_option_with_known_values_is_one_of_some_command() -> None:
    known = {o for name in commands() for p in parsed(name).params for o in p.opts}
    assert set(VALUES) <= known


def test_descriptions_come_with_a_tab(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--words", "--", "satchel", "doc"]) == 0
    assert capfd.readouterr().out.startswith("doctor\tTest each backend")


def test_an_empty_last_word_can_be_told_by_an_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--words", "--next", "--", "satchel", "completion"]) == 0
    assert capfd.readouterr().out.split() == list(SCRIPTS)
    assert main(["completion", "--words", "--", "satchel", "completion"]) == 0
    assert capfd.readouterr().out.startswith("completion\t")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_printed(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capfd.readouterr().out == SCRIPTS[shell]
    assert main(["completion", "tcsh"]) == 2


@pytest.mark.skipif(not installed(), reason=REASON)
@pytest.mark.parametrize("shell", SHELLS)
def test_in_the_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program, script = tmp_path / "satchel", tmp_path / "script"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PYTHON)} -m satchel "$@"\n')
    program.chmod(0o755)
    (tmp_path / "model.gguf").touch()
    script.write_text(("autoload -U compinit; compinit -u -D\n" if shell == "zsh" else "") + SCRIPTS[shell])
    command = [
        "sh",
        "-c",
        f'cd "{tmp_path}"; PATH="{tmp_path}:$PATH" PS1="ready> " exec {" ".join(SHELLS[shell])}',
    ]
    with Terminal(command, HOME=tmp_path, XDG_CONFIG_HOME=tmp_path, XDG_DATA_HOME=tmp_path) as t:
        t.type(". ./script; echo so it is; cd .\n")
        t.wait("\nso it is")
        t.type("satchel insp")
        t.press("Tab")
        t.wait("satchel inspect")
        t.type("model.g")
        t.press("Tab")
        t.wait("satchel inspect model.gguf")
        t.press("C-u")
        t.type("satchel run --worker p")
        t.press("Tab")
        t.wait("--worker process")
