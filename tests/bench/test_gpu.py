"""Tests of bench/gpu.py and gpu_streams.py: rates of streams that decode together, and their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

import gpu
import gpu_streams

from satchel.errors import RequestError
from satchel.runtime.engine.request_handle import End, RequestHandle

NOBODY: Any = None


def test_the_rate_is_that_of_all_streams_together() -> None:
    """From 2, when the last one has begun, to 4, when the first one ends: pieces at 3, 4, 2.5 and 4."""
    assert gpu_streams.steady([[1.0, 2.0, 3.0, 4.0], [2.0, 2.5, 4.0, 7.0]]) == 4 / 2
    assert gpu_streams.steady([[1.0, 2.0, 3.0]]) == 2 / 2


def test_streams_that_never_decode_together_have_no_rate() -> None:
    with pytest.raises(RequestError, match="2 streams never decoded together"):
        gpu_streams.steady([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(RequestError, match="1 of 2 streams had no token"):
        gpu_streams.steady([[1.0, 2.0], []])


def test_a_streams_tokens_are_timed_when_they_come() -> None:
    handle = RequestHandle(NOBODY, NOBODY)
    stream = gpu_streams.Stream(handle)
    for token in (7, 8, 9):
        handle.put(token)
    last = stream.times[-1]
    handle.put(End("length"))
    assert (len(stream.ended()), stream.ended()) == (3, [])  # taken once
    assert len(stream.times) == 4 and stream.times[2] == last


def test_a_row_leaves_out_the_run_that_compiles() -> None:
    assert gpu_streams.row("http", 8, [1.0, 30.0, 10.0, 20.0]) == {
        "way": "http",
        "streams": 8,
        "tokens_per_second": 20.0,
        "samples": [30.0, 10.0, 20.0],
    }


def test_rows_have_ratios_to_the_loop() -> None:
    assert gpu.StreamSpeed("m", 64, 2000.0, 1500.0, 0).row == "| m | 64 | 2,000 | 1,500 | 0.75 | - | - |"
    assert gpu.StreamSpeed("m", 64, 0, 1500.0, 30.0).row == "| m | 64 | - | 1,500 | - | 30 | - |"


@pytest.mark.parametrize("answers", [True, False], ids=["", "no server"])
def test_streams_are_measured_beside_the_loop(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    speeds = {"service": {64: 900, 128: 1800}, "http": {128: 1000}}

    def answer_of(command: list[str], what: str) -> Any:
        asked.append(command)
        if str(gpu.STREAMS) not in command:
            return [{"pl": 64, "speed_tg": 1000}, {"pl": 128, "speed_tg": 2000}]
        (way,) = (way for way in speeds if command[command.index(f"--{way}") + 1] != "0")
        if way == "http" and not answers:
            return None
        counts = map(int, command[command.index(f"--{way}") + 1].split(","))
        return [{"way": way, "streams": n, "tokens_per_second": speeds[way][n]} for n in counts]

    monkeypatch.setattr(gpu, "answer_of", answer_of)
    runtimes = gpu.Runtimes("cuda:1", "", "", 3, 512, "fast")
    found = list(gpu.streamed(Path("a/m.gguf"), runtimes, [64, 128], [128]))
    http = 1000 if answers else 0
    assert found == [gpu.StreamSpeed("m", 64, 1000, 900, 0), gpu.StreamSpeed("m", 128, 2000, 1800, http)]
    sizes = dict(zip(asked[-1], asked[-1][1:], strict=False))
    assert (sizes["-npp"], sizes["-ntg"]) == (str(gpu_streams.PROMPT), str(gpu_streams.ANSWER))
    assert sizes["-npl"] == "64,128" and all("cuda:1" in one and "512" in one for one in asked)


def test_what_could_not_be_measured_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a file that is not there: the rows are named once more at the end."""
    monkeypatch.setattr(gpu, "answer_of", lambda command, what: None)
    words = "gpu.py m.gguf --pp 512 --tg 0 --depths 0 --batches 4 --service 64 --http 0"
    monkeypatch.setattr("sys.argv", words.split())
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == (
        "gpu: not measured, for the reasons above: pp512 of m, tg64 x4 of m, 64 streams of m"
    )
    assert "| m | pp512 | 0 |" in capsys.readouterr().out
