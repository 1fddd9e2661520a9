"""The C library's vectors are those of Model.embed, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded
import pytest
from embedded import Driver, DriverError
from once import made_once
from tiny_file import write_model

from satchel import Model
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

TEXTS = ("hello", "x", "hello hello  hello " * 4, "It's 12 é漢", " ", "".join(map(chr, range(32, 127))))
# Encoders, and decoders whose file states a pooling: of means, the first row and the last one.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "bert, first row": ("bert", {"bert__pooling_type": 2}),
    "qwen3, last row": ("qwen3", {"qwen3__pooling_type": 3}),
    "gemma2, mean": ("gemma2", {"gemma2__pooling_type": 1, "gemma2__attention__sliding_window": 20}),
    "qwen3, first row": ("qwen3", {"qwen3__pooling_type": 2}),
}


def built(factory: pytest.TempPathFactory, name: str) -> Path:
    arch, keys = MODELS[name]

    def make(folder: Path) -> None:
        path = write_model(folder / "m.gguf", arch, **keys)
        with open_gguf(path) as gguf:
            build(gguf, folder / "app.gguf")

    return made_once(factory, f"embed-vectors-{name.replace(', ', '-').replace(' ', '-')}", make) / "app.gguf"


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(embedded.driver_program(tmp_path_factory)) as made:
        yield made


@pytest.mark.parametrize("name", MODELS)
def test_vectors(name: str, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = built(tmp_path_factory, name)
    for context, slots in ((96, 1), (0, 3)):
        driver.open(path, context, slots, 2)
        with Model.load(path, context=96, slots=1, device="cpu", threads=1) as model:
            for text in TEXTS:
                assert driver.embed(text) == model.embed(text).tobytes(), text
        driver.close()


def test_what_is_no_embedding_says_so(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> None:
    driver.open(built(tmp_path_factory, "bert"), 60, 1)
    with pytest.raises(DriverError, match="the model makes embeddings, not text"):
        driver.begin(0, [1], {})
    with pytest.raises(DriverError, match="expected at most 60 tokens, got 61"):
        driver.embed("x" * 61)
    with pytest.raises(DriverError, match="expected one token or more, got none"):
        driver.embed("")
    driver.close()


def test_a_model_that_generates_has_no_vectors(driver: Driver, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with open_gguf(path) as gguf:
        build(gguf, tmp_path / "app.gguf")
    driver.open(tmp_path / "app.gguf")
    with pytest.raises(DriverError, match="the model generates text"):
        driver.embed("hello")
    driver.close()
