"""Weight residency: every way passes on what it does not change, and the engine knows none of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import satchel.runtime.engine
from satchel.runtime.weights.packing import PackedWeights
from satchel.runtime.weights.residency import Over, Residency, StepWeights
from satchel.runtime.weights.resident import LoadedOnce
from satchel.runtime.weights.weights import DeviceWeights

WAYS = ("resident", "streamed", "prefetch", "expert_cache", "adapters")


def methods(kind: type) -> set[str]:
    return {name for name, found in vars(kind).items() if inspect.isfunction(found)}


def test_what_a_way_does_not_change_is_as_in_the_one_that_it_wraps() -> None:
    assert methods(Over) == methods(Residency)
    asked: list[str] = []

    class Noting(Residency):
        def __getattribute__(self, name: str) -> Any:
            if name in methods(Residency) - {"__init__"}:
                asked.append(name)
                return lambda *_: name
            return super().__getattribute__(name)

    over: Any = Over(Over(Noting(repack=False)))
    assert over.repack is False
    for name in sorted(methods(Residency) - {"__init__"}):
        count = len(inspect.signature(getattr(Residency, name)).parameters) - 1
        given = getattr(over, name)(*[None] * count)
        assert asked.pop() == name and not asked and given in (name, None)


def test_no_module_of_the_engine_imports_a_way_of_residency() -> None:
    (folder,) = satchel.runtime.engine.__path__
    for path in Path(folder).glob("*.py"):
        for line in path.read_text().splitlines():
            if line.lstrip().startswith(("from satchel.runtime.weights", "from satchel.runtime.adapters")):
                assert not any(way in line.split(" import ")[0].split(".") for way in WAYS), (path.name, line)


def test_weights_that_engines_share_are_loaded_once() -> None:
    class Counting(Residency):
        loads = 0

        def load(self, devices: Any, packed: Any) -> dict[str, DeviceWeights]:
            self.loads += 1
            return {"cpu": DeviceWeights()}

    inner = Counting()
    shared = LoadedOnce(inner)
    first = shared.load([], {"cpu": PackedWeights({})})
    shared.close()
    assert shared.load([], {}) is first and inner.loads == 1
    assert shared.steps(1, first) == StepWeights(first)


def test_of_a_tensor_that_both_have_the_upper_one_counts() -> None:
    below, above = DeviceWeights(), DeviceWeights()
    for weights, buffer in ((below, "a"), (above, "b")):
        weights.add("both", buffer, 0)
    below.add("own", "a", 64)
    both = below.overlaid(above)
    assert both.place("both").buffer == "b" and both.place("own").buffer == "a"
    assert below.place("both").buffer == "a"
