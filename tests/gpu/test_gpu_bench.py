"""What bench/gpu.py measures runs on a card: the loop, the service and HTTP with many streams."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

import gpu
import gpu_streams
import make_shape

from satchel.runtime.device.libraries import libraries

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "cuda" not in {f.name for f in libraries() if not f.reason}, reason="cuda cannot run here"
    ),
]


def test_many_streams_of_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the shape of the 1B; prints what it measured."""
    path = make_shape.make("llama-3.2-1b", "Q4_K_M", tmp_path / "1b.gguf")
    options = argparse.Namespace(device="cuda", service=[64, 128], http=[128], repeats=2, step=0)
    loop = gpu.ours(
        path, gpu.Runtimes("cuda", "", "", 3, 0, "exact"), "-npp", "128", "-ntg", "256", "-npl", "64,128"
    )
    assert [r["pl"] for r in loop] == [64, 128]
    found = gpu_streams.service_rows(path, options) + gpu_streams.http_rows(path, options)
    assert [(r["way"], r["streams"]) for r in found] == [("service", 64), ("service", 128), ("http", 128)]
    assert all(len(r["samples"]) == 2 and r["tokens_per_second"] > 0 for r in found)
    with capsys.disabled():
        loops = [(r["pl"], r["speed_tg"], r["deviation_tg"]) for r in loop]
        print(json.dumps({"loop": loops, "streams": found}), file=sys.stderr)
