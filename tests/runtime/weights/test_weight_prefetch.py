"""Weight prefetch: another device prefetches the CPU's weights for long steps. Answers stay the same, the
layers' products run there, from the predicted number of tokens on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_file

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.device.device import Buffer
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.placement.choose import MemoryBudget, choose
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.predict import Speed
from satchel.runtime.placement.prefetch import LEAST, min_prefetch_tokens, prefetch_layers, prefetch_of
from satchel.runtime.placement.sizes import Sizes, sizes_of
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights.prefetch import SLOTS, WeightPrefetcher

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
IDS = [(7 * i) % 250 + 3 for i in range(2 * LEAST)]
FAST = Speed((1e-5, 1e-3), (1e-4, 1e-4), 1e10, 1e-6)
SLOW = Speed((1e-3, 1e-1), (1e-3, 1e-3), 1e10, 1e-6)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("prefetch")
    kinds = {"dense": ("llama", "q8_0"), "mixture": ("deepseek2", "q4_k"), "deep": ("smollm3", "q8_0")}
    return {name: tiny_file.write_model(folder / f"{name}.gguf", *kind) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def sized(files: dict[str, Path]) -> Iterator[Sizes]:
    cpu, remote = (find_backend(name).open(threads=1) for name in ("cpu", "remote"))
    with cpu, remote, open_gguf(files["dense"]) as gguf:
        run = dry_run(gguf, [cpu], measure=lambda d: FAST)
        yield sizes_of(run.arch.build(), run.arch.layers, [remote, cpu])


@pytest.mark.parametrize("device", ["remote", "emulated"])
@pytest.mark.parametrize("kind", ["dense", "mixture", "deep"])
def test_long_steps_go_where_the_weights_are_prefetched(
    files: dict[str, Path], kind: str, device: str
) -> None:
    if device not in HAVE or (device == "emulated" and kind != "dense"):
        pytest.skip("one emulated model will do")
    found, slow = {}, device == "emulated"
    ids = IDS[:LEAST] if slow else IDS
    # Of the deep one all layers are prefetched, more than there are buffers.
    kwargs: LoadKwargs = (
        {"gpu_layers": 1} if kind != "deep" else {"gpu_layers": 0, "override_tensor": ["token_embd=remote"]}
    )
    for prefetch in ("off", "on"):
        options = Options(device=device, threads=1, cache_type="f32", prefetch_weights=prefetch)
        with Model.load(files[kind], options, **kwargs) as model:
            found[prefetch] = model.logits(ids)
            if not slow:
                assert model.logits(ids).tobytes() == found[prefetch].tobytes()
                reply = model.generate(ids, max_tokens=3, sampling=GREEDY)
                reply.read()
                assert reply.ids[0] == int(found[prefetch][-1].argmax())
            on = {n: _products(model, n) for n in (1, LEAST // 2, len(IDS))}
    bound = 1e-3 if device == "emulated" or kind == "mixture" else 1e-9
    error = np.square(found["on"] - found["off"]).sum() / np.square(found["off"]).sum()
    assert error < bound
    assert "cpu" in on[1] and "cpu" in on[LEAST // 2]  # the last model prefetches: short steps stay
    assert (on[len(IDS)] == {device}) == (kind != "mixture")  # experts stay too


def _products(model: Model, tokens: int) -> set[str]:
    """Where the layers' products are."""
    plan = model.engine.program(tokens, 1).plan
    names = ("linear", "expert_linear")
    return {
        segment.device
        for segment in plan.segments
        for step in segment.steps
        if step.label.startswith("blk.") and step.op.startswith(names)
    }


def test_a_layer_is_sent_once_a_step_and_its_neighbour_meanwhile(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model.load(files["dense"], device="remote", threads=1, gpu_layers=0, prefetch_weights="on") as model:
        assert not isinstance(model.engine.residency, WeightPrefetcher)
    with Model.load(files["dense"], device="remote", threads=1, gpu_layers=1, prefetch_weights="on") as model:
        prefetcher = model.engine.residency
        assert isinstance(prefetcher, WeightPrefetcher)
        assert [prefetcher.variant(tokens) for tokens in (1, LEAST - 1, LEAST, 512)] == [1, 1, LEAST, LEAST]
        model.logits(IDS)

        def broken(self: Buffer, *rest: object) -> None:
            raise DeviceError("the cable is out")

        assert len(prefetcher.buffers) == min(SLOTS, len(prefetcher.plan.layers))
        prefetcher._filled.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Buffer, "pack", broken)
            with pytest.raises(DeviceError, match="the cable is out"):
                model.logits(IDS)
        assert np.isfinite(model.logits(IDS)).all()  # what was begun is forgotten


@pytest.mark.parametrize("word", ["", "ON", "maybe"])
def test_a_wrong_word_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="prefetch_weights"):
        Model.load("no such file", prefetch_weights=word)


def test_weights_are_prefetched_from_where_it_is_quicker(sized: Sizes) -> None:
    budgets = [MemoryBudget("remote", 1 << 40, True), MemoryBudget("cpu", 1 << 40, False)]
    placement = choose(sized, budgets, Options(device="remote", gpu_layers=1).placement_options).placement
    layers = prefetch_layers(placement, sized)
    assert list(layers) == [f"blk.{i}" for i in range(sized.layers - 1)]
    at = [
        min_prefetch_tokens(
            placement, sized, "remote", {"remote": replace(FAST, link=link), "cpu": SLOW}, 10**7, 4096
        )
        for link in (1e12, 1e9, 2e8, 1e6)
    ]
    assert at[0] == LEAST and at == [*sorted(at[:3]), None] and at[1] is not None and at[2] is not None
    slow = {"remote": SLOW, "cpu": FAST}
    assert min_prefetch_tokens(placement, sized, "remote", slow, 10**7, 4096) is None
    speeds = {"remote": FAST, "cpu": SLOW}
    usual = Options(device="remote", gpu_layers=1).placement_options
    assert prefetch_of(placement, sized, budgets, usual, speeds, 512) is not None
    assert prefetch_of(placement, sized, budgets, usual, None, 512) is None
    off = Options(device="remote", gpu_layers=1, prefetch_weights="off").placement_options
    assert prefetch_of(placement, sized, budgets, off, speeds, 512) is None
    held = sized.on(placement)["remote"]
    tight = [MemoryBudget("remote", held - 1000, True), budgets[1]]
    on = Options(device="remote", gpu_layers=1, prefetch_weights="on").placement_options
    assert prefetch_of(placement, sized, tight, on, None, 512) is None
