"""A device that is lost while a model runs: running requests fail with one error, and the next ones run on
the remaining devices.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_file

from satchel.errors import DeviceError, RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.device.libraries import libraries
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.sampling import GREEDY

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(
    not {"cpu", "emulated"} <= HAVE, reason="needs the cpu and the emulated backend"
)
IDS = [3, 1, 4]
ALIKE = 1e-3  # squared difference over the square, of logits of two devices
Load = Callable[..., Model]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("lost") / "m.gguf", "llama", "q8_0")


@pytest.fixture
def load(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads the model on devices one of which is lost at a launch: lose="CARD:N". Packing weights is launches
    too, so they stay in the file's order: the first launch is a step's.
    """
    made: list[Model] = []

    def loaded(lose: str, cards: int = 1, **more: object) -> Model:
        monkeypatch.setenv("SATCHEL_EMULATED_DEVICES", str(cards))
        monkeypatch.setenv("SATCHEL_EMULATED_LOSE", lose)
        settings: LoadKwargs = {
            "device": "emulated",
            "threads": 1,
            "context": 64,
            "slots": 2,
            "repack": False,
            **more,
        }  # type: ignore[typeddict-item]
        made.append(Model.load(path, **settings))
        return made[-1]

    yield loaded
    for model in made:
        model.close()


def tokens(model: Model, count: int = 3) -> list[int]:
    reply = model.generate(IDS, max_tokens=count, sampling=GREEDY)
    reply.read()
    return list(reply.ids)


def lost_at_some_step(model: Model) -> None:
    """Answers until the device is lost, at a step of a request or between two; all have the same tokens."""
    answers = set()
    for _ in range(50):
        answers.add(tuple(tokens(model)))
        if model.placement_options.lost:
            assert len(answers) == 1
            return
    raise AssertionError("the device was never lost")


def alike(found: np.ndarray, wanted: np.ndarray) -> bool:
    return float(np.square(found - wanted).sum()) <= ALIKE * float(np.square(wanted).sum())


@pytest.mark.parametrize("launch", [1, 60])
def test_the_next_request_runs_on_what_is_left(
    load: Load, path: Path, launch: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "satchel")
    model = load(f"{launch}")
    lost_at_some_step(model)
    found = tokens(model)
    assert [d.name for d in model.devices] == ["cpu"] and model.context == 64
    with Model.load(path, device="cpu", threads=1, context=64) as plain:
        assert found == tokens(plain)
        assert model.logits(IDS).tobytes() == plain.logits(IDS).tobytes()
    said, *others = [r.getMessage() for r in caplog.records]
    assert said.startswith("m.gguf: device emulated was lost: ") and "the driver gave error 719" in said
    assert others == ["m.gguf: placed anew without emulated: on cpu"]


def test_everybody_under_way_goes_on_elsewhere_with_the_same_tokens(load: Load) -> None:
    model = load("130", slots=3)
    ends: list[list[int]] = []

    def ask() -> None:
        for _ in range(4):
            ends.append(tokens(model))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ends) == 20, "one of them waits"
    assert model.placement_options.lost == ("emulated",)
    assert ends == [tokens(model)] * 20 and model.stats().running == 0


def test_a_call_beside_requests_is_told_the_same(load: Load) -> None:
    model = load("60")
    with pytest.raises(DeviceLost, match="ask again: the next request runs without it"):
        for _ in range(20):
            model.logits(IDS)
    assert model.logits(IDS).shape[0] == len(IDS)


def test_the_other_card_goes_on(load: Load, path: Path) -> None:
    model = load("1:25", cards=2, device="emulated,emulated:1", override_tensor=[r"blk\.0\.=emulated:1"])
    assert [d.name for d in model.devices][:2] == ["emulated", "emulated:1"]
    lost_at_some_step(model)
    assert tokens(model) and "emulated:1" not in [d.name for d in model.devices]
    assert model.devices[0].name == "emulated"
    with Model.load(path, device="cpu", threads=1, context=64) as plain:
        assert alike(model.logits(IDS), plain.logits(IDS))


def test_what_does_not_fit_on_what_is_left_is_said_and_stays_so(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("30")

    def full() -> None:
        raise DeviceError("there is no room")

    monkeypatch.setattr(model, "_open", full)
    said = r"was lost, and the model cannot be placed.*no room"
    with pytest.raises(DeviceError, match=said):
        lost_at_some_step(model)  # the request that was running gets it too
    with pytest.raises(DeviceError, match=said):
        tokens(model)


def test_what_is_asked_for_without_a_device() -> None:
    asked = Options(
        device="cuda,hip", gpu_layers=5, override_tensor=["ffn=hip", "attn=cuda"]
    ).placement_options
    left = asked.without("hip")
    assert left.devices == ("cuda",) and left.layers is None and left.lost == ("hip",)
    assert [rule.device for rule in left.rules] == ["cuda"]
    assert left.without("cuda").devices == ("cpu",) and left.without("cuda").lost == ("hip", "cuda")
    assert Options().placement_options.without("cuda").devices == ()


def test_a_closed_model_stays_closed(load: Load) -> None:
    model = load("30")
    lost_at_some_step(model)
    model.close()
    with pytest.raises(RequestError, match="was closed"):
        tokens(model)


def test_in_a_worker_process(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "satchel")
    model = load("60", worker="process")
    answers = [tokens(model)]
    while not any("placed anew" in r.getMessage() for r in caplog.records):
        answers.append(tokens(model))
    assert answers == [tokens(model)] * len(answers)
    assert model.stats().worker_restarts == 0
    lines = [r.getMessage() for r in caplog.records]
    assert any("device emulated was lost" in line for line in lines)
    assert "m.gguf: placed anew without emulated: on cpu" in lines
