"""`satchel bench`: llama-bench's tests and columns, consistent figures, and only the table on stdout."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import tiny_file

from satchel.cli import share
from satchel.cli.commands.bench import numbers
from satchel.cli.main import main
from satchel.cli.usage import UsageError
from satchel.errors import RequestError
from satchel.runtime.device import bandwidth
from satchel.runtime.device import peaks as device_peaks
from satchel.runtime.device.bandwidth import read_bandwidth
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.layers.arch import Cache
from satchel.runtime.tasks.bench import Batched, Runner, Test, cost_of, prefill, run_batched, steps_of

Test.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a class of tests
KEYS = {
    "model", "type", "backend", "threads", "test", "tokens_per_second", "samples", "bytes_per_token",
    "gb_per_second", "share_of_limit", "outside_c", "memory_gb_per_second", "macs_per_token",
    "gmac_per_second", "share_of_peak", "device_waits_us", "joules_per_token",
    "int8_gmac_per_second", "bf16_gmac_per_second", "f32_gmac_per_second",
}  # fmt: skip
HAVE = {f.name for f in libraries() if not f.reason}
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


@dataclass
class Counter:
    """A fake engine that records what each step computes."""

    batch: int
    cache: Cache = field(default_factory=lambda: Cache(64, slots=4))
    steps: list[list[tuple[int, int, bool]]] = field(default_factory=list)
    overlaps: bool = False
    timing: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(inside=0.0))

    def rewind(self, slot: int, length: int) -> None:
        assert length == 0

    def step(self, entries: Sequence[BatchEntry]) -> list[int]:
        assert 0 < sum(len(f.ids) for f in entries) <= self.batch
        self.steps.append([(f.slot, len(f.ids), f.sampling is not None) for f in entries])
        return [f.slot + 1 for f in entries if f.sampling is not None]


@pytest.mark.parametrize("batch", [1, 3, 7, 64])
@pytest.mark.parametrize("lengths", [(5,), (5, 5), (1, 9, 2, 7)])
def test_prompts_share_full_steps(batch: int, lengths: tuple[int, ...]) -> None:
    engine = Counter(batch)
    assert prefill(engine, [[0] * n for n in lengths]) == [i + 1 for i in range(len(lengths))]  # type: ignore[arg-type]
    sizes = [sum(n for _, n, _ in step) for step in engine.steps]
    assert sizes[:-1] == [batch] * (len(sizes) - 1) and sum(sizes) == sum(lengths)
    for slot, length in enumerate(lengths):
        mine = [(n, last) for step in engine.steps for s, n, last in step if s == slot]
        assert sum(n for n, _ in mine) == length
        assert [last for _, last in mine] == [False] * (len(mine) - 1) + [True], (
            "one token a prompt is sampled"
        )


def test_a_run_feeds_what_its_name_says() -> None:
    engine, test = Counter(8), Test(10, 3, 4)
    runner = Runner(engine, 10)  # type: ignore[arg-type]
    runner.once(test)
    assert [step[0][1] for step in engine.steps] == [4, 8, 2, 1, 1, 1]
    expected = [(f.tokens, bool(f.rows)) for f in steps_of(test, 8)]
    assert [(n, sampled) for ((_, n, sampled),) in engine.steps[1:]] == expected
    assert [f.start for f in steps_of(test, 8)] == [4, 12, 14, 15, 16]


@pytest.mark.parametrize(
    ("test", "name"),
    [
        (Test(512, 0), "pp512"),
        (Test(0, 128), "tg128"),
        (Test(512, 128), "pp512+tg128"),
        (Test(0, 32, 4096), "tg32 @ d4096"),
        (Test(0, 32, 4096, 16), "tg32 x16 @ d4096"),
    ],
)
def test_names_are_llama_bench_s(test: Test, name: str) -> None:
    assert test.name == name


def test_columns_of_a_batch() -> None:
    found = Batched(128, 32, 4, (2.0,), (0.5,)).columns()
    assert (found["n_kv"], found["speed_pp"], found["speed_tg"]) == (640, 256, 256)
    assert (found["t"], found["speed"], found["deviation_tg"]) == (2.5, 256, 0)


def test_columns_of_a_batch_are_medians_beside_their_spread() -> None:
    found = Batched(128, 32, 4, (2.0, 1.0, 4.0), (0.5, 8.0, 1.0)).columns()
    assert (found["t_pp"], found["t_tg"], found["t"]) == (2.0, 1.0, 5.0)
    assert (found["speed_pp"], found["speed_tg"], found["speed"]) == (256, 128, 128)
    assert (found["samples_pp"], found["samples_tg"]) == ([256, 512, 128], [256, 16, 128])
    assert found["deviation_tg"] == pytest.approx(statistics.stdev([256, 16, 128]))


@pytest.mark.parametrize(
    ("test", "steps"),
    [
        (Test(10, 0), [8, 2] * 2),  # two steps a prompt: twice
        (Test(5, 0), [5] * 3),
        (Test(0, 9), [1] * 3),
        (Test(0, 2), [1] * 4),
        (Test(20, 9), [8, 8, 4, 1, 1, 1]),
        (Test(0, 9, 6), [1, 1, 1, 1]),  # behind one token in the cache
        (Test(0, 9, 6, 3), [3, 3, 3, 3]),
    ],
)
def test_three_steps_of_each_kind_warm_up(test: Test, steps: list[int]) -> None:
    engine = Counter(8)
    runner = Runner(engine, 10)  # type: ignore[arg-type]
    runner.warm_up(test)
    assert [sum(n for _, n, _ in step) for step in engine.steps] == steps


@pytest.mark.parametrize("warm_up", [False, True])
def test_batches_are_repeated_behind_three_steps(warm_up: bool) -> None:
    engine = Counter(8)
    (found,) = run_batched(Runner(engine, 10), [6], [4], [2], 2, warm_up)  # type: ignore[arg-type]
    run = [8, 4, *[2] * 4]
    assert [sum(n for _, n, _ in step) for step in engine.steps] == [8, 4, 2, 2, 2] * 2 * warm_up + run * 2
    assert len(found.t_pp) == len(found.t_tg) == 2


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1;2", "0x10", "1.5"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="-p: expected comma-separated integers"):
        numbers("-p", text, 0)


def test_bandwidth_is_that_of_reading() -> None:
    assert 1e5 < read_bandwidth(1 << 22, 2) < 1e13  # bytes a second, of a machine that may be busy
    with pytest.raises(RequestError):
        read_bandwidth(0, 1)


@needs_cpu
@pytest.mark.parametrize("arch", ["llama", "mistral"])
def test_bytes_of_a_token(arch: str) -> None:
    """Every weight once, one row of an untied embedding, and the cache up to the token."""
    weights = tiny.weights(arch, "q8_0", tied=False)
    cache = Cache(context=tiny.CONTEXT)
    engine = tiny.engine(arch, weights, cache, find_backend("cpu").open(threads=1))
    try:
        row = tiny.WIDTH // 32 * 34
        all_weights = sum(a.nbytes for n, a in weights.tensors.items() if n != "token_embd.weight") + row
        position = tiny.LAYERS * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * 2
        assert cost_of(engine, Test(0, 1)).bytes == all_weights + position
        assert cost_of(engine, Test(0, 5, 10)).bytes == 5 * (all_weights + 13 * position)
        with pytest.raises(RequestError, match="context holds 96"):
            Runner(engine, 10).run(Test(0, 1, 96), 1)
    finally:
        engine.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "SECONDS", 0.01)
    monkeypatch.setattr(device_peaks, "BEYOND_CACHE", 1 << 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("bench") / "tiny.gguf", general__file_type=7)


def run(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["bench", *map(str, args)]) == 0
    return capsys.readouterr().out


@needs_cpu
def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(
        run(capsys, "-m", model, "-p", 20, "-n", "4,6", "-pg", "3,2", "-r", 3, "-t", "1,2", "-o", "json")
    )
    assert [r["test"] for r in rows] == ["pp20", "tg4", "tg6", "pp3+tg2"] * 2
    assert [r["threads"] for r in rows] == [1] * 4 + [2] * 4
    for r in rows:
        assert set(r) >= KEYS and r["type"] == "Q8_0" and r["backend"] == "cpu"
        assert len(r["samples"]) == 3 and r["tokens_per_second"] == statistics.median(r["samples"])
        assert r["gb_per_second"] == pytest.approx(
            r["bytes_per_token"] * r["tokens_per_second"] / 1e9, rel=1e-5
        )
        assert 0 <= r["outside_c"] < 1
        decodes = r["test"].startswith("tg")
        assert (r["device_waits_us"] is not None) == decodes
        assert (r["share_of_limit"] is not None) == decodes
        if decodes:
            assert r["share_of_limit"] == pytest.approx(r["gb_per_second"] / r["limit_gb_per_second"])
        assert r["gmac_per_second"] == pytest.approx(
            r["macs_per_token"] * r["tokens_per_second"] / 1e9, rel=1e-3
        )
        assert (r["share_of_peak"] is not None) == (r["test"] == "pp20")
        if r["test"] == "pp20":
            assert r["share_of_peak"] == pytest.approx(r["gmac_per_second"] / r["peak_gmac_per_second"])
            assert (
                r["peak_gmac_per_second"] <= max(r["int8_gmac_per_second"], r["f32_gmac_per_second"]) * 1.001
            )


@needs_cpu
def test_markdown_has_llama_bench_s_columns(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "-m", model, "-p", 8, "-n", 0, "-r", 1, "-d", 5).splitlines()
    heads = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert heads[:7] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert len(lines) == 3 and "pp8 @ d5" in lines[2]
    assert len({len(line) for line in lines}) == 1


@needs_cpu
def test_csv_and_json_lines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = csv.DictReader(io.StringIO(run(capsys, "-m", model, "-p", 8, "-n", 0, "-r", 2, "-o", "csv")))
    assert set(row) >= KEYS and len(row["samples"].split(";")) == 2
    text = run(capsys, "-m", model, "-p", "8,9", "-n", 0, "-r", 1, "-o", "jsonl")
    assert [json.loads(line)["test"] for line in text.splitlines()] == ["pp8", "pp9"]


@needs_cpu
def test_batched(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("-m", model, "-npl", "1,3", "-npp", 16, "-ntg", 4, "-r", 3)
    lines = run(capsys, *args).splitlines()
    heads = ["PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == heads
    assert [line.split("|")[3:5] for line in lines[2:]] == [["    1 ", "     20 "], ["    3 ", "     60 "]]
    rows = json.loads(run(capsys, *args, "-o", "json"))
    assert [(r["pl"], r["n_kv"]) for r in rows] == [(1, 20), (3, 60)]
    assert all(len(r["samples_pp"]) == len(r["samples_tg"]) == 3 for r in rows)
    assert "±" in lines[2].split("|")[6] and "±" in lines[2].split("|")[8]
    assert all(r["speed_tg"] == pytest.approx(4 * r["pl"] / r["t_tg"]) for r in rows)


@needs_cpu
@pytest.mark.parametrize("batched", [False, True])
def test_a_block_to_paste_names_no_folder_and_no_secret(
    batched: bool, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["-npl", "2", "-npp", "8", "-ntg", "4"] if batched else ["-p", "8", "-n", "4"]
    asked = ["bench", "-m", str(model), *sizes, "-r", "1", "--share"]
    monkeypatch.setattr("sys.argv", ["satchel", *asked, f"--config={model.parent}/mine.toml"])
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert str(model.parent) not in out and str(Path.home()) not in out
    head, table = out.strip().rsplit("\n\n", 1)
    rows = dict(line.strip("| ").split(" | ", 1) for line in head.splitlines()[3:] if " | " in line)
    assert list(rows) == ["Satchel", "system", "processor", "device cpu", "model", "command"]
    assert rows["model"].startswith(f"{model.name}, ")
    assert rows["command"].startswith(f"`satchel bench -m {model.name} ")
    assert rows["command"].endswith("--share --config=mine.toml`")
    assert all(line.startswith("| ") and line.endswith(" |") for line in table.splitlines())
    assert len(table.splitlines()) == 3 + (not batched)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["bench", "-m", "/Users/ann/my models/x.gguf"], "satchel bench -m x.gguf"),
        (["bench", "-m", "C:\\Users\\ann\\x.gguf"], "satchel bench -m x.gguf"),
        (["bench", "--lora=/Users/ann/a.gguf", "-p", "1,2"], "satchel bench --lora=a.gguf -p 1,2"),
        (["bench", "--hub-token", "hf_abcdefghijkl"], "satchel bench --hub-token (redacted)"),
        (["bench", "-m", "a`b.gguf"], "satchel bench -m 'a'b.gguf'"),
    ],
)
def test_a_command_line_to_paste(words: list[str], shown: str) -> None:
    assert share.command(words) == shown


@pytest.mark.parametrize(
    "args",
    [
        ["--share", "-o", "json"],
        ["--share", "--profile"],
        ["--share", "--url", "http://127.0.0.1:1"],
        ["-o", "xml"],
        ["-p", "x"],
        ["-p", "-1"],
        ["-p", "0", "-n", "0"],
        ["-pg", "5"],
        ["-r", "0"],
        ["-t", "-2"],
        ["-npp", "5"],
        ["-npl", "0"],
        ["-npl", "0", "--profile"],
        ["-ngl", "many"],
        ["-ctk", "q5_1"],
    ],
)
def test_wrong_use(args: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-m", str(model), *args]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and found.err.startswith("satchel: error: ")


@pytest.mark.skipif("remote" not in HAVE, reason="the test backend whose memory is apart is not built")
@needs_cpu
def test_devices_share_the_layers_as_asked(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["-m", model, "-p", "4", "-n", "0", "-r", "1", "-o", "json", "-dev", "remote,cpu"]
    for split, first in (("1,0", "remote"), ("0,1", "cpu")):
        assert json.loads(run(capsys, *asked, "-ts", split))[0]["backend"] == first
    assert main(["bench", *map(str, asked), "-ts", "1,2,3"]) == 2
    assert "tensor_split has 3 numbers for 2 devices" in capsys.readouterr().err
