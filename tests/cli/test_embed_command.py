"""`satchel embed`, and the options of adapters and control vectors: embeddings equal the library's; usage
errors.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import extra_files
import numpy as np
import pytest
import tiny_file
from devices import needs

from satchel.cli.main import main
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.model import Model

pytestmark = needs("cpu")

TEXTS = ["a b", "c", "once upon a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embed")
    tiny_file.write_model(path / "m.gguf", "llama", "q8_0")
    extra_files.write_adapter(path / "a.gguf", extra_files.factors(1))
    extra_files.write_vector(path / "v.gguf", extra_files.directions(3))
    return path


def embedded(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main(["embed", "-m", str(folder / "m.gguf"), "-t", "2", *options]) in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert [d["index"] for d in found["data"]] == list(range(len(found["data"])))
    return [np.array(d["embedding"], np.float32) for d in found["data"]]


def test_vectors_are_the_librarys(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Model.load(folder / "m.gguf", threads=2) as model:
        plain, cut = model.embed(TEXTS), model.embed(TEXTS, pooling="last", dimensions=8, normalize=False)
        each = model.embed_tokens(TEXTS)
    assert np.array_equal(np.stack(embedded(folder, capsys, *TEXTS)), plain)
    options = ["--pooling", "last", "--dimensions", "8", "--embd-normalize", "-1"]
    assert np.array_equal(np.stack(embedded(folder, capsys, *options, "-p", "\n".join(TEXTS))), cut)
    found = embedded(folder, capsys, "--pooling", "none", *TEXTS)
    assert all(np.array_equal(a, b) for a, b in zip(found, each, strict=True))
    (tmp_path / "texts").write_text("\n".join(["", *TEXTS, "", ""]))
    target = tmp_path / "out.npy"
    assert main(
        ["embed", "-m", str(folder / "m.gguf"), "-f", str(tmp_path / "texts"), "-o", str(target)]
    ) in (0, None)
    assert np.array_equal(np.load(target), plain)


def test_adapters_and_vectors_of_the_command_line_hold(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extras: dict[str, Any] = {
        "adapters": [AdapterFile(folder / "a.gguf", 0.5)],
        "control_vectors": [AdapterFile(folder / "v.gguf", layers=(2, 2))],
    }
    with Model.load(folder / "m.gguf", threads=2, **extras) as model:
        wanted = model.embed(TEXTS)
    options = ["--lora-scaled", f"{folder / 'a.gguf'}:0.5", "--control-vector", str(folder / "v.gguf")]
    found = embedded(folder, capsys, *TEXTS, *options, "--control-vector-layer-range", "2", "2")
    assert np.array_equal(np.stack(found), wanted)
    assert not np.array_equal(np.stack(embedded(folder, capsys, *TEXTS, *options)), wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a", "--pooling", "max"], "--pooling: expected one of none, mean, cls, last, got max"),
        (["a", "--embd-normalize", "1"], "--embd-normalize: 1"),
        (["a", "-p", "b"], "given twice"),
        (["-p", " "], "none given"),
        (["a", "--lora-scaled", "x.gguf"], "--lora-scaled: x.gguf: expected FILE:SCALE"),
        (["a", "--lora-scaled", "x.gguf:nan"], "expected FILE:SCALE"),
        (["a", "--control-vector-scaled", "x.gguf:big"], "--control-vector-scaled: x.gguf:big"),
        (["a", "--control-vector-layer-range", "3", "2"], "expected a first and a last layer"),
        (["a", "--pooling", "none", "-o", "x.npy"], "no common array"),
    ],
)
def test_wrong_use_is_said_before_a_file_is_opened(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "-m", "missing.gguf", *options]) == 2
    assert said in capsys.readouterr().err


def test_stdin_gives_a_text_on_each_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"a b\nc\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    found = embedded(folder, capsys)
    assert np.array_equal(np.stack(found), np.stack(embedded(folder, capsys, "a b", "c")))


def test_an_adapter_that_does_not_fit_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "-m", str(folder / "m.gguf"), "a", "--lora", str(folder / "v.gguf")]) == 1
    assert "v.gguf: general.type: expected adapter" in capsys.readouterr().err
