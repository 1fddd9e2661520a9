"""Several devices: any of them in one plan, shares of the layers, the order of filling, and concurrent
steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_file
from waiting import SECONDS, until

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.device.device import (
    BackendLibrary,
    Device,
    Exec,
)
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.placement import devices as placing
from satchel.runtime.placement.choose import MemoryBudget, PlacementCandidate, choose
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.predict import Speed, predict
from satchel.runtime.placement.sizes import Sizes, sizes_of

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
IDS = [3, 1]
ALIKE = 1e-3  # squared difference over the square, of logits of two devices
LARGE = 1 << 40
FAST = Speed((1e-4, 1e-2), (1e-4, 1e-4), 1e10, 1e-5)
SLOW = Speed((1e-3, 1e-1), (1e-3, 1e-3), 1e10, 1e-5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("several") / "m.gguf", "llama", "q8_0")


@pytest.fixture(scope="module")
def alone(path: Path) -> np.ndarray:
    with Model.load(path, device="cpu", threads=1) as model:
        return model.logits(IDS)


@pytest.fixture(autouse=True)
def two_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REMOTE", "EMULATED"):
        monkeypatch.setenv(f"SATCHEL_{name}_DEVICES", "2")


@pytest.mark.parametrize(
    ("device", "split"),
    [
        ("remote,cpu", "1,2"),
        ("remote,remote:1", "2,1"),
        ("cpu,remote,remote:1", "1,1,1"),
        ("emulated,cpu", "2,1"),
        ("emulated,emulated:1", "1,2"),
        ("remote,emulated,cpu", "1,1,1"),
    ],
)
def test_any_devices_make_one_plan(path: Path, alone: np.ndarray, device: str, split: str) -> None:
    names = device.split(",")
    if not {n.split(":")[0] for n in names} <= HAVE:
        pytest.skip("emulated: its library was not built")
    with Model.load(path, device=device, tensor_split=split, threads=1) as model:
        found = model.logits(IDS)
        plan = model.engine.program(len(IDS), len(IDS), "logits").plan
        assert {s.device for s in plan.segments} >= set(names), "each has a part"
        shares = dict(zip(names, map(int, split.split(",")), strict=True))
        layers = {s.label: seg.device for seg in plan.segments for s in seg.steps if s.op == "attention"}
        assert {n: list(layers.values()).count(n) for n in names} == shares
        assert all(s.transfers for s in plan.segments[1:] if s.steps), "what crosses is a step of the plan"
    off = float(np.square(found - alone).sum())
    assert off <= ALIKE * float(np.square(alone).sum())
    if "emulated" not in device:
        assert found.tobytes() == alone.tobytes(), "the remote devices have the CPU's kernels"


# --- at the same time


class Held:
    """Devices of the remote backend whose runs end when the test allows it."""

    def __init__(self, folder: Path, *devices: int) -> None:
        self.folder, self.devices = folder, devices
        for device in devices:
            (folder / f"hold.{device}").touch()

    def count(self, what: str, device: int) -> int:
        """How often a device began or ended a run."""
        rows = (self.folder / "log").read_text().splitlines()
        return sum(row.startswith(f"{what} remote:{device} ") for row in rows)

    def begun(self, device: int, runs: int) -> None:
        """Waits until a device has begun so many runs."""
        until(lambda: self.count("begin", device) == runs, f"remote:{device} begins run {runs}")

    def end(self, device: int) -> None:
        """Lets the run that it has begun end."""
        ended = self.count("end", device)
        (self.folder / f"hold.{device}.go").touch()
        until(lambda: self.count("end", device) > ended, f"remote:{device} ends its run")

    def release(self) -> None:
        for device in self.devices:
            (self.folder / f"hold.{device}").unlink()


# A layer's attention and down projection on one device, its gate on the CPU, its up projection on the other.
BESIDE: LoadKwargs = {
    "device": "remote:1,remote,cpu",
    "gpu_layers": "all",
    "override_tensor": ["attn=remote:1", "ffn_gate=cpu", "ffn_up=remote", "ffn_(down|norm)=remote:1"],
    "threads": 1,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where devices tell when they begin and end, and where they are held."""
    monkeypatch.setenv("SATCHEL_REMOTE_HOLD", str(tmp_path / "hold"))
    monkeypatch.setenv("SATCHEL_REMOTE_LOG", str(tmp_path / "log"))
    return tmp_path


def test_two_devices_work_at_the_same_time(path: Path, alone: np.ndarray, folder: Path) -> None:
    """A layer's gate and up projections, each on a device: one begins though the other has not ended."""
    rules = ["ffn_gate=remote", "ffn_up=remote:1"]
    options: Any = {"device": "remote,remote:1,cpu", "gpu_layers": 0, "override_tensor": rules, "threads": 1}
    with Model.load(path, **options) as model, ThreadPoolExecutor(1) as pool:
        model.logits(IDS)
        (folder / "log").write_text("")  # the devices go on at its end
        held = Held(folder, 0, 1)
        try:
            found = pool.submit(model.logits, IDS)
            for layer in range(model.arch.layers):
                held.begun(0, 2 * layer + 1)
                held.begun(1, layer + 1)
                held.end(1)
                held.end(0)
                held.begun(0, 2 * layer + 2)  # what is made of both
                held.end(0)
        finally:
            held.release()
        assert found.result(SECONDS).tobytes() == alone.tobytes()


def test_the_cpu_works_while_others_begin(
    path: Path, alone: np.ndarray, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's part stands before the other's in the plan, and does not hold it up: the other begins, and
    ends only within the CPU's part.
    """
    with Model.load(path, **BESIDE) as model:
        model.logits(IDS)
        plan = model.engine.program(len(IDS), len(IDS), "logits").plan
        pairs = [(a.device, b.device) for a, b in zip(plan.segments, plan.segments[1:], strict=False)]
        assert pairs.count(("cpu", "remote")) == model.arch.layers, pairs
        (folder / "log").write_text("")  # the devices go on at its end
        run, held, parts = Exec.run, Held(folder, 0), 0

        def beside(self: Exec, *block: Any) -> None:
            nonlocal parts
            if self.device.name == "cpu":
                layer, last = divmod(parts, 2)  # a layer's gate, and what is made of gate and up
                if not last:
                    held.begun(0, layer + 1)
                    held.end(0)
                parts += 1
            run(self, *block)

        monkeypatch.setattr(Exec, "run", beside)
        try:
            assert model.logits(IDS).tobytes() == alone.tobytes()
        finally:
            held.release()
        assert parts == 2 * model.arch.layers


def test_what_fails_in_such_a_part_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model.load(path, **BESIDE) as model:
        wanted, run = model.logits(IDS), Exec.run

        def failing(self: Exec, *block: Any) -> None:
            if self.device.name == "cpu":
                raise DeviceError("cpu: it failed")
            run(self, *block)

        with monkeypatch.context() as patch:
            patch.setattr(Exec, "run", failing)
            with pytest.raises(DeviceError, match="cpu: it failed"):
                model.logits(IDS)
        assert model.logits(IDS).tobytes() == wanted.tobytes()


# --- which device gets what


@pytest.fixture(scope="module")
def sizes(path: Path) -> Iterator[Sizes]:
    with find_backend("cpu").open(threads=1) as cpu, find_backend("remote").open(threads=1) as remote:
        with open_gguf(path) as gguf:
            run = dry_run(gguf, [cpu], measure=lambda d: FAST)
            made = sizes_of(run.arch.build(), run.arch.layers, [remote, cpu])
        yield replace(made, held={**made.held, "other": made.held["remote"]})


def budgets(first: int, second: int) -> list[MemoryBudget]:
    return [
        MemoryBudget("remote", first, True),
        MemoryBudget("other", second, True),
        MemoryBudget("cpu", LARGE, False),
    ]


def layers_of(candidate: PlacementCandidate, sizes: Sizes) -> list[str]:
    return [candidate.placement.label(f"blk.{i}") for i in range(sizes.layers)]


@pytest.mark.parametrize("quick", ["remote", "other"])
@pytest.mark.parametrize("device", ["auto", "remote,other"])
def test_the_quickest_device_is_filled_first(sizes: Sizes, quick: str, device: str) -> None:
    speeds = {"remote": SLOW, "other": SLOW, "cpu": replace(SLOW, layer=(9.0, 9.0))} | {quick: FAST}

    def judge(placement: Any) -> Any:
        return predict(placement, sizes, speeds)

    candidate = choose(sizes, budgets(LARGE, LARGE), Options(device=device).placement_options, judge)
    assert layers_of(candidate, sizes) == [quick] * sizes.layers
    part = sum(sizes.held["remote"].values()) // 2
    candidate = choose(sizes, budgets(part, part), Options(device=device).placement_options, judge)
    used = layers_of(candidate, sizes)
    assert (
        used.count(quick) >= used.count({"remote": "other", "other": "remote"}[quick]) and used[-1] == quick
    )


def test_shares_are_kept(sizes: Sizes) -> None:
    candidate = choose(
        sizes, budgets(LARGE, LARGE), Options(device="remote,other", tensor_split="2,1").placement_options
    )
    assert layers_of(candidate, sizes) == ["other", "remote", "remote"]
    candidate = choose(
        sizes,
        budgets(LARGE, LARGE),
        Options(device="remote,other,cpu", tensor_split="1,1,1").placement_options,
    )
    assert layers_of(candidate, sizes) == ["cpu", "other", "remote"]
    candidate = choose(
        sizes,
        budgets(LARGE, LARGE),
        Options(device="remote,other", gpu_layers=2, tensor_split="0,5").placement_options,
    )
    assert layers_of(candidate, sizes) == ["cpu", "other", "other"]


@pytest.mark.parametrize("text", ["x", "1,", "-1,2", "0,0", "nan,1", "inf,1", "1,2,3"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(RequestError, match="tensor_split"):
        Options(device="remote,other", tensor_split=text)


def test_shares_for_devices_that_are_not_there(sizes: Sizes) -> None:
    with pytest.raises(RequestError, match=r"3 numbers, the devices are remote, other: give one for each"):
        choose(sizes, budgets(LARGE, LARGE), Options(tensor_split="1,1,1").placement_options)


# --- what a machine has


class Fake:
    """A backend of several cards, some of which fail to open."""

    def __init__(self, name: str, cards: list[str]) -> None:
        self.name, self.cards = name, cards

    def count(self) -> int:
        return len(self.cards)


def opened_with(
    monkeypatch: pytest.MonkeyPatch,
    found: list[BackendLibrary],
    cards: dict[str, list[str]],
    lost: tuple[str, ...] = (),
) -> tuple[list[str], tuple[str, ...]]:
    """Names of the devices that auto selects, and its note. A card "!" fails to open."""
    with find_backend("remote").open(threads=1) as real:
        info = replace_info(real)

        def open(backend: Any, index: int) -> Any:
            if backend.name == "cpu":
                return FakeDevice("cpu", info("a processor", 1))
            card = backend.cards[index]
            if card == "!":
                raise DeviceError(f"{backend.name}: device {index} cannot be opened: it is busy")
            return FakeDevice(f"{backend.name}:{index}" if index else backend.name, info(card, 0))

        monkeypatch.setattr(placing, "libraries", lambda: tuple(found))
        monkeypatch.setattr(placing, "find_backend", lambda name: Fake(name, cards.get(name, [])))
        opened = placing.open_devices(replace(Options().placement_options, lost=lost), open)
        return [d.name for d in opened.devices], opened.notes


@dataclass
class FakeDevice:
    name: str
    about: Any

    def info(self) -> Any:
        return self.about

    def close(self) -> None: ...


def replace_info(real: Device) -> Any:
    return lambda name, flags: real.info()._replace(name=name, flags=flags)


def usable(name: str) -> BackendLibrary:
    return BackendLibrary(name, name, "", 100)


def test_auto_goes_on_to_the_next_vendor_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "cuda cannot run on this machine: the driver could not be started: error 999"
    broken = BackendLibrary("cuda", "", reason, -1)
    absent = BackendLibrary("metal", "", "metal cannot run on this machine: the driver is not installed", 0)
    names, notes = opened_with(
        monkeypatch, [usable("sycl"), broken, usable("hip"), absent], {"hip": ["!", "MI"], "sycl": ["Arc"]}
    )
    assert names == ["hip:1", "sycl", "cpu"]
    assert notes == (
        f"device cuda is left out: {broken.reason}",
        "device hip is left out: hip: device 0 cannot be opened: it is busy",
    )


def test_a_card_that_two_drivers_serve_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {"hip": ["MI", "MI"], "sycl": ["MI", "Arc"]}
    names, _ = opened_with(monkeypatch, [usable("sycl"), usable("hip")], cards)
    assert names == ["hip", "hip:1", "sycl:1", "cpu"]
    names, _ = opened_with(monkeypatch, [usable("sycl"), usable("hip")], cards, ("hip",))
    assert names == ["hip:1", "sycl:1", "cpu"]
