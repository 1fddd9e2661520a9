"""split_mode: auto takes one device, layers or a group by the least predicted seconds, and says why. Speeds
are simulated, on the test device; one test measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_file
from devices import needs

from satchel.cli.commands.plan import collect
from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF, open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Type
from satchel.runtime.placement import collectives, speeds, split_mode
from satchel.runtime.placement.choose import MemoryBudget, PlacementCandidate, spread
from satchel.runtime.placement.devices import Opened
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import Prediction, Speed
from satchel.runtime.placement.sizes import Sizes, Tensor
from satchel.runtime.placement.split_mode import SplitCandidate, best_of, open_split, under_mode

pytestmark = needs("remote")
BOTH = "remote:0,remote:1"


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_mode, "SMALL", 0)
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "2")
    monkeypatch.setenv("SATCHEL_REMOTE_LATE_US", "0")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("split") / "m.gguf", "llama", "q8_0")


@pytest.fixture
def gguf(path: Path) -> Iterator[GGUF]:
    with open_gguf(path) as found:
        yield found


class Simulated:
    """Speeds of devices as multiples of one; a group's is given."""

    def __init__(self, group: float, second: float = 1.0) -> None:
        self.rates = {"remote": 1.0, "remote:1": second, "cpu": 0.01}
        self.group, self.asked = group, list[str]()

    def __call__(self, device: Device) -> Speed:
        rate = self.group if isinstance(device, GroupDevice) else self.rates[device.name]
        self.asked.append(device.name)
        return Speed((1e-3 / rate, 1e-1 / rate), (1e-4 / rate, 1e-4 / rate), 1e10, 1e-6)


def opened(gguf: GGUF, measure: Simulated, **options: object) -> Opened:
    return open_split(gguf, Options(device=BOTH, threads=1, **options), None, measure)  # type: ignore[arg-type]


def test_a_faster_group_is_taken(gguf: GGUF) -> None:
    with opened(gguf, Simulated(group=1.5)) as found:
        assert [d.name for d in found.devices] == ["remote+remote:1"]
        assert (
            "split_mode auto: tensor on 2: it is predicted to be the fastest (t/s of an answer"
            in found.notes[-1]
        )
        assert "remote " in found.notes[-1] and "; tensor on 2 " in found.notes[-1]


@pytest.mark.parametrize("group", [0.5, 1.0, 1.01])
def test_one_device_is_taken_where_a_group_gains_nothing(gguf: GGUF, group: float) -> None:
    with opened(gguf, Simulated(group)) as found:
        assert [d.name for d in found.devices] == ["remote", "cpu"]
        assert "remote: the model fits it, and a group is not predicted to be faster" in found.notes[-1]


def test_a_small_model_is_not_measured(gguf: GGUF, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_mode, "SMALL", 1 << 30)
    measure = Simulated(9.0)
    with opened(gguf, measure) as found:
        assert [d.name for d in found.devices] == ["remote", "remote:1", "cpu"]
        assert measure.asked == []


def test_a_group_that_cannot_be_joined_is_left_out(gguf: GGUF, monkeypatch: pytest.MonkeyPatch) -> None:
    def joins(*_: object) -> GroupDevice:
        raise DeviceError("the members cannot be joined")

    monkeypatch.setattr(split_mode, "_joined", joins)
    with opened(gguf, Simulated(9.0)) as found:
        assert [d.name for d in found.devices] == ["remote", "cpu"]
        assert (
            found.notes[-2:][0] == "split_mode auto: a group of 2 is left out: the members cannot be joined"
        )


class BySize(Simulated):
    """A group's speed, by its number of members."""

    def __init__(self, groups: dict[int, float]) -> None:
        super().__init__(1.0)
        self.groups = groups
        self.rates |= {"remote:2": 1.0, "remote:3": 1.0}

    def __call__(self, device: Device) -> Speed:
        if isinstance(device, GroupDevice):
            self.group = self.groups[len(device.members)]
        return super().__call__(device)


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ({2: 1.6, 4: 2.0}, ["remote+remote:1+remote:2+remote:3"]),
        ({2: 1.6, 4: 1.2}, ["remote+remote:1"]),  # of small products the two further members only wait
        ({2: 1.6, 4: 1.62}, ["remote+remote:1"]),  # not worth two further devices
        ({2: 0.8, 4: 0.9}, ["remote", "cpu"]),
    ],
)
def test_of_four_devices_two_may_be_enough(
    gguf: GGUF, monkeypatch: pytest.MonkeyPatch, groups: dict[int, float], wanted: list[str]
) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "4")
    measure = BySize(groups)
    devices = ",".join(f"remote:{i}" for i in range(4))
    with open_split(gguf, Options(device=devices, threads=1), None, measure) as found:
        assert [d.name for d in found.devices] == wanted
    assert {"remote+remote:1", "remote+remote:1+remote:2+remote:3"} <= set(measure.asked)


@pytest.mark.parametrize(
    ("members", "sizes"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8])]
)
def test_sizes_of_groups_that_are_tried(members: int, sizes: list[int]) -> None:
    assert split_mode.group_sizes(members) == sizes


def test_a_model_that_does_not_fit_one_takes_layers_or_the_group(gguf: GGUF) -> None:
    with opened(gguf, Simulated(2.0)) as found:
        group = found.devices[0]
        assert isinstance(group, GroupDevice)
        with_it = dry_run(gguf, [group], Options(threads=1), Simulated(2.0))
        room = max(share.total for share in with_it.shares())
    for rate, wanted in ((2.0, ["remote+remote:1"]), (0.7, ["remote", "remote:1", "cpu"])):
        with opened(gguf, Simulated(rate), gpu_memory=int(1.6 * room)) as found:
            assert [d.name for d in found.devices][: len(wanted)] == wanted[: len(found.devices)]
            assert "a group is not predicted" not in found.notes[-1]


def test_members_under_sixty_percent_make_no_group(gguf: GGUF, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_REMOTE_UNLIKE", "1")
    with opened(gguf, Simulated(9.0, second=0.5)) as found:
        assert not isinstance(found.devices[0], GroupDevice)
        assert "layers: remote:1 has 50% of the fastest GPU's speed" in found.notes[-1]
    with opened(gguf, Simulated(9.0, second=0.8)) as found:
        group = found.devices[0]
        assert isinstance(group, GroupDevice)
        assert group.shares == (1000, 800)


def test_what_a_group_cannot_have_leaves_layers_without_a_word(gguf: GGUF) -> None:
    for options in ({"gpu_layers": 1}, {"tensor_split": "1,1"}, {"override_tensor": ["ffn=cpu"]}):
        measure = Simulated(9.0)
        with opened(gguf, measure, **options) as found:
            assert [d.name for d in found.devices] == ["remote", "remote:1", "cpu"]
            assert measure.asked == []
            assert not any("split_mode" in note for note in found.notes)


@pytest.mark.parametrize(("mode", "wanted"), [("none", ["remote"]), ("tensor", ["remote+remote:1"])])
def test_modes_of_devices_that_were_found(gguf: GGUF, mode: str, wanted: list[str]) -> None:
    """As on a machine with two GPUs, whose names nobody gave."""
    made = tuple(find_backend("remote").open(i, threads=1) for i in range(2))
    with under_mode(gguf, Opened(made), Options(), PlacementOptions(mode=mode), Simulated(1)) as found:
        assert [d.name for d in found.devices] == wanted


def test_tensor_needs_two_devices(gguf: GGUF) -> None:
    made = (find_backend("remote").open(threads=1),)
    with Opened(made) as one, pytest.raises(DeviceError, match="takes two GPUs or more"):
        under_mode(gguf, one, Options(), PlacementOptions(mode="tensor"), Simulated(1))
    with Opened((find_backend("remote").open(threads=1),)) as left:  # after the other one was lost
        wanted = PlacementOptions(mode="tensor", lost=("remote:1",))
        assert under_mode(gguf, left, Options(), wanted, Simulated(1)) is left


def candidate(name: str, decode: float, prompt: float, apart: int) -> SplitCandidate:
    return SplitCandidate(name, (), Prediction(decode, prompt), apart)


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ([("tensor", 0.7, 0.7)], "tensor"),
        ([("tensor", 0.97, 0.97)], "one"),  # not worth a second device
        ([("tensor", 1.1, 0.1)], "one"),  # never slower for a single answer, however fast prompts are
    ],
)
def test_never_slower_by_prediction(others: list[tuple[str, float, float]], wanted: str) -> None:
    found = [candidate("one", 1.0, 100.0, 1)]
    found += [candidate(name, decode, 100 * prompt, 2) for name, decode, prompt in others]
    assert best_of(found).name == wanted


def test_nothing_stands_alone_on_the_second_device(tmp_path: Path) -> None:
    """A text encoder's embeddings are its first layer, and as large as many of its layers."""
    path = tiny_file.write_model(tmp_path / "e.gguf", "bert", "f32")
    with Model.load(path, device=BOTH, split_mode="layer", threads=1) as model:
        assert [d.name for d in model.devices] == ["remote"]
        assert {m.device for m in model.engine.program(1, 1, "hidden").plan.segments} == {"remote"}


def of_sizes(**labels: int) -> Sizes:
    """A model of parts of these sizes."""
    names = {label.replace("blk_", "blk."): size for label, size in labels.items()}
    tensors = tuple(Tensor(name, name, Type((1,), "f32"), 1.0, 1, False) for name in names)
    held = dict.fromkeys(("gpu", "gpu:1", "cpu"), names)
    return Sizes(sum(name.startswith("blk.") for name in names), 1, tensors, {}, held)


@pytest.mark.parametrize(
    ("free", "wanted"),
    [
        (100, {"embed": "gpu", "blk.0": "gpu", "blk.1": "gpu", "output": "gpu"}),
        (59, {"embed": "gpu:1", "blk.0": "gpu:1", "blk.1": "gpu", "output": "gpu"}),  # 60 in all
        (39, {"embed": "gpu:1", "blk.0": "gpu:1", "blk.1": "gpu", "output": "gpu"}),  # the head counts too
    ],
)
def test_head_and_embeddings_count_where_layers_go(free: int, wanted: dict[str, str]) -> None:
    sizes = of_sizes(embed=20, blk_0=10, blk_1=10, output=20)
    budgets = [
        MemoryBudget("gpu", free, True),
        MemoryBudget("gpu:1", free, True),
        MemoryBudget("cpu", 999, False),
    ]
    whole = PlacementCandidate(Placement(""), 2, True, True)
    found = spread(sizes, budgets, PlacementOptions(), whole).placement
    assert {label: found.label(label) for label in wanted} == wanted


def test_plan_shows_members_and_the_share_of_all_reduces(
    gguf: GGUF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "PROMPT", 8)
    monkeypatch.setattr(collectives, "cache_file", lambda: tmp_path / "speeds.json")
    with opened(gguf, Simulated(2.0)) as found:
        facts = collect(dry_run(gguf, found.devices, Options(threads=1), Simulated(2.0)), 0, False)
        group = found.devices[0]
        assert isinstance(group, GroupDevice)
        known = collectives.collective_speed(group)
    assert facts["groups"][0]["link"] == "PCIe"
    assert facts["predicted"]["tg128"] > 0
    seconds = known.seconds(facts["groups"][0]["reduces"], facts["groups"][0]["reduce_bytes"])
    assert facts["groups"][0]["reduce_share"] == pytest.approx(min(1, seconds * facts["predicted"]["tg128"]))
    assert (tmp_path / "collectives.json").is_file()


def test_a_group_is_measured_as_any_device(
    gguf: GGUF, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speeds, "ENOUGH", 1)
    monkeypatch.setattr(speeds, "processor_caches", lambda: 0)
    monkeypatch.setattr(speeds, "PROMPT", 16)
    monkeypatch.setattr(speeds, "cache_file", lambda: tmp_path / "speeds.json")
    measure = speeds.measured(gguf, Options(threads=1))
    with opened(gguf, Simulated(2.0)) as found:
        speed = measure(found.devices[0])
        assert min(*speed.layer, *speed.head, speed.link) > 0
        assert measure(found.devices[0]) == speed  # from the file


STEP = {"batch": 32, "context": 96}  # what a step needs is little beside the weights


def too_small(gguf: GGUF, part: float) -> int:
    """Bytes of a device that has room for this part of what a member of a group of two has to hold."""
    with opened(gguf, Simulated(2.0), **STEP) as found:
        whole = dry_run(gguf, [found.devices[0]], Options(threads=1, **STEP), Simulated(2.0))  # type: ignore[arg-type]
        shares = list(whole.shares())
    return max(int(1.2 * share.compute + part * (share.weights + share.kv)) for share in shares)


@pytest.mark.parametrize(
    ("group", "wanted"),
    [(4.0, ["remote+remote:1", "cpu"]), (0.2, ["remote", "remote:1", "cpu"])],
)
def test_a_model_that_fits_no_group_leaves_layers_to_the_cpu(
    gguf: GGUF, group: float, wanted: list[str]
) -> None:
    room, measure = too_small(gguf, 0.75), Simulated(group)
    measure.rates["cpu"] = 0.5
    with opened(gguf, measure, gpu_memory=room, **STEP) as found:
        assert [d.name for d in found.devices] == wanted, found.notes
        assert "tensor on 2 and cpu " in found.notes[-1]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ({2: 3.0, 4: 0.5}, ["remote+remote:1", "remote:2+remote:3"]),  # two stages of two members
        ({2: 1.0, 4: 4.0}, ["remote+remote:1+remote:2+remote:3"]),
    ],
)
def test_a_model_that_fits_no_group_of_two_may_take_two_of_them(
    gguf: GGUF, monkeypatch: pytest.MonkeyPatch, groups: dict[int, float], wanted: list[str]
) -> None:
    room = too_small(gguf, 0.85)
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "4")
    devices = ",".join(f"remote:{i}" for i in range(4))
    how = Options(device=devices, threads=1, gpu_memory=room, **STEP)  # type: ignore[arg-type]
    with open_split(gguf, how, None, BySize(groups)) as found:
        assert [d.name for d in found.devices if d.name != "cpu"] == wanted, found.notes
        assert "2 times tensor on 2 " in found.notes[-1]
