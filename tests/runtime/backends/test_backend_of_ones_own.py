"""The example backend in one C file: the command in its head builds it, it computes its ops, leaves the
others to the CPU, and refuses invalid plans.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from accuracy import nmse
from kernel_cases import cases_of, check
from one_step import define, plan_of, run

from satchel.errors import DeviceError
from satchel.runtime.api.model import Model
from satchel.runtime.device import libraries as devices
from satchel.runtime.device.device import Device, include
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.device.selftest import lacking, selftest
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY

SOURCE = Path(__file__).parents[3] / "examples" / "backend" / "simple.c"
OPS = ("rms_norm", "swiglu", "add")


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Builds it and has it found, as SATCHEL_BACKENDS would. The folder with the library."""
    if not include().is_dir():
        pytest.skip(f"no headers in {include()}: install Satchel again")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("backends")
    said = re.search(r"^ \*\s+(cc .*)$", SOURCE.read_text(), re.M)
    assert said
    command = shlex.split(said[1].replace("$(python -m satchel.cext)", str(include())))
    command = [str(SOURCE) if word == SOURCE.name else word for word in command]
    subprocess.run([*command, "-Wall", "-Wextra", "-Werror"], cwd=folder, check=True, timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "SATCHEL_BACKENDS", os.pathsep.join([str(folder), os.environ.get("SATCHEL_BACKENDS", "")])
        )
        devices.libraries.cache_clear()
        yield folder
    devices.libraries.cache_clear()


@pytest.fixture
def device() -> Iterator[Device]:
    with find_backend("simple").open() as opened:
        yield opened


@pytest.mark.parametrize("op", OPS)
def test_its_ops_do_what_they_mean(device: Device, op: str) -> None:
    calls = [one for one in cases_of(op) if not device.refusal(plan_of(op, one, 0)[0])]
    assert calls
    for one in calls:
        check(one, run(device, op, one), define(op, one))


def test_the_rest_is_the_cpus(device: Device) -> None:
    assert {"attention", "linear"} <= set(lacking(device)) and not set(OPS) & set(lacking(device))
    assert selftest(find_backend("simple").open(), [find_backend("cpu").open()]) < 1e-4


def test_a_model_computes_on_it_what_it_does_on_the_cpu() -> None:
    weights, cache = tiny.weights("llama"), Cache(32, 1)
    logits = []
    for names in (("cpu",), ("simple", "cpu")):
        engine = tiny.engine("llama", weights, cache, *(find_backend(name).open() for name in names))
        logits.append([engine.logits([BatchEntry(0, ids)]) for ids in ((5, 9, 2, 77), (1,))])
        assert ("simple" in engine.devices) == (len(names) == 2)
        engine.close()
    for alone, apart in zip(*logits, strict=True):
        assert nmse(apart, alone) < 1e-9


@pytest.mark.parametrize("named", [".", "../backends", "~/backends"])
def test_a_folder_may_be_named_from_the_current_one(
    built: Path, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/user-kernels.md has SATCHEL_BACKENDS=. beside the library."""
    folder = tmp_path / "backends"
    shutil.copytree(built, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SATCHEL_BACKENDS", named)
    devices.libraries.cache_clear()
    try:
        (found,) = (one for one in devices.libraries() if one.name == "simple")
        assert (Path(found.path), found.reason) == (folder.resolve() / "libsatchel_simple.so", "")
    finally:
        devices.libraries.cache_clear()


@pytest.mark.model
def test_the_bundled_model_answers_on_it(bundled_model: Path) -> None:
    with Model.load(bundled_model, device="simple", context=64) as model:
        assert [d.name for d in model.devices] == ["simple", "cpu"]
        assert "".join(model.generate("The ferry to the island", max_tokens=6, sampling=GREEDY))


def test_a_wrong_plan_is_refused(device: Device) -> None:
    segment, _ = plan_of("add", cases_of("add")[0], 0)
    rng = np.random.default_rng(5)
    before = segment.view_table.copy()
    for _ in range(200):
        segment.view_table[:] = before
        name = rng.choice(["buffer", "offset", "stride", "ndim", "format"])
        number = int(rng.choice([3, 2**31 - 1, 10**9, 2**31 + 8, 999]))
        segment.view_table[name][int(rng.integers(3))] = number
        assert isinstance(device.refusal(segment), str)
    segment.view_table[:] = before
    segment.step_table["n_in"] = 9
    assert device.refusal(segment) == "it takes two inputs"
    with pytest.raises(
        DeviceError, match="simple: device 3 cannot be opened: invalid: there is one such device"
    ):
        find_backend("simple").open(3)
