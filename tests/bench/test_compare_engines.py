"""Tests of what bench/compare.py measures with: the two engines on a file of random weights."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import compare
import compare_table as table
import make_shape
import pytest
from compare_engines import WEIGHTS, LlamaCpp, Row, SatchelEngine, command, settings
from compare_seats import Child, EngineError

from satchel.runtime.device.libraries import libraries

HAVE = {f.name for f in libraries() if not f.reason}
needs_peer = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shape.make("tiny", "Q4_K_M", tmp_path_factory.mktemp("compare") / "tiny-q4_k_m.gguf")


ENGINE_ROWS = [
    Row("pp20", prompt=20),
    Row("tg3", generate=3),
    Row("x3", generate=2, sequences=3),
    Row("d", 0, 2, 40),
]


@needs_cpu
def test_satchel_runs_every_kind_of_row(small: Path) -> None:
    engine = SatchelEngine()
    engine.load(str(small), 1, "default")
    alone: dict[str, float] = {}
    for row in ENGINE_ROWS:
        alone[row.name] = engine.prepare(row)["bytes_per_token"]
        assert [engine.run() > 0 for _ in range(2)] == [True, True]
        # After each run the cache holds the depth and the run's own tokens, none of the run before.
        assert engine.model.engine.length(row.sequences - 1) == row.depth + row.prompt + row.generate
    assert alone["pp20"] == 0 < alone["x3"] < alone["tg3"] < alone["d"]
    assert engine.bandwidth() > 0
    engine.model.close()


@needs_peer
@pytest.mark.parametrize("mode", ["repack", "plain"])
def test_llama_cpp_runs_every_kind_of_row(small: Path, mode: str) -> None:
    argv = (sys.executable, str(Path(compare.__file__).with_name("compare_engines.py")), "llama.cpp")
    with Child(argv) as child:
        loaded = child.ask(command("load", path=str(small), threads=1, mode=mode))
        assert loaded["version"].startswith("llama-cpp-python ")
        for row in ENGINE_ROWS:
            weights, *rest = child.ask(command("prepare", row))["setting"].split(", ")
            assert ", ".join(rest) in [name for name, _ in settings(row)]
            assert weights in {WEIGHTS[mode], WEIGHTS["plain"]}
            assert child.ask(command("run")) > 0
        with pytest.raises(EngineError, match="measures no bandwidth"):
            child.ask(command("bandwidth"))


@needs_peer
def test_llama_cpp_says_what_it_cannot_load(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match=r"bad\.gguf was not loaded"):
        LlamaCpp().load(str(bad), 1, "plain")


@needs_peer
@needs_cpu
def test_the_whole_script(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, kept = tmp_path / "t.md", tmp_path / "t.json"
    words = ["--models", str(small), "--rows", "tg64", "--repeats", "1", "--threads", "1"]
    assert compare.main([*words, "--markdown", str(page), "--json", str(kept)]) == 0
    assert capsys.readouterr().out == page.read_text()
    assert "| tiny-q4_k_m | tg64 |" in page.read_text()
    (row,) = json.loads(kept.read_text())["rows"]
    assert row["ratio"] > 0 and row["bandwidth"] > 0 and set(row["samples"]) == {table.PEER, table.OURS}
