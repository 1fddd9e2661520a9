"""`satchel doctor --report FILE`: what an issue needs, without secrets and without prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satchel.cli.commands import doctor
from satchel.cli.issue_report import IssueReport
from satchel.cli.main import main

SYSTEM = {"satchel": "0.1", "packages": "numpy 2"}
CHECKS = [doctor.CheckResult("backend", "cpu", "PASS", "computes right; https://u:planted1@h/x?sig=planted2")]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with secrets and prompts, all called planted..., in each place that the report reads."""
    for name, value in {
        "HF_TOKEN": "hf_planted3planted",
        "SATCHEL_API_KEY": "planted4,planted5",
        "HTTPS_PROXY": "http://user:planted6@proxy:3128",
        "HF_ENDPOINT": "https://hub.example/x?token=planted7",
        "SATCHEL_SYSTEM_PROMPT": "planted8 is a prompt",
        "UNRELATED_VARIABLE": "planted9",
        "SATCHEL_THREADS": "3",
        "HOME": str(tmp_path / "planted-home"),
    }.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "config.toml"
    config.write_text(
        '[serve]\napi-key = ["planted10", "planted11"]\nport = 8001\n[run]\nsystem-prompt = "planted12"\n'
        '[models.a]\npath = "https://planted13@host/a.gguf"\n[defaults]\nn-predict = 7\n'
    )
    monkeypatch.setenv("SATCHEL_CONFIG", str(config))
    log = tmp_path / "log"
    log.write_text(
        "".join(f"INFO line {i}\n" for i in range(300))
        + "WARNING key planted10 was refused\nINFO Authorization: Bearer planted14.a.b\n"
        + "INFO GET https://host/a?key=planted15\nINFO api_key=planted16 password: planted17\n"
        + "INFO sk-planted18planted ghp_planted19planted eyJplanted20planted.x.y AKIAPLANTED21PLANTED\n"
        + "DEBUG the prompt is planted22\n"
    )
    request = tmp_path / "request.json"
    request.write_text(
        json.dumps(
            {
                "text": "planted23",
                "prompt_tokens": 17,
                "report": {"cached_tokens": 5, "note": "hf_planted24pl"},
            }
        )
    )
    return tmp_path


def written(planted: Path, **changes: object) -> str:
    path = planted / "report.md"
    IssueReport(path, True, planted / "log", planted / "request.json", **changes).write(
        SYSTEM, map(doctor.told, CHECKS)
    )  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


def test_no_planted_secret_and_no_prompt_is_in_it(planted: Path) -> None:
    text = written(planted)
    left = text.replace(str(planted), "").lower()
    assert "planted" not in left, [line for line in text.splitlines() if "planted" in line.lower()]


def test_what_an_issue_needs_is_in_it(planted: Path) -> None:
    text = written(planted)
    for needed in (
        "packages: numpy 2",
        "PASS backend cpu: computes right; https://(redacted)@h/x?(redacted)",
        "SATCHEL_THREADS=3",
        "HF_TOKEN=(set)",
        '"port": 8001',
        '"api-key": "(set)"',
        '"n-predict": 7',
        "INFO line 299",
        "WARNING key (redacted) was refused",
        '"prompt_tokens": 17',
        '"cached_tokens": 5',
    ):
        assert needed in text, needed
    assert "INFO line 99\n" not in text and "UNRELATED" not in text, "the last 200 lines, the own variables"


def test_prompts_are_in_it_where_they_are_asked_for(planted: Path) -> None:
    text = written(planted, prompts=True)
    for asked in ("planted8 is a prompt", "planted12", "planted22", "planted23"):
        assert asked in text
    for secret in ("planted3", "planted10", "planted4", "planted14", "planted17"):
        assert f"{secret}\n" not in text and f"{secret} " not in text


def test_the_command_writes_it_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("backends", "gpus", "model", "sandbox"):
        monkeypatch.setattr(doctor, name, lambda: iter(CHECKS))
    path = tmp_path / "report.md"
    path.write_text("mine")
    assert main(["doctor", "--report", str(path)]) == 1
    out, err = capsys.readouterr()
    assert (out, path.read_text()) == (
        "",
        "mine",
    ) and "report.md: is there already; --force replaces it" in err
    assert main(["doctor", "--report", str(path), "--force"]) == 0
    text = path.read_text()
    assert text.startswith("# Satchel report") and '"generated_tokens": ' in text
    assert "read it before you send it" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--log", "--request"])
def test_a_missing_file_is_told_before_the_checks(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "machine", lambda: pytest.fail("the checks ran"))
    assert main(["doctor", "--report", str(tmp_path / "report.md"), flag, str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"satchel: error: {tmp_path}/none: No such file or directory\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--force", "--with-prompts", "--log=x", "--request=x"])
def test_flags_of_the_report_need_it(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", flag]) == 2
    assert "expected --report FILE beside it" in capsys.readouterr().err


def test_a_request_that_is_no_json_is_refused(planted: Path) -> None:
    (planted / "request.json").write_text("no")
    with pytest.raises(Exception, match="expected what `satchel run --json --report` prints"):
        written(planted)
