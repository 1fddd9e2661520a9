"""--lookup, --draft-model and their limits: the library's arguments, and usage errors."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_model import FakeModel

from satchel.cli.main import main
from satchel.runtime.speculative import Speculation

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture(params=["run", "chat"])
def run(
    request: pytest.FixtureRequest,
    fake: FakeModel,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", fake.load)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)

    def call(*args: str) -> tuple[int, str, str]:
        code = main([request.param, "-m", "some.gguf", "-p", "hi", *args])
        return code, *capfd.readouterr()

    return call


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([], None),
        (["--lookup"], Speculation(lookup=True)),
        (["--lookup", "--no-lookup"], None),
        (["-md", "d.gguf"], Speculation(Path("d.gguf"))),
        (["--model-draft", "d.gguf", "--draft", "5"], Speculation(Path("d.gguf"), draft_max=5)),
        (
            ["--draft-model", "d.gguf", "--lookup", "--spec-draft-n-max", "8", "--draft-min", "2"],
            Speculation(Path("d.gguf"), True, 8, 2),
        ),
        (["--lookup", "--draft-max", "0"], Speculation(lookup=True, draft_max=0)),
    ],
)
def test_options_reach_the_library(
    args: list[str], wanted: Speculation | None, run: Run, fake: FakeModel
) -> None:
    assert run(*args)[0] == 0
    assert fake.loaded["speculation"] == wanted


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--draft-max", "4"], "--draft-max: expected --lookup or --draft-model FILE beside it"),
        (["--draft-min", "1"], "--draft-min: expected --lookup or --draft-model FILE beside it"),
        (["--lookup", "--draft-max", "65"], "--draft-max: draft_max is 65: expected 0 to 64"),
        (["--lookup", "--draft-max", "-1"], "--draft-max: draft_max is -1: expected 0 to 64"),
        (
            ["--lookup", "--draft-max", "3", "--draft-min", "4"],
            "draft_min is 4: expected draft_max, 3",
        ),
        (["-md", "a.gguf", "-hfd", "b/c"], "-hfd: -md names the draft model already"),
    ],
)
def test_wrong_use_is_said_before_anything_is_loaded(
    args: list[str], said: str, run: Run, fake: FakeModel
) -> None:
    code, _, error = run(*args)
    assert code == 2 and said in error and not fake.loaded


def test_the_environment_has_the_same_names(
    run: Run, fake: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL_DRAFT", "d.gguf")
    monkeypatch.setenv("SATCHEL_DRAFT_MAX", "7")
    assert run()[0] == 0
    assert fake.loaded["speculation"] == Speculation(Path("d.gguf"), draft_max=7)


def test_what_came_of_the_drafts_is_told(
    bundled_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    base = [
        "run",
        "-m",
        str(bundled_model),
        "-c",
        "256",
        "-n",
        "24",
        "--temp",
        "0",
        "-no-cnv",
        "--ignore-eos",
    ]
    text = "one two three four, one two three four, one two three four, one two"
    assert main([*base, text, "--json"]) == 0
    plain = json.loads(capfd.readouterr().out)
    assert main([*base, text, "--lookup", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["text"] == plain["text"]
    assert plain["drafted_tokens"] == 0 <= found["accepted_tokens"] <= found["drafted_tokens"]
    assert main([*base, text, "-md", str(bundled_model), "-v"]) == 0
    error = capfd.readouterr().err
    assert "drafted tokens accepted" in error or "drafts" not in error
