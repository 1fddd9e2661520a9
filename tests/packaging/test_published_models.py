"""packaging/published_models.py on a tiny model from a hub on loopback, beside engines that agree with
Satchel, err a little, or differ; and on the bundled model beside llama.cpp, where it is installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import Hub, registries
from tiny_file import write_model

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import published_models as published  # noqa: E402

TEXT = (
    "The ferry to the island leaves at nine and takes an hour. It does not run in winter, and not at night. "
)
SIZE = {"windows": 1, "tokens": 4}


class Altered(published.Satchel):
    """Satchel itself as the other engine, with some change."""

    def chat_ids(self, chat: published.Chat) -> list[int]:
        return [*super().chat_ids(chat), 0] if "prime" in chat[-1]["content"] else super().chat_ids(chat)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        return [token + 1 for token in super().greedy(ids, count)]

    def logits(self, ids: Sequence[int]) -> published.Array:
        return super().logits(ids) * np.float32(0.5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny-Q8_0.gguf")


def test_an_engine_that_agrees(tiny: Path) -> None:
    row = published.judged("m", tiny, TEXT * 60, published.Satchel, **SIZE)
    assert (row.templates, row.differs) == ("4 of 4", ())
    assert row.greedy == "12 of 12 tokens" and row.perplexity == row.peer_perplexity > 1


def test_an_engine_that_differs_is_told_of_in_each_respect(tiny: Path) -> None:
    row = published.judged("m", tiny, TEXT * 60, Altered, **SIZE)
    told = "; ".join(row.differs)
    assert row.templates == "3 of 4" and row.greedy == "0 of 12 tokens"
    for what in ("conversation 2 is rendered otherwise", "answer 1 parts after 0 tokens", "perplexity "):
        assert what in told


@pytest.mark.model
def test_llama_cpp_says_the_same(bundled_model: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python, which this compares with, is not installed")
    row = published.judged("m", bundled_model, TEXT * 60, windows=1, tokens=16)
    assert row.differs == ()


def test_rounding_is_no_difference() -> None:
    one = published.Answers([[1]], [[5]], [[1, 2, 3]], 100.0, 50)
    other = published.Answers([[1]], [[5]], [[1, 9, 4]], 100.1, 50)

    def near(ids: Sequence[int], token: int) -> float:
        return 0.01 if (ids, token) == ([5, 1], 9) else 9.0

    row = published.compare("m", one, other, near)
    assert (row.differs, row.greedy, row.templates) == ((), "1 of 3 tokens", "1 of 1")
    far = published.compare("m", one, other, lambda ids, token: 1.5)
    assert far.differs == ("answer 1 parts after 1 tokens, 1.50 nats apart",)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with registries(tmp_path, monkeypatch) as running:
        yield running


def test_models_are_pulled_and_a_missing_one_is_a_row(
    hub: Hub, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.put_repo("u/small", {"small-Q8_0.gguf": tiny.read_bytes()})
    text, found = tmp_path / "text", tmp_path / "found.json"
    text.write_text(TEXT * 60)
    words = ["--name", "hf:u/small", "hf:u/gone", "--text", str(text), "--json", str(found), "--remove"]
    assert published.main([*words, "--windows", "1", "--tokens", "4"], published.Satchel) == 1
    results = json.loads(found.read_text())
    assert results["hf:u/small"]["differs"] == [] and results["hf:u/small"]["templates"] == "4 of 4"
    assert "gone" in results["hf:u/gone"]["error"]
    assert "could not be run: " in capsys.readouterr().out
    assert list(tmp_path.rglob("*.gguf")) == []


def test_the_page_has_a_line_for_each_model() -> None:
    page = published.PAGE.read_text(encoding="utf-8")
    assert [*published.lines(page)] == [one.name for one in published.MODELS]
    assert published.with_table(page, {}) == page
    name = published.MODELS[0].name
    row = published.Row(name, "4 of 4", "192 of 192 tokens", 7.25, 7.251, ())
    again = published.with_table(page, {name: published.line(name, row)})
    assert f"| `{name}` | 4 of 4 | 192 of 192 tokens | 7.250, 7.251 | the same |" in again
    assert [*published.lines(again)] == [*published.lines(page)]
    with pytest.raises(ValueError, match="expected <!-- published -->"):
        published.with_table("nothing", {})
