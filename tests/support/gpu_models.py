"""Models of the families for tests on GPUs: writes a case's file, and lists the devices to run it on."""

from __future__ import annotations

import json
from pathlib import Path

import families
import mixed_families as mixed
import pytest
from devices import skip_without

from satchel.formats.convert.write import write_source
from satchel.runtime.weights.sources import open_checkpoint

DENSE, MIXED = families.shapes(), json.loads(mixed.STEM.with_suffix(".json").read_text())


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return str(request.param)


def converted(folder: Path, case: str) -> Path:
    if case in MIXED:
        source = families.write(folder / case, mixed.config(case), families.values_of(MIXED[case]))
    else:
        source = families.write(folder / case, families.config(case), families.tensors(case, DENSE[case]))
    with open_checkpoint(source) as opened:
        return write_source(opened, folder / f"{case}.gguf")[0]
