"""`satchel bench --profile`: its rows add up, its tables are Markdown, and a plot is made of them."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as xml
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import roofline
import tiny
import tiny_file

from satchel.cli.main import main
from satchel.runtime.device import peaks as device_peaks
from satchel.runtime.device.libraries import libraries
from satchel.runtime.plan import PlanStep
from satchel.runtime.tasks.profile import group_of

HAVE = {f.name for f in libraries() if not f.reason}
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("profile") / "tiny.gguf", general__file_type=7)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_peaks, "BEYOND_CACHE", 1 << 20)


def profile(model: Path, capsys: pytest.CaptureFixture[str], *args: object) -> str:
    common = ("bench", "-m", str(model), "--profile", "-r", "2", "-t", "2")
    assert main([*common, *map(str, args)]) == 0
    return capsys.readouterr().out


@needs_cpu
def test_rows_add_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: Rows = json.loads(profile(model, capsys, "-p", 20, "-n", 6, "-d", 3, "-ub", 8, "-o", "json"))
    assert list(dict.fromkeys(r["test"] for r in rows)) == ["pp20 @ d3", "tg6 @ d3"]
    for test in {r["test"] for r in rows}:
        parts: dict[str, Rows] = {}
        for r in rows:
            if r["test"] == test:
                parts.setdefault(r["part"], []).append(r)
        sums = {r["op"]: r for r in parts["sum"]}
        assert list(sums) == ["all steps", "rest of the call", "outside C", "whole"]
        for key in ("us_per_token", "calls_per_token", "bytes_per_token", "macs_per_token", "share"):
            for part in ("op", "weights"):
                assert sum(r[key] for r in parts[part]) == pytest.approx(sums["all steps"][key])
        three = ("all steps", "rest of the call", "outside C")
        assert sum(sums[s]["us_per_token"] for s in three) == pytest.approx(sums["whole"]["us_per_token"])
        assert sums["whole"]["share"] == pytest.approx(1) and sums["all steps"]["us_per_token"] > 0
        assert [r["us_per_token"] for r in parts["op"]] == sorted(
            (r["us_per_token"] for r in parts["op"]), reverse=True
        )


@needs_cpu
def test_rates_follow_from_bytes_and_time(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: Rows = json.loads(profile(model, capsys, "-p", 9, "-n", 4, "-o", "json"))
    multiplies = {r["op"] for r in rows if r["part"] == "op" and r["gmac_per_second"] is not None}
    assert multiplies == {"linear", "linear_add", "linear_swiglu_quantize", "attention"}
    for r in rows:
        assert r["us_per_token"] >= 0 and r["memory_gb_per_second"] > 0 and r["int8_gmac_per_second"] > 0
        if r["gmac_per_second"] is None:
            assert r["gb_per_second"] is None and r["share_of_roof"] is None
            continue
        seconds = r["us_per_token"] / 1e6
        assert r["gb_per_second"] == pytest.approx(r["bytes_per_token"] / seconds / 1e9)
        assert r["gmac_per_second"] == pytest.approx(r["macs_per_token"] / seconds / 1e9)
        assert r["macs_per_byte"] == pytest.approx(r["macs_per_token"] / r["bytes_per_token"])
        assert r["share_of_roof"] >= r["gb_per_second"] / r["limit_gb_per_second"] * (1 - 1e-9) > 0


@needs_cpu
def test_layers_are_one_row(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: Rows = json.loads(profile(model, capsys, "-p", 0, "-n", 3, "-o", "json"))
    named = Counter(r["weights"] for r in rows if r["part"] == "weights" and r["weights"])
    assert named["blk.*.ffn_down"] == named["blk.*.ffn_gate, blk.*.ffn_up"] == 1
    down = next(r for r in rows if r["weights"] == "blk.*.ffn_down")
    assert down["calls_per_token"] == tiny.LAYERS
    assert down["macs_per_token"] == tiny.LAYERS * tiny.FFN * tiny.WIDTH


@needs_cpu
def test_answers_of_several_sequences(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They share a step and its weights; each has its own products and its own past."""
    rows: Rows = json.loads(
        profile(model, capsys, "-npl", "1,3", "-npp", 5, "-ntg", "2,4", "-ub", 8, "-o", "json")
    )
    assert list(dict.fromkeys(r["test"] for r in rows)) == [
        "tg2 @ d5",
        "tg2 x3 @ d5",
        "tg4 @ d5",
        "tg4 x3 @ d5",
    ]
    one, three = (
        {(r["op"], r["weights"]): r for r in rows if r["test"] == test and r["part"] == "weights"}
        for test in ("tg4 @ d5", "tg4 x3 @ d5")
    )
    down = "linear_add", "blk.*.ffn_down"
    assert three[down]["macs_per_token"] == one[down]["macs_per_token"]
    for shared in ("bytes_per_token", "calls_per_token"):
        assert three[down][shared] == pytest.approx(one[down][shared] / 3)
    for own in ("macs_per_token", "bytes_per_token"):
        assert three["attention", ""][own] == pytest.approx(one["attention", ""][own])


@needs_cpu
def test_tables_for_people(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = profile(model, capsys, "-p", 5, "-n", 2)
    assert next(line for line in text.splitlines() if line.startswith("## ")).endswith("2 threads: pp5")
    tables = [part for part in text.split("\n\n") if part.startswith("| op ")]
    assert len(tables) == 6
    for table in tables:
        assert len({len(line) for line in table.splitlines()}) == 1 and len(table.splitlines()) > 2


@pytest.mark.skipif("null" not in HAVE, reason="no null backend is installed")
def test_a_device_that_counts_no_time_says_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-m", str(model), "--profile", "-dev", "null", "-p", "4", "-n", "0"]) == 1
    found = capsys.readouterr()
    assert found.out == "" and "null does not count the time of steps" in found.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("inputs", "group"),
    [
        (("quantize@blk.3", "blk.3.ffn_down.weight:q4_k", "linear@blk.3"), "blk.*.ffn_down"),
        (("x@blk.10", "blk.10.attn_q.weight:f16", "blk.10.attn_k.weight:f16"), "blk.*.attn_q, blk.*.attn_k"),
        (("x@output", "token_embd.weight:q6_k"), "token_embd"),
        (("linear@blk.0", "blk.0.attn_q.bias:f32"), "blk.*.attn_q.bias"),
        (("rope@blk.0", "k.0:f16", "pos:i32"), ""),
    ],
)
def test_groups(inputs: tuple[str, ...], group: str) -> None:
    assert group_of(PlanStep("blk.3", "linear", "f32[tokens, 4]", inputs, 0, "")) == group


@needs_cpu
def test_the_plot_of_a_profile(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: pip install 'satchel[plot]'")
    data, out = tmp_path / "profile.json", tmp_path / "roofline.svg"
    data.write_text(profile(model, capsys, "-p", 20, "-n", 6, "-o", "json"))
    roofline.main(["--json", str(data), "--out", str(out)])
    drawn = roofline.points(json.loads(data.read_text()))
    texts = {"".join(node.itertext()).strip() for node in xml.parse(out).iter() if node.tag.endswith("text")}
    assert drawn and {roofline.label(r) for r in drawn} <= texts and {"pp20", "tg6"} <= texts


@pytest.mark.parametrize("wanted", [[], [1.0], [1.0, 1.0, 1.0], [0.1, 0.11, 50.0], [1e-6, 1.0, 1.01, 1.02]])
def test_labels_keep_apart(wanted: list[float]) -> None:
    found = roofline.spread(wanted)
    assert len(found) == len(wanted)
    assert all(b / a > roofline.GAP * 0.999 for a, b in pairwise(found))
