"""Which file `Model.load` opens: a path, a name of the store, or the bundled model."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_file import write_model

from satchel import AsyncModel, Model
from satchel.errors import ModelError, RequestError
from satchel.runtime.speculation import Speculation
from satchel.store import Store


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model's file, which the store of this test has under the name `mine`."""
    for name in ("HF_HOME", "OLLAMA_MODELS", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("SATCHEL_MODELS", str(tmp_path / "store"))
    path = write_model(tmp_path / "tiny.gguf")
    Store().copy(str(path), "mine")
    return path


def load(kind: str, *args: Any, **kwargs: Any) -> Path:
    """The file that is loaded."""

    async def loaded() -> Path:
        async with await AsyncModel.load(*args, **kwargs) as model:
            return model.model.path

    if kind == "async":
        return asyncio.run(loaded())
    with Model.load(*args, **kwargs) as model:
        return model.path


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_name_loads_from_the_store(stored: Path, kind: str) -> None:
    assert load(kind, "mine") == stored
    assert load(kind, str(stored)) == load(kind, stored) == stored


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_nothing_loads_the_bundled_model(bundled_model: Path, kind: str) -> None:
    assert load(kind, context=64).samefile(bundled_model)


def test_a_worker_process_loads_a_name_too(stored: Path) -> None:
    assert load("sync", "mine", worker="process") == stored


def test_a_file_of_the_name_comes_before_the_store(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored.parent / "here"
    folder.mkdir()
    shutil.copy(stored, folder / "mine")
    monkeypatch.chdir(folder)
    assert load("sync", "mine") == Path("mine")


def test_a_name_that_nothing_has_is_refused_with_the_nearest(stored: Path) -> None:
    with pytest.raises(RequestError, match=r"'mien': no file and no model of that name; did you mean mine\?"):
        Model.load("mien")
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        Model.load("absent.gguf")
    with pytest.raises(RequestError, match="satchel pull"):
        Model.load("hf:user/repo")


def test_a_file_that_was_changed_since_it_was_pulled_is_refused(stored: Path) -> None:
    with stored.open("ab") as file:
        file.write(b"more")
    with pytest.raises(RequestError, match="mine"):
        Model.load("mine")


def test_the_draft_model_may_be_a_name(stored: Path) -> None:
    with Model.load("mine", speculation=Speculation(draft_model="mine")) as model:
        assert model.options.speculation is not None
        assert model.options.speculation.draft_model == stored
