"""The benchmark of the C library runs the test driver over the library that was built."""

from __future__ import annotations

from pathlib import Path

import embed
import embedded
import installed
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build


def test_a_start_is_measured(tmp_path: Path) -> None:
    embedded.compiler()
    program = embed.driver(tmp_path, installed.build_folder() / "embed")
    with open_gguf(write_model(tmp_path / "m.gguf", qwen3__context_length=1024)) as gguf:
        build(gguf, tmp_path / "app.gguf")
    taken, worked = embed.first_token(program, tmp_path / "app.gguf", [1, 2, 3], 1)
    assert taken > 0 and worked > 0
