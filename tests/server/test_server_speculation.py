"""Draft tokens of a server: by flag, per request, in `usage`, and where they have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_file import write_model

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from satchel.cli.main import main  # noqa: E402
from satchel.runtime.api.options import Options  # noqa: E402
from satchel.runtime.speculation import Speculation  # noqa: E402
from satchel.runtime.speculative.room import max_draft_tokens  # noqa: E402
from satchel.runtime.speculative.speculator import Draft, Speculator  # noqa: E402
from satchel.server.catalog import Catalog  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402

# A greedy answer of a random model soon repeats itself, so that lookup finds drafts.
ASK = {"prompt": [1, 2, 3, 4] * 4, "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts up to four tokens at every step, whether it pays or not."""

    def choose(self: Speculator, proposed: dict[Any, Draft], batch: Any, scheduler: Any, rows: int) -> Any:
        pages, most = scheduler.engine.pages, min(4, rows // len(proposed))
        return {seq: n for seq in proposed if (n := max_draft_tokens(seq, pages, most))}

    monkeypatch.setattr(Speculator, "_choose", choose)
    monkeypatch.setattr(Speculator, "_price", lambda self, rows: 0.0)


@pytest.fixture
def address(always: None, tmp_path: Path, serving_of: Any) -> Iterator[str]:
    path = write_model(tmp_path / "tiny.gguf")
    options = Options(threads=1, context=256, speculation=Speculation(lookup=True))
    with serving_of([path], options, ServerSettings(port=0)) as found:
        yield found


def details(address: str, **fields: Any) -> Any:
    told = httpx.post(f"{address}/v1/completions", json=ASK | fields, timeout=60)
    assert told.status_code == 200 and "warnings" not in told.json(), told.text
    return told.json()["choices"][0]["text"], told.json()["usage"].get("completion_tokens_details")


def test_drafts_are_counted_and_chosen_by_the_request(address: str) -> None:
    text, counted = details(address)
    assert counted["accepted_prediction_tokens"] > 0 <= counted["rejected_prediction_tokens"]
    assert details(address, **{"speculative.n_max": 0}) == (text, None), "the same answer without drafts"
    assert details(address, **{"speculative.n_max": 2})[0] == text
    ollama = {"model": "tiny", "prompt": "x", "stream": False, "options": {"num_predict": 2}}
    ollama["options"]["draft_num_predict"] = 4
    assert "warnings" not in httpx.post(f"{address}/api/generate", json=ollama, timeout=60).json()


def test_a_request_for_drafts_that_none_makes_says_so(tmp_path: Path, serving_of: Any) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    with serving_of([path], Options(threads=1, context=256), ServerSettings(port=0)) as address:
        body: dict[str, Any] = ASK | {"max_tokens": 2, "speculative.n_max": 4}
        (line,) = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()["warnings"]
        assert line.startswith("draft is 4, but no token is drafted") and "--lookup" in line
        body = {"model": "tiny", "prompt": "x", "stream": False}
        body["options"] = {"num_predict": 2, "draft_num_predict": 4}
        assert line in httpx.post(f"{address}/api/generate", json=body, timeout=60).json()["warnings"]


def test_the_command_line_says_how_tokens_are_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Catalog] = []
    monkeypatch.setenv("SATCHEL_CONFIG", "")
    monkeypatch.setattr("satchel.server.run.run_server", lambda read, *rest: found.append(read()))
    path, small = write_model(tmp_path / "tiny.gguf"), write_model(tmp_path / "small.gguf")
    assert main(["serve", "-m", str(path), "--lookup", "-md", str(small), "--draft-max", "8"]) == 0
    options = found[0].models["tiny"].options
    assert options.speculation == Speculation(draft_model=small, lookup=True, draft_max=8)
    assert main(["serve", "-m", str(path), "--draft-max", "8"]) == 2
