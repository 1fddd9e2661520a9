"""A model file that another process truncates while it is in use: an error, never a crash."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from devices import needs
from tiny_file import write_model

from satchel import Model
from satchel.errors import DeviceError
from satchel.runtime.api.reply import Reply
from satchel.runtime.sampling import GREEDY

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there"),
    needs("cpu"),
]


def ask(model: Model) -> Reply:
    reply = model.generate([5, 6, 7], max_tokens=3, sampling=GREEDY, ignore_eos=True)
    reply.read()
    return reply


@pytest.mark.parametrize("repack", [True, False])
def test_every_request_fails_until_the_model_is_loaded_again(tmp_path: Path, repack: bool) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    with Model.load(path, threads=1, slots=1, repack=repack) as model:
        wanted = ask(model).ids
        os.truncate(path, len(whole) // 100)
        for _ in range(2):
            with pytest.raises(DeviceError, match="cut short"):
                ask(model)
        path.write_bytes(whole)
        with pytest.raises(DeviceError, match="load it again"):
            ask(model)
    with Model.load(path, threads=1, slots=1, repack=repack) as model:
        assert ask(model).ids == wanted
