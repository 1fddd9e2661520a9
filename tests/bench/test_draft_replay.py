"""Tests of bench/draft_replay.py: what given answers take, and where examples come from."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import draft_replay
import draft_tasks
import pytest
from draft_costs import TABLES, Tally, read_costs
from draft_replay import Encoded, replay

from satchel.errors import RequestError
from satchel.runtime.speculation import Speculation

LOOKUP = Speculation(lookup=True)
TEXT = "def area(width, height):\n    return width * height\n\n\n" * 40


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository with a change of the size that examples have, and one that is too small."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "-q")
    for text, subject in ((TEXT, "a"), (TEXT + "x = 1\n", "small"), (TEXT + "y = 2\n" * 9, "Nine lines")):
        (tmp_path / "area.py").write_text(text)
        git(tmp_path, "add", "area.py")
        git(tmp_path, "commit", "-q", "-m", subject)
    return tmp_path


def test_a_table_has_lines_between_its_points() -> None:
    costs = read_costs("1:2,3:4,5:5")
    assert [costs(rows) for rows in (1, 2, 3, 4, 5, 7)] == [1.0, 1.5, 2.0, 2.25, 2.5, 3.0]
    for name in TABLES:
        assert read_costs(name)(1) == 1.0 < read_costs(name)(17)


@pytest.mark.parametrize("text", ["h100", "1:1", "2:1,3:2", "1:1,1:2", "1:0,2:1", "1:1,2"])
def test_a_table_that_says_nothing_of_a_row_or_two_things_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"table of costs|expected one of"):
        read_costs(text)


def test_without_a_repetition_each_token_takes_a_step() -> None:
    tally = replay([Encoded("t", list(range(50)), list(range(50, 90)))], read_costs("wanted"), LOOKUP)
    assert tally == Tally(tokens=39, steps=39, cost=39.0)


def test_tokens_and_costs_are_those_of_the_answer() -> None:
    """Whatever is drafted and learned, each token but the first, which is its prompt's, comes once."""
    examples = [Encoded("t", list(range(60)), [*range(20, 50), 7, 7, *range(9)]) for _ in range(5)]
    for name in TABLES:
        tally = replay(examples, read_costs(name), LOOKUP)
        assert tally.tokens == 5 * 40 == tally.steps + tally.accepted
        assert 0 < tally.accepted <= tally.drafted and tally.steps < tally.cost
        assert tally.speed_up == tally.tokens / tally.cost


def test_noise_changes_what_is_measured_not_what_it_costs() -> None:
    clock, other, exact = draft_replay.Clock(0.1), draft_replay.Clock(0.1), draft_replay.Clock(0.0)
    seconds = [clock(1.5) / exact(1.5) for _ in range(1000)]
    assert seconds == [other(1.5) / exact(1.5) for _ in range(1000)]
    assert 0.98 < sorted(seconds)[500] < 1.02 and 3 < sum(s > 5 for s in seconds) < 30
    examples = [Encoded("t", list(range(60)), [*range(20, 50), 7, 7, *range(9)])]
    tally = replay(examples, read_costs("wanted"), LOOKUP, 0.1)
    assert tally.tokens == 40 and tally.steps <= tally.cost <= 1.5 * tally.steps


def test_a_change_of_a_commit_makes_three_examples(history: Path) -> None:
    edit, patch, message = draft_tasks.commits(history, "HEAD", 5)
    assert [e.task for e in (edit, patch, message)] == ["edit", "patch", "message"]
    assert "Nine lines" in edit.prompt and TEXT in edit.prompt and edit.answer == TEXT + "y = 2\n" * 9
    assert TEXT in patch.prompt and patch.answer.count("\n+y = 2") == 9
    assert message.prompt.count("\n+y = 2") == 9 and message.answer == "Nine lines"
    with pytest.raises(RequestError, match="git log"):
        list(draft_tasks.commits(history, "nowhere", 5))


def test_history_without_git_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="git is not installed"):
        list(draft_tasks.commits(tmp_path, "HEAD", 5))


def test_the_commonest_name_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "area.py").write_text(TEXT)
    (example,) = draft_tasks.renames(tmp_path, 3)
    assert "Rename height to new_height" in example.prompt and TEXT in example.prompt
    assert example.answer == TEXT.replace("height", "new_height")


def test_articles_are_asked_for_their_lead(tmp_path: Path) -> None:
    (tmp_path / "wiki").write_text(
        " \n = One = \n \n Lead . \n \n = = Body = = \n \n Text . \n \n = Two = \n \n x \n"
    )
    (example,) = draft_tasks.articles(tmp_path / "wiki", 3)
    assert example.answer == "Lead ." and "Text ." in example.prompt and "Lead" not in example.prompt


@pytest.mark.parametrize("option", ["articles", "texts", "pairs"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, option: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, reason in (("none", "No such file"), ("bytes", "not UTF-8")):
        with pytest.raises(RequestError, match=f"{name}: can't be read: .*{reason}"):
            draft_replay.main([f"--{option}={tmp_path / name}", "--tasks=chat"])


def test_the_repository_has_conversations_and_pages() -> None:
    found = list(draft_tasks.own_examples(("chat", "write"), "HEAD", 4))
    assert {e.task for e in found} == {"chat", "write"}
    assert all(e.prompt.strip() and e.answer.strip() for e in found)


def test_recorded_requests_are_replayed_and_written(tmp_path: Path, bundled_model: Path) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "out.json"
    pairs.write_text(json.dumps({"task": "copy", "prompt": f"Repeat:\n{TEXT}", "answer": TEXT}) + "\n")
    asked = [f"--pairs={pairs}", f"--tokenizer={bundled_model}", f"--json={out}", "--tokens=200"]
    draft_replay.main([*asked, "--tasks=copy", "--costs=wanted/1:1,2:2"])
    wanted, dear = json.loads(out.read_text())
    assert (wanted["costs"], wanted["task"], wanted["answers"]) == ("wanted", "copy", 1)
    assert wanted["tally"]["tokens"] == dear["tally"]["tokens"] == 199
    assert wanted["tally"]["cost"] < 0.7 * 199
    assert 0.97 * dear["tally"]["cost"] < 199, "where a row costs a step, drafts are not made"
    with pytest.raises(RequestError, match="no examples of other"):
        draft_replay.main([*asked, "--tasks=other"])
    pairs.write_text('{"task": "copy"}\n')
    with pytest.raises(RequestError, match='expected an object with "task"'):
        draft_replay.main([*asked, "--tasks=copy"])
