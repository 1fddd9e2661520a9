"""Shared fixtures of the store's tests: a server, a store in a folder of its own, small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hub_server
import mini_file
import pytest

from satchel.store import Store


@pytest.fixture
def hub() -> Iterator[hub_server.Hub]:
    with hub_server.hub_server() as running:
        yield running


@pytest.fixture
def environ(tmp_path: Path, hub: hub_server.Hub, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings that point only to the test's server and folders."""
    found = {
        "SATCHEL_MODELS": str(tmp_path / "models"),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "SATCHEL_OLLAMA_REGISTRY": hub.url,
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "HOME": str(tmp_path / "home"),
    }
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "SATCHEL_OFFLINE", "HF_HUB_CACHE", "SATCHEL_FOLDERS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def store(environ: dict[str, str]) -> Store:
    return Store(environ=environ, pace=hub_server.QUICK)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A complete model of some kilobytes."""
    path = tmp_path_factory.mktemp("mini") / "m.gguf"
    return mini_file.write_mini(path, {"general.license": "apache-2.0"}).read_bytes()


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Another one of the same size."""
    path = tmp_path_factory.mktemp("mini") / "m.gguf"
    return mini_file.write_mini(path, {"general.license": "apache-2.1"}).read_bytes()


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A split model."""
    folder = tmp_path_factory.mktemp("set")
    mini_file.write_mini(folder / "big-Q4_K_M.gguf", max_size=4000)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
