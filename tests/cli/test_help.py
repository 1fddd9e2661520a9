"""Help: the common options of every command on one screen, all of them by task, examples that parse."""

from __future__ import annotations

import shlex

import pytest

from satchel.cli.main import commands, declared, main, parameters, parsed, spelled
from satchel.cli.overview import TASKS

NAMES = list(commands())


def shown(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.rstrip("\n").split("\n")


@pytest.mark.parametrize("name", ["", *NAMES])
def test_the_common_options_fit_a_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(f"{name} --help", capsys)
    assert len(lines) < 24, "the 24th line has the shell's prompt"
    assert max(map(len, lines)) <= 80
    assert "Examples:" in lines and "--help-all" in lines[-1]
    assert not any("<" in line for line in lines), "no <int range>"


@pytest.mark.parametrize("name", NAMES)
def test_all_options_are_listed_by_task(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines, text = shown(f"{name} --help-all", capsys), parsed(name)
    listed = {word.strip(",") for line in lines for word in line.split() if line.startswith("  ")}
    for param in text.params:
        if param.param_type_name == "option" and not param.hidden:
            assert {*param.opts, *param.secondary_opts} <= listed, param.opts
    assert max(map(len, lines)) <= 80 and not any("<" in line for line in lines)


def test_sections_are_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("run --help-all", capsys)
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[:4] == [
        "Examples:",
        "Arguments:",
        "The model, and how it is loaded:",
        "The prompt, and where the answer ends:",
    ]
    assert "Sampling:" in titles and "Structured output:" in titles and titles[-1] == "Options:"
    assert lines[lines.index("Sampling:") + 1].startswith("  --temp, --temperature NUMBER")


def test_values_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("run --help-all", capsys)
    for row in (
        "  -c, --ctx-size N ",
        "  --temp, --temperature NUMBER",
        "  --precision exact|fast",
        "  -f, --file FILE ",
    ):
        assert any(line.startswith(row) for line in lines), row
    assert any("[default: 1; 1 to 128]" in line for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_examples_have_only_declared_options(name: str) -> None:
    command = parsed(name)
    options, offered = declared(command), parameters(command)
    examples = [line.strip() for line in command.help.partition("Examples:")[2].strip().split("\n")]
    assert examples
    for line in examples:
        program, given_name, *words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
        assert (program, given_name) == ("satchel", name), line
        given = spelled(name, words, options, offered)
        own = given[: given.index("--")] if "--" in given else given
        flags = [word.partition("=")[0] for word in own if word.startswith("-")]
        assert {*flags} <= {*options}, line


def test_every_command_belongs_to_a_task() -> None:
    assert sorted(name for task in TASKS for name in (*task.common, *task.others)) == sorted(NAMES)


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown("--help-all", capsys)
    for name in NAMES:
        assert any(line.startswith(f"  {name} ") for line in lines), name
    assert "  --config FILE  Take options from this TOML file; see `satchel config`." in lines
