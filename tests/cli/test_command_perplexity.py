"""`satchel perplexity`: JSON keys, base files, and llama.cpp's own numbers on real text."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
import tiny_file
from devices import needs

from satchel.cli.main import main
from satchel.formats.logits import open_logits

pytestmark = needs("cpu")
TEXT = "hello hello, the quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same tiny model in f32 and in 8 bits."""
    folder = tmp_path_factory.mktemp("ppl")
    return (
        tiny_file.write_model(folder / "f32.gguf", format="f32"),
        tiny_file.write_model(folder / "q8_0.gguf", format="q8_0"),
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT + "\n")
    return path


def test_json(models: tuple[Path, Path], text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["perplexity", "-m", str(models[0]), "-f", str(text), "-c", "32", "--chunks", "3", "--json"]
    assert main(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"ppl", "ppl_error", "tokens", "chunks", "context", "seconds"} <= set(found)
    assert not any(key.startswith("kld") for key in found)
    assert (found["chunks"], found["context"], found["tokens"]) == (3, 32, 45)
    assert 1 < found["ppl"] < 2000 and found["ppl_error"] > 0


def test_base_file(
    models: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base.bin"
    shared = ["--kl-divergence-base", str(base), "--json"]
    assert main(["perplexity", "-m", str(models[0]), "-f", str(text), "-c", "32", *shared]) == 0
    written = json.loads(capsys.readouterr().out)
    assert open_logits(base).tokens.shape == (written["chunks"], 32)
    found = []
    for model in models:
        assert main(["perplexity", "-m", str(model), "--kl-divergence", *shared]) == 0
        found.append(json.loads(capsys.readouterr().out))
    same, other = found
    assert same["ppl"] == written["ppl"] and abs(same["kld_mean"]) < 1e-6 and same["same_top"] == 1
    assert 0 < other["kld_mean"] < 0.05 and 0.8 < other["same_top"] <= 1
    assert other["kld_p99"] >= other["kld_p95"] >= other["kld_median"]
    assert main(["perplexity", "-m", str(models[1]), "--kl-divergence", *shared[:2], "-f", str(text)]) == 0
    assert "same top token" in capsys.readouterr().out


def test_percentiles_rise_and_positions_cover_the_scored_half(
    models: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["-f", str(text), "-c", "48", "--kl-divergence", "--json"]
    assert main(["perplexity", str(models[0]), str(models[1]), *args]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert "kld_mean" not in first and first["bits_per_weight"] > second["bits_per_weight"]
    keys = ("min", "p1", "p5", "p10", "median", "p90", "p95", "p99", "p99_9", "max")
    found = [second[f"kld_{key}"] for key in keys]
    assert found == sorted(found) and found[0] < found[-1]
    by_position = second["by_position"]
    assert by_position[0]["first"] == 25 and by_position[-1]["last"] == 47
    assert all(a["last"] + 1 == b["first"] for a, b in itertools.pairwise(by_position))
    sizes = [p["last"] - p["first"] + 1 for p in by_position]
    mean = sum(p["kld"] * n for p, n in zip(by_position, sizes, strict=True)) / sum(sizes)
    assert mean == pytest.approx(second["kld_mean"], rel=1e-4)


def test_several_models_make_a_table(
    models: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "x.svg"
    args = ["-m", str(models[0]), str(models[1]), "-f", str(text), "-c", "32", "--kl-divergence"]
    pytest.importorskip("matplotlib")
    assert main(["perplexity", *args, "--plot", str(plot)]) == 0
    head, rule, first, second = capsys.readouterr().out.splitlines()
    for word in ("model", "size", "bits/weight", "PPL", "KLD mean", "KLD median", "KLD 99 %", "same top"):
        assert word in head
    assert len({len(line) for line in (head, rule, first, second)}) == 1
    assert "f32.gguf" in first and "q8_0.gguf" in second and first.split("|")[5].strip() == ""
    assert plot.read_text().lstrip().startswith("<?xml") and "<svg" in plot.read_text()


def test_a_plot_needs_matplotlib(
    models: tuple[Path, Path], text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    args = [str(models[0]), str(models[1]), "-f", str(text), "--kl-divergence", "--plot", "x.png"]
    assert main(["perplexity", *args]) == 1
    assert "satchel[plot]" in capsys.readouterr().err


def test_multiple_choice(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [{"context": "the quick", "endings": ["brown fox", "dog"], "label": i % 2} for i in range(4)]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, tasks)))
    assert main(["perplexity", "-m", str(models[0]), "--multiple-choice", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["multiple_choice"]
    assert (found["tasks"], found["raw"], found["normalised"], found["chance"]) == (4, 0.5, 0.5, 0.5)
    more = ["--multiple-choice-tasks", "1"]
    assert main(["perplexity", *map(str, models), "--multiple-choice", str(path), *more]) == 0
    head, _, first, _ = capsys.readouterr().out.splitlines()
    assert "accuracy" in head and "PPL" not in head and ("100.00" in first or " 0.00" in first)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([], 2, "-f"),
        (["-f", "TEXT", "--kl-divergence"], 2, "several models"),
        (["-f", "TEXT", "--plot", "x.svg"], 2, "--kl-divergence"),
        (["-f", "TEXT", "--kl-divergence", "--kl-divergence-base", "x", "--plot", "x.gif"], 2, ".svg, .png"),
        (["-f", "TEXT", "TEXT", "--kl-divergence-base", "x"], 2, "give one model"),
        (["--multiple-choice", "TEXT"], 1, "lines a task"),
        (["-f", "TEXT", "--multiple-choice-tasks", "3"], 2, "--multiple-choice FILE"),
        (["--kl-divergence"], 2, "--kl-divergence-base"),
        (["-f", "TEXT", "-c", "4096"], 1, "tokens"),
        (["-f", "TEXT", "-c", "2"], 1, "too short"),
        (["-f", "TEXT", "--chunks", "0", "-c", "32"], 1, "windows"),
        (["-f", "no such file"], 1, "No such file"),
        (["--kl-divergence", "--kl-divergence-base", "TEXT"], 1, "_logits_"),
        (["-f", "TEXT", "-c", "32", "--kl-divergence-base", "/no/such/folder/base"], 1, "can't be written"),
    ],
)
def test_what_cannot_be(
    args: list[str],
    code: int,
    says: str,
    models: tuple[Path, Path],
    text: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(text) if a == "TEXT" else a for a in args]
    assert main(["perplexity", "-m", str(models[0]), *given]) == code
    found = capsys.readouterr()
    error = [line for line in found.err.splitlines() if line.startswith("satchel: error")]
    assert found.out == "" and len(error) == 1 and says in error[0]


def test_another_text_or_window_than_the_base_s(
    models: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = str(tmp_path / "base.bin")
    first = ["perplexity", "-m", str(models[0]), "-f", str(text), "-c", "32", "--kl-divergence-base", base]
    assert main(first) == 0
    assert main([*first[:-4], "-c", "64", "--kl-divergence-base", base, "--kl-divergence"]) == 2
    text.write_text(TEXT.replace("fox", "cat"))
    assert main([*first, "--kl-divergence"]) == 1
    assert "another text" in capsys.readouterr().err


def score(model: Path, text: Path, capsys: pytest.CaptureFixture[str], *more: str) -> float:
    assert main(["perplexity", "-m", str(model), "-f", str(text), "--json", *more]) == 0
    return float(json.loads(capsys.readouterr().out)["ppl"])


@pytest.fixture
def wikitext(shared: Path, tmp_path: Path) -> Path:
    path = tmp_path / "wikitext.txt"
    path.write_bytes((shared / "eval" / "wikitext2-test.txt").read_bytes()[:400_000])
    return path


@pytest.mark.model
def test_four_windows_as_llama_cpp(
    source_model: Path, wikitext: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp's logits of the same four windows of 512 tokens give 87.154."""
    assert score(source_model, wikitext, capsys, "--chunks", "4") == pytest.approx(87.154, rel=2e-3)


@pytest.mark.nightly
@pytest.mark.model
def test_the_whole_text_as_llama_cpp(
    source_model: Path, wikitext: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama-perplexity gives 96.72."""
    assert score(source_model, wikitext, capsys) == pytest.approx(96.72, rel=2e-3)
