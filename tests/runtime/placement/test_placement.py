"""Placement: options are parsed or refused, fitting candidates are found, and a model on several devices
answers as on one, in the predicted memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_file

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import GGUF, open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, Options, settled
from satchel.runtime.device.device import Buffer, Device
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.placement import speeds, step
from satchel.runtime.placement.choose import MemoryBudget, PlacementCandidate, candidates, choose, fits
from satchel.runtime.placement.devices import Open
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.placement.options import (
    experts_rule,
    read_devices,
    read_layers,
    read_rules,
    read_size,
)
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import PROMPT, Prediction, Speed, crossings, predict
from satchel.runtime.placement.settle import Settled
from satchel.runtime.placement.sizes import Sizes, sizes_of
from satchel.runtime.placement.smaller import recipe_that_fits
from satchel.runtime.placement.speeds import speed_of
from satchel.runtime.placement.step import LARGE as LARGE_STEP
from satchel.runtime.placement.step import STEP
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights.prefetch import PrefetchPlan
from satchel.runtime.weights.streamed import FilePages, layer_number

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")
LARGE = 1 << 40
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
FAST = Speed((1e-4, 1e-2), (1e-4, 1e-4), 1e10, 1e-5)
SLOW = Speed((1e-3, 1e-1), (1e-3, 1e-3), 1e10, 1e-5)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("placed")
    kinds = {"dense": ("llama", "q8_0"), "mixture": ("qwen3moe", "q4_k")}
    return {name: tiny_file.write_model(folder / f"{name}.gguf", *kind) for name, kind in kinds.items()}


@pytest.fixture(scope="module")
def alone(files: dict[str, Path]) -> dict[str, np.ndarray]:
    """Logits on the CPU."""
    found = {}
    for name, path in files.items():
        with Model.load(path, device="cpu", threads=1) as model:
            found[name] = model.logits(IDS)
    return found


@pytest.fixture(scope="module")
def sized(files: dict[str, Path]) -> Iterator[dict[str, Sizes]]:
    found = {}
    with find_backend("cpu").open(threads=1) as cpu, find_backend("remote").open(threads=1) as remote:
        for name, path in files.items():
            with open_gguf(path) as gguf:
                run = dry_run(gguf, [cpu], measure=lambda d: FAST)
                found[name] = sizes_of(run.arch.build(), run.arch.layers, [remote, cpu])
        yield found


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("3GB", 3 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5e9", 1500000000),
        ("0", 0),
        ("2g", 2 * 10**9),
        ("7b", 7),
    ],
)
def test_sizes_are_read(text: str, bytes: int) -> None:
    assert read_size(text) == bytes


@pytest.mark.parametrize("text", ["", "3XB", "-1", "GB", "1e999", "0x10", "3 GB or so", "١GB "])
def test_what_is_no_size(text: str) -> None:
    if text == "١GB ":
        assert read_size(text) == 10**9  # a digit of another script is a digit
        return
    with pytest.raises(RequestError, match="is no size"):
        read_size(text)


@pytest.mark.parametrize(
    ("text", "layers"),
    [("auto", None), ("-1", None), ("all", -1), ("-2", -1), ("0", 0), (17, 17), ("99", 99)],
)
def test_layers_are_read(text: str | int, layers: int | None) -> None:
    assert read_layers(text) == layers


@pytest.mark.parametrize("text", ["", "-3", "many", "1.5", "³"])
def test_what_is_no_number_of_layers(text: str) -> None:
    with pytest.raises(RequestError, match="gpu_layers"):
        read_layers(text)


def test_devices_are_read() -> None:
    assert read_devices("auto") == () and read_devices("none") == ("cpu",)
    assert read_devices("cuda:1, cpu") == ("cuda:1", "cpu")
    assert read_devices("cuda:0,cuda:1") == ("cuda", "cuda:1")
    assert read_devices("CUDA0,CUDA1, ROCm1") == ("cuda", "cuda:1", "hip:1")  # as llama.cpp writes them
    for text in ("cpu,", "auto,cpu", "cpu,cpu", "cuda,cuda:0"):
        with pytest.raises(RequestError, match="device"):
            read_devices(text)


def test_rules_are_read() -> None:
    assert [r.device for r in read_rules("a=CUDA1,b=CPU")] == ["cuda:1", "cpu"]
    (one,) = read_rules(r"blk\.\d{1,2}\.ffn=CPU")
    assert one.device == "cpu" and one.pattern.search("blk.11.ffn_up.weight")
    assert [r.device for r in read_rules("a=cpu,b=remote:0,c=remote:1")] == ["cpu", "remote", "remote:1"]
    for text in ("cpu", "=cpu", "a=", "(=cpu"):
        with pytest.raises(RequestError, match="override_tensor"):
            read_rules(text)


@pytest.mark.parametrize("wrong", [{"gpu_memory": -1}, {"stream_weights": "maybe"}, {"gpu_layers": "x"}])
def test_wrong_options_are_refused_before_a_file_is_opened(wrong: LoadKwargs) -> None:
    with pytest.raises(RequestError):
        Model.load("no such file", **wrong)


# --- the choice


def budgets(free: int, host: int = LARGE, *more: int) -> list[MemoryBudget]:
    far = [
        MemoryBudget("remote", free, True),
        *(MemoryBudget(f"remote:{i + 1}", n, True) for i, n in enumerate(more)),
    ]
    return [*far, MemoryBudget("cpu", host, False)]


def two_devices(sizes: Sizes) -> Sizes:
    """The sizes of a model for one device apart, with a second one like it."""
    return replace(sizes, held={**sizes.held, "remote:1": sizes.held["remote"]})


def whole(sizes: Sizes) -> int:
    return sizes.on(Placement("remote"))["remote"]


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0, 5.0])
def test_what_is_chosen_fits_and_is_the_quickest_that_does(
    sized: dict[str, Sizes], kind: str, share: float
) -> None:
    sizes = sized[kind]
    given = budgets(int(whole(sizes) * share))
    speeds = {"remote": FAST, "cpu": SLOW}

    def judge(placement: Placement) -> Prediction:
        return predict(placement, sizes, speeds)

    candidate = choose(sizes, given, Options().placement_options, judge)
    assert fits(sizes.on(candidate.placement), given)
    assert sum(sizes.on(candidate.placement).values()) >= whole(sizes) * 0.99
    for other in candidates(sizes, given, Options().placement_options):
        if fits(sizes.on(other.placement), given):
            assert judge(candidate.placement).seconds <= judge(other.placement).seconds
    full = share >= 1.0
    assert (
        candidate.on == sizes.layers and candidate.head and candidate.embed and not candidate.experts
    ) == full


@pytest.mark.parametrize("orders", [False, True])
def test_the_embeddings_are_where_the_first_layer_is(sized: dict[str, Sizes], orders: bool) -> None:
    sizes = two_devices(sized["dense"])
    for candidate in candidates(
        sizes, budgets(LARGE, LARGE, LARGE), Options().placement_options, orders=orders
    ):
        if candidate.embed:
            assert candidate.placement.label("embed") == candidate.placement.label("blk.0")
    alone = choose(sizes, budgets(LARGE, LARGE, LARGE), Options().placement_options, None)
    assert sizes.used(alone.placement) == {"remote"}


def test_a_slow_device_gets_nothing_unless_it_is_named(sized: dict[str, Sizes]) -> None:
    sizes = sized["dense"]
    speeds = {"remote": SLOW, "cpu": FAST}
    candidate = choose(
        sizes,
        budgets(LARGE),
        Options().placement_options,
        lambda placement: predict(placement, sizes, speeds),
    )
    assert candidate.on == 0 and set(candidate.placement.labels.values()) == {"cpu"}
    assert choose(sizes, budgets(LARGE), Options(device="remote").placement_options).on == sizes.layers


def test_experts_stay_before_layers_do(sized: dict[str, Sizes]) -> None:
    sizes = sized["mixture"]
    expert = sum(sizes.held["remote"][t.name] for t in sizes.tensors if t.expert)
    candidate = choose(sizes, budgets(whole(sizes) - expert), Options(device="remote").placement_options)
    assert candidate.on == sizes.layers and candidate.head and candidate.experts == sizes.layers
    assert {candidate.placement.weight(t.name, t.label) for t in sizes.tensors if t.expert} == {"cpu"}
    assert {candidate.placement.weight(t.name, t.label) for t in sizes.tensors if not t.expert} == {"remote"}


@pytest.mark.parametrize(("seconds", "on"), [((9, 6.5, 7, 10), 1), ((9, 8, 8, 10), 3), ((9, 8, 7.4, 10), 2)])
def test_a_mixtures_whole_layers_stay_with_the_cpu_where_that_gains_a_quarter(
    sized: dict[str, Sizes], seconds: tuple[float, ...], on: int
) -> None:
    """Over what it takes with all layers apart, however many stay. seconds: by the layers that are apart."""
    sizes = sized["mixture"]

    def foretold(placement: Placement) -> Prediction:
        apart = sum(placement.label(f"blk.{i}") == "remote" for i in range(sizes.layers))
        return Prediction(decode=0.0, prompt=1.0, whole=float(seconds[apart]))

    options = Options(device="remote,cpu").placement_options
    assert choose(sizes, budgets(LARGE), options, foretold).on == on


def test_layers_go_on_to_the_next_device(sized: dict[str, Sizes]) -> None:
    sizes = two_devices(sized["dense"])
    part = whole(sizes) // 2
    made: PlacementCandidate = choose(
        sizes, budgets(part, LARGE, part), Options(device="remote,remote:1").placement_options
    )
    on = [made.placement.label(f"blk.{i}") for i in range(sizes.layers)]
    assert "remote" in on and "remote:1" in on and on == sorted(on, key=["cpu", "remote:1", "remote"].index)


@pytest.mark.parametrize(
    ("layers", "on", "head"), [(0, 0, False), (1, 1, False), (3, 3, False), (4, 3, True), ("all", 3, True)]
)
def test_a_number_of_layers_counts_from_the_end(
    sized: dict[str, Sizes], layers: int | str, on: int, head: bool
) -> None:
    candidate = choose(
        sized["dense"], budgets(LARGE), Options(device="remote", gpu_layers=layers).placement_options
    )
    assert (candidate.on, candidate.head) == (on, head)
    placed = [candidate.placement.label(f"blk.{i}") for i in range(3)]
    assert placed == ["cpu"] * (3 - on) + ["remote"] * on


def test_more_than_fits_is_an_error_that_says_what_is_there(sized: dict[str, Sizes]) -> None:
    with pytest.raises(DeviceError, match=r"remote: all layers need .* MiB and it has"):
        choose(sized["dense"], budgets(1000), Options(device="remote", gpu_layers="all").placement_options)


@pytest.mark.parametrize(
    ("rule", "said"), [("ffn=tpu", "the devices in use are remote, cpu"), ("xyz=cpu", "no tensor")]
)
def test_a_rule_for_nothing_is_refused(sized: dict[str, Sizes], rule: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        choose(
            sized["dense"],
            budgets(LARGE),
            Options(device="remote", gpu_layers="auto", override_tensor=[rule]).placement_options,
        )


def test_crossings_are_counted(sized: dict[str, Sizes]) -> None:
    sizes = sized["dense"]
    labels = {"blk.1": "remote"}
    assert list(crossings(Placement("cpu", labels), sizes)) == [("cpu", "remote"), ("remote", "cpu")]
    apart = predict(Placement("cpu", labels), sizes, {"cpu": FAST, "remote": FAST})
    together = predict(Placement("cpu"), sizes, {"cpu": FAST, "remote": FAST})
    assert together.decode < apart.decode and together.prompt < apart.prompt
    assert together.pp == PROMPT / together.prompt and together.tg == 1 / together.decode


# --- models on two devices


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize(
    "how",
    [
        {"gpu_layers": 1},
        {"gpu_layers": 99},
        {"gpu_layers": 2, "kv_offload": False},
        {"gpu_memory": 1_800_000},
        {"override_tensor": (r"attn_[qk]\.=cpu,ffn_down=cpu", "token_embd=cpu")},
        {"gpu_layers": 0, "override_tensor": (r"blk\.1\..*=remote",)},
    ],
)
def test_a_model_on_two_devices_answers_as_on_one(
    files: dict[str, Path], alone: dict[str, np.ndarray], kind: str, how: LoadKwargs
) -> None:
    with Model.load(files[kind], device="remote", threads=1, **how) as model:
        assert {d.name for d in model.devices} == (
            {"remote"} if how == {"gpu_layers": 99} else {"remote", "cpu"}
        )
        np.testing.assert_allclose(model.logits(IDS), alone[kind], rtol=1e-5, atol=1e-6)
        reply = model.generate(IDS, max_tokens=4, sampling=GREEDY)
        reply.read()
        assert reply.ids[0] == int(alone[kind][-1].argmax())
        if not how.get("kv_offload", True):
            assert {part.device for group in model.engine.states.paged for part in group} == {"cpu"}


def test_experts_on_the_cpu_and_the_rest_elsewhere(
    files: dict[str, Path], alone: dict[str, np.ndarray]
) -> None:
    with Model.load(files["mixture"], device="remote", threads=1, **tiny_file.EXPERTS_STAY) as model:
        np.testing.assert_allclose(model.logits(IDS), alone["mixture"], rtol=1e-5, atol=1e-6)
        plan = model.engine.program(1, 1).plan
        on_cpu = {step.op for s in plan.segments if s.device == "cpu" for step in s.steps}
        assert {"expert_swiglu", "expert_linear", "expert_sum"} <= on_cpu
        assert not on_cpu & {"attention", "top_experts", "rope_kv_write", "linear"}


def test_what_stands_between_the_products_of_experts_stays_with_them(tmp_path: Path) -> None:
    """Gemma 4's experts have a special gate, which must not cross to the other device and back."""
    path = tiny_file.write_model(tmp_path / "m.gguf", "gemma4")
    with Model.load(path, device="remote", threads=1, **tiny_file.EXPERTS_STAY) as model:
        segments = model.engine.program(1, 1).plan.segments
        mixed = sum(name.endswith("ffn_down_exps.weight") for name in model.gguf.tensors)
    assert sum(s.device == "cpu" for s in segments) == mixed > 0


def test_what_did_not_fit_is_said(files: dict[str, Path]) -> None:
    with Model.load(files["dense"], device="remote", gpu_memory=1_800_000) as model:
        assert any("layers" in note and "cpu: there is no room for more" in note for note in model.notes)
    with pytest.raises(DeviceError, match="all layers need"):
        Model.load(files["dense"], device="remote", gpu_memory=1_800_000, gpu_layers="all")
    with pytest.raises(DeviceError, match="no such backend"):
        Model.load(files["dense"], device="remote,tpu")


@pytest.mark.parametrize("layers", [3, 99, "all"])
def test_layers_for_a_gpu_that_is_not_there_are_a_note(files: dict[str, Path], layers: int | str) -> None:
    with Model.load(files["dense"], gpu_layers=layers) as model:
        assert any(f"-ngl {layers} has no effect: this machine has no GPU" in note for note in model.notes)
        assert [device.name for device in model.devices] == ["cpu"]


@pytest.mark.parametrize(("memory", "prefetch"), [(0, "auto"), (1_800_000, "auto"), (4_000_000, "on")])
def test_the_memory_is_what_was_foretold(
    files: dict[str, Path], memory: int, prefetch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 5 % of the bytes that a load, a full step and a step of one token reserve on each device."""
    reserved: dict[str, int] = {}
    alloc = Device.alloc

    def counted(self: Device, size: int, usage: int) -> Buffer:
        reserved[self.name] = reserved.get(self.name, 0) + size
        return alloc(self, size, usage)

    monkeypatch.setattr(Device, "alloc", counted)
    options = Options(device="remote", gpu_memory=memory, threads=1, prefetch_weights=prefetch)
    with Model.load(files["dense"], options) as model:
        model.generate(IDS * 7, max_tokens=1, sampling=GREEDY).read()
        for tokens in (1, 96):
            program = model.engine.program(tokens, 1)
            for _ in range(1, model.engine.lanes):
                program = model.engine._second(program)
        held = dict(reserved)
    with open_gguf(files["dense"]) as gguf:
        devices = [find_backend(n).open(threads=1) for n in ("remote", "cpu")]
        shares = {s.device: s for s in dry_run(gguf, devices, options, lambda d: FAST).shares()}
        for device in devices:
            device.close()
    assert set(shares) == set(held) == ({"remote", "cpu"} if memory else {"remote"})
    for name, share in shares.items():
        mapped = share.weights - share.packed if name == "cpu" else 0
        assert held[name] == pytest.approx(share.total - mapped, rel=0.05), name
        assert share.fits


def test_under_auto_speeds_are_asked_for_only_where_there_is_a_choice(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measure(device: Device) -> Speed:
        asked.append(device.name)
        return FAST if device.name == "remote" else SLOW

    def found(open: Open, made: list[Device], notes: list[str], lost: Collection[str]) -> None:
        made.append(open(find_backend("remote"), 0))

    monkeypatch.setattr("satchel.runtime.placement.devices._open_found", found)
    monkeypatch.setattr("satchel.runtime.api.model.measured", lambda *_: measure)
    with Model.load(files["dense"]) as model:
        assert [d.name for d in model.devices] == ["remote"] and not asked
    with Model.load(files["dense"], gpu_memory=1_800_000) as model:
        assert [d.name for d in model.devices] == ["remote", "cpu"] == asked
        assert any("so it is done first" in note for note in model.notes)


# --- weights from the file


def test_streamed_weights_give_the_same_bits(files: dict[str, Path]) -> None:
    found = []
    for stream in ("on", "off"):
        with Model.load(files["dense"], device="cpu", repack=False, stream_weights=stream) as model:
            found.append(model.logits(IDS))
            segments = [s.steps[0].label for s in model.engine.program(1, 1).plan.segments]
            assert segments == (
                ["embed", "blk.0", "blk.1", "blk.2", "output"] if stream == "on" else ["embed"]
            )
    np.testing.assert_array_equal(*found)


def test_too_little_memory_streams(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.runtime.placement.settle.free_bytes", lambda *_: 1000)
    with Model.load(files["dense"], device="cpu", context=64) as model:
        assert any("read from the file" in note for note in model.notes)
        assert len(model.engine.program(1, 1).plan.segments) > 1
    with Model.load(files["dense"], device="cpu", context=64, stream_weights="off") as model:
        assert len(model.engine.program(1, 1).plan.segments) == 1


def test_a_cpu_that_computes_nothing_lets_steps_overlap(files: dict[str, Path]) -> None:
    """Streaming concerns devices that have a part of the model."""
    with Model.load(files["dense"], device="remote", gpu_layers="all", stream_weights="on") as model:
        assert model.engine.devices == ("remote",) and model.engine.overlaps
    with Model.load(files["dense"], device="remote", gpu_layers=1, stream_weights="on") as model:
        assert "cpu" in model.engine.devices and not model.engine.overlaps


def test_pages_are_asked_for_ahead_and_given_back(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_gguf(files["dense"]) as gguf:
        pages, said = FilePages(gguf), []
        monkeypatch.setattr(FilePages, "_advise", lambda _, label, advice: said.append((label, advice[5:])))
        for label in ("embed", "blk.0", "blk.0", "blk.1", "blk.2", "output", "blk.0"):
            pages.enter(label)
    want, drop = "WILLNEED", "DONTNEED"
    assert said == [
        ("blk.0", want),
        ("blk.1", want),
        ("blk.0", drop),
        ("blk.2", want),
        ("blk.1", drop),
        ("output", want),
        ("blk.2", drop),
        ("blk.0", want),
        ("output", drop),
        ("blk.1", want),
    ]


# --- speeds, and what would fit


def test_speeds_are_measured_once(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speeds, "LINK", 1 << 16)
    memory = tmp_path / "deep" / "speeds.json"
    opened: list[Device] = []

    def fresh() -> Device:
        opened.append(find_backend("cpu").open(threads=1))
        return opened[-1]

    with open_gguf(files["mixture"]) as gguf, find_backend("cpu").open(threads=1) as device:
        first = speed_of(gguf, device, fresh, cache=memory)
        once = len(opened)
        assert speed_of(gguf, device, fresh, cache=memory) == first and len(opened) == once
        assert (
            min(*first.layer, *first.head, first.link, first.latency) > 0 and first.layer[1] > first.layer[0]
        )
        known = memory.read_text()
        for spoiled in ("{ no JSON", known.replace("[[", "[[[", 1), known.replace("]]", "], null]", 1)):
            memory.write_text(spoiled)
            assert min(speed_of(gguf, device, fresh, cache=memory).layer) > 0 and len(opened) > once


def test_the_type_that_would_fit(files: dict[str, Path]) -> None:
    with open_gguf(files["dense"]) as gguf:
        now = sum(info.nbytes for info in gguf.tensors.values())
        found = recipe_that_fits(gguf, now * 3 // 4)
        assert found is not None and _bytes(gguf, found.name) <= now * 3 // 4
        assert recipe_that_fits(gguf, 10) is None


def _bytes(gguf: GGUF, name: str) -> int:
    from satchel.formats.quantizing.plan import QuantizeOptions, plan_tensors
    from satchel.quant.recipes import RECIPES

    recipe = next(r for r in RECIPES.values() if r.name == name)
    return sum(c.bytes_after for c in plan_tensors(gguf, QuantizeOptions(recipe, requantize=True)))


@pytest.mark.parametrize(
    ("layers", "stay"), [(None, {0, 1, 2}), (0, set()), (1, {0}), (2, {0, 1}), (99, {0, 1, 2})]
)
def test_experts_of_the_first_layers_stay(
    sized: dict[str, Sizes], layers: int | None, stay: set[int]
) -> None:
    rule = experts_rule(layers)
    options = Options(
        device="remote", gpu_layers="auto", override_tensor=[rule] if rule else []
    ).placement_options
    placement = choose(sized["mixture"], budgets(LARGE), options).placement
    found = {t.label for t in sized["mixture"].tensors if placement.weight(t.name, t.label) == "cpu"}
    assert found == {f"blk.{i}" for i in stay}
    assert all(t.expert for t in sized["mixture"].tensors if placement.weight(t.name, t.label) == "cpu")


def test_experts_of_fewer_than_no_layer_are_refused() -> None:
    with pytest.raises(RequestError, match="must not be negative"):
        experts_rule(-1)


@pytest.mark.parametrize(
    ("large", "prefetch", "batch"), [(1, "auto", 4096), (3, "auto", 512), (3, "on", 4096)]
)
def test_a_large_step_with_prefetched_weights_must_be_foretold_to_be_faster(
    files: dict[str, Path], large: float, prefetch: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where speeds are measured: it takes memory that more layers could have."""
    placement = Placement("cpu", {f"blk.{i}": "remote" for i in range(3)})
    travelling = {f"blk.{i}": {f"k.{i}": 64} for i in range(3)}
    plan = PrefetchPlan("remote", {}, 32, placement, 0, 0, travelling)

    class Foretold(Settled):
        def predicted(self, devices: object, measure: object) -> Prediction:
            return Prediction(0.0, 1.0, large if self.arch.cache.batch == LARGE_STEP else 2)

    def made(gguf: GGUF, devices: object, options: Options, *rest: object) -> Settled:
        return Foretold(
            archs[options.batch], PlacementCandidate(Placement("cpu"), 0, True, True), prefetch=plan
        )

    options = Options(prefetch_weights=prefetch, threads=1)
    cpu, remote = (find_backend(name).open(threads=1) for name in ("cpu", "remote"))
    with cpu, remote, open_gguf(files["dense"]) as gguf:
        archs = {
            n: dry_run(gguf, [cpu], replace(options, batch=n), lambda d: FAST).arch
            for n in (STEP, LARGE_STEP)
        }
        monkeypatch.setattr(step, "settle", made)
        found = step.settle_step(gguf, [remote, cpu], options, options.placement_options, lambda d: FAST)
    assert found[1] == found[0].arch.cache.batch == batch


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        (LoadKwargs(device="remote"), LARGE_STEP),
        (LoadKwargs(device="cpu"), STEP),
        (LoadKwargs(device="remote", gpu_memory=1_800_000), STEP),
        (LoadKwargs(device="remote", kv_offload=False), STEP),
        (LoadKwargs(device="remote", batch=64), 64),
        (LoadKwargs(device="cpu", batch=LARGE_STEP), LARGE_STEP),
    ],
)
def test_steps_are_large_where_all_is_on_devices_apart(
    files: dict[str, Path], changes: LoadKwargs, batch: int
) -> None:
    options = settled(None, LoadKwargs(threads=1, **changes))
    with Model.load(files["dense"], options) as model:
        assert model.engine.batch == batch and model.cache.batch == batch
        limits = model.options.served
    assert (limits.alone_seconds > 0) == (not options.batch)
    with open_gguf(files["dense"]) as gguf:
        names = dict.fromkeys((options.device, "cpu") if batch < LARGE_STEP else (options.device,))
        devices = [find_backend(name).open(threads=1) for name in names]
        assert dry_run(gguf, devices, options, lambda d: FAST).batch == batch
        for device in devices:
            device.close()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("blk.12.ffn_up.weight", 12),
        ("output.weight", None),
        ("blk.2&ffn_up", None),
        ("blk. .x", None),
        ("blk.", None),
    ],
)
def test_the_layer_of_a_name_that_a_damaged_file_may_have(name: str, number: int | None) -> None:
    assert layer_number(name) == number
