"""`satchel complete`, `rerank`, and `run` with files and a schema: their requests and output."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel
from terminal import PYTHON

from satchel.cli.main import main
from satchel.runtime.grammar import JsonSchema

Call = Callable[..., tuple[int, str, str]]


class Ranker(FakeModel):
    """A fake reranker that scores documents by the query's letters in them."""

    def rerank(
        self, query: str, documents: list[str], *, top: int | None, instruction: str
    ) -> list[SimpleNamespace]:
        self.raw.append(instruction)
        scores = [sum(letter in text for letter in query) / len(query) for text in documents]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        return [SimpleNamespace(index=i, score=scores[i]) for i in order[:top]]

    def embed(self, texts: list[str]) -> Any:
        rows = np.array([[text.count(letter) + 1e-9 for letter in "abc"] for text in texts])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def fake() -> Ranker:
    return Ranker()


@pytest.fixture
def call(fake: Ranker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setattr("satchel.runtime.api.model.Model.load", fake.load)
    for name in [n for n in os.environ if n.startswith(("SATCHEL_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)

    def run(command: str, *args: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        return main([command, "-m", "some.gguf", *map(str, args)]), *capfd.readouterr()

    return run


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("from one\n")
    two.write_text("bb\n\nabc\n")
    return one, two


def test_what_is_given_is_joined(call: Call, fake: Ranker, files: tuple[Path, Path]) -> None:
    assert call("run", "-f", files[0], "-f", files[1], "extract", stdin=b"piped\n")[0] == 0
    assert call("run", "-f", files[0], "-p", "a\\tb")[0] == 0
    rendered = [c[-1]["content"] for c in fake.conversations]  # once: the tokens that are counted are sent
    assert rendered == ["piped\nfrom one\nbb\n\nabc\nextract", "from one\na\tb"]


def test_a_schema_in_a_file(call: Call, fake: Ranker, files: tuple[Path, Path], tmp_path: Path) -> None:
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "object"}')
    assert call("run", "--schema", schema, "-f", files[0], "extract")[0] == 0
    assert fake.asked[0]["grammar"] == JsonSchema('{"type": "object"}')
    code, _, err = call("run", "--schema", tmp_path / "none.json", "hi")
    assert code == 1 and err == f"satchel: error: {tmp_path}/none.json: No such file or directory\n"


def test_a_file_that_is_no_text(call: Call, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\0\xff")
    code, out, err = call("run", "-f", tmp_path / "f", "hi")
    assert (code, out) == (1, "") and "expected UTF-8 text" in err and err.count("\n") == 1


def test_complete_prints_the_prompt_and_what_follows(call: Call, fake: Ranker) -> None:
    fake.scripts += [[" there", " was"], [" there"]]
    assert call("complete", "Once upon a time")[:2] == (0, "Once upon a time there was\n")
    assert call("complete", "Once", "--no-display-prompt")[:2] == (0, " there\n")
    assert (fake.raw, fake.conversations) == (["Once upon a time", "Once"], [])


def test_complete_as_json_and_wrong_use(call: Call) -> None:
    code, out, _ = call("complete", "a", "--json")
    assert code == 0 and json.loads(out)["text"] == "Hello!"
    assert call("complete", "a", "-sys", "x")[0] == 2 and call("complete")[0] == 2
    assert call("complete", "a", "--reasoning", "on")[0] == 2


def test_rerank_prints_a_table(call: Call, files: tuple[Path, Path]) -> None:
    code, out, _ = call("rerank", "abc", "cab", "-f", files[1], "-d", files[0], "--top", "3")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[:2] == [["score", "source", "document"], ["1.0000", "argument", "1", "cab"]]
    assert rows[2] == ["1.0000", f"{files[1]}:3", "abc"] and len(rows) == 4


def test_rerank_as_json_from_stdin(call: Call, fake: Ranker) -> None:
    code, out, _ = call("rerank", "ab", "--json", "--instruction", "find", stdin=b"c\n\nab\n")
    assert code == 0 and fake.raw == ["find"]
    assert json.loads(out)["results"] == [
        {"index": 1, "relevance_score": 1.0, "source": "stdin:3", "text": "ab"},
        {"index": 0, "relevance_score": 0.0, "source": "stdin:1", "text": "c"},
    ]


def test_rerank_by_embeddings(call: Call) -> None:
    code, out, _ = call("rerank", "aab", "c", "aab", "--embeddings", "--json")
    assert code == 0 and [r["index"] for r in json.loads(out)["results"]] == [1, 0]


@pytest.mark.parametrize(
    "args", [(" ", "a"), ("a", " "), ("a",), ("a", "b", "--embeddings", "--instruction", "x"), ()]
)
def test_rerank_used_wrongly(call: Call, args: tuple[str, ...]) -> None:
    code, out, err = call("rerank", *args)
    assert (code, out) == (2, "") and err.count("\n") == 1


@pytest.mark.model
@pytest.mark.parametrize(
    "command", ["run -m {} 'Count to twenty.' -s 1", "inspect {}", "complete -m {} a -n 40"]
)
def test_a_closed_pipe_is_quiet(bundled_model: Path, command: str) -> None:
    program = f"{shlex.join(PYTHON)} -m satchel {command.format(shlex.quote(str(bundled_model)))}"
    script = f"set -o pipefail; {program} </dev/null | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip() in ("0", "141"), done.stderr) == (True, "")
