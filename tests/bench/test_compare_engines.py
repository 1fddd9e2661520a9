"""Tests of what bench/compare.py measures with: files of random weights, and the two engines on one of
them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import compare
import compare_table as table
import make_shape
import numpy as np
import pytest
from compare_engines import WEIGHTS, LlamaCpp, Row, SatchelEngine, command, settings
from compare_seats import Child, EngineError

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.quant import FORMATS
from satchel.runtime.device.libraries import libraries

HAVE = {f.name for f in libraries() if not f.reason}
needs_peer = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


@pytest.mark.parametrize(
    ("shape", "type", "narrow"), [("tiny", "Q4_K_M", ""), ("tiny", "q8_0", ""), ("tiny", "BF16", "")]
)
def test_made_files_are_whole_and_the_same_each_time(
    tmp_path: Path, shape: str, type: str, narrow: str
) -> None:
    first = make_shape.make(shape, type, tmp_path / "a.gguf", narrow)
    again = make_shape.make(shape, type, tmp_path / "b.gguf", narrow)
    assert first.read_bytes() == again.read_bytes()
    with open_gguf(first) as gguf:
        assert gguf.metadata.get_str("general.architecture") == "llama"
        assert {i.format for i in gguf.tensors.values()} <= {"q4_k", "q6_k", "q8_0", "bf16", "f32"}


@pytest.mark.parametrize("format", [*make_shape.SCALES, "f16", "bf16"])
def test_random_blocks_decode_to_numbers_of_a_weights_size(format: str) -> None:
    blocks = make_shape.random_blocks(np.random.default_rng(1), format, 1 << 16)
    x = FORMATS[format].decode(blocks.view(FORMATS[format].dtype))
    assert x.size == 1 << 16 and np.isfinite(x).all()
    assert make_shape.DEVIATION / 4 < x.std() < make_shape.DEVIATION * 4


def test_narrow_rows_take_the_format_that_was_asked_for() -> None:
    shape = make_shape.SHAPES["qwen2.5-0.5b"]
    wide = make_shape.tensor_formats(shape, "Q4_K_M", "q8_0")
    assert (wide["blk.0.attn_q.weight"], wide["token_embd.weight"]) == ("q8_0", "q8_0")
    assert {wide[f"blk.{i}.ffn_down.weight"] for i in range(24)} == {"q4_k", "q6_k"}
    assert make_shape.tensor_formats(shape, "Q4_K_M")["blk.0.attn_q.weight"] == "q5_0"
    assert make_shape.tensor_formats(shape, "BF16", "q8_0")["blk.0.attn_q.weight"] == "bf16"


def test_unknown_shapes_types_and_formats_are_errors(tmp_path: Path) -> None:
    for shape, type, narrow in (
        ("tiny2", "Q8_0", ""),
        ("tiny", "Q9", ""),
        ("tiny", "Q8_0", "q3"),
        ("tiny", "Q5_1", ""),
    ):
        with pytest.raises(RequestError):
            make_shape.make(shape, type, tmp_path / "x.gguf", narrow)
    assert list(tmp_path.iterdir()) == []


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
