"""Runs the soak for seconds with a tiny model; by night for half an hour with the bundled one."""

import sys
from pathlib import Path

import pytest
from devices import needs
from tiny_file import write_model

sys.path.insert(0, str(Path(__file__).parent))
from soak import soak

pytestmark = needs("cpu")


def test_a_few_seconds_of_random_users_lose_nothing(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", qwen3__context_length=512)
    least = {"answers": 20, "checked steps": 100, "refused": 1, "left": 1, "saved": 1}
    found = soak(path, 1.0, seed=1, least=least)
    assert not found.wrong and all(found.counts[name] >= count for name, count in least.items())


@pytest.mark.nightly
def test_half_an_hour_of_random_users_loses_nothing(bundled_model: Path) -> None:
    found = soak(bundled_model, 1800.0)
    assert not found.wrong
