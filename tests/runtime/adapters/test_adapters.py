"""LoRA adapters: they equal merged weights, mix freely in one batch, have cached prefixes of their own, and
bad files are refused.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import extra_files
import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.errors import ModelError, RequestError
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.model import Model
from satchel.runtime.graph import Array, leaves
from satchel.runtime.sampling import GREEDY
from satchel.runtime.speculative import Speculation

pytestmark = needs("cpu")

IDS = [int(t) for t in np.random.default_rng(5).integers(0, tiny.VOCAB, 70)]
SEEDS = {"a": extra_files.factors(1), "b": extra_files.factors(2, 3, ("attn_q", "ffn_down"))}
ALPHA, RANK = {"a": 8.0, "b": 6.0}, {"a": 4, "b": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters")
    for format in ("f32", "q8_0", "q4_k"):
        tiny_file.write_model(path / f"{format}.gguf", "llama", format)
    for name, tensors in SEEDS.items():
        extra_files.write_adapter(path / f"{name}.gguf", tensors, ALPHA[name])
    extra_files.write_vector(path / "v.gguf", extra_files.directions(3))
    return path


def load(folder: Path, format: str = "q8_0", **options: Any) -> Model:
    adapters = [AdapterFile(folder / "a.gguf", 0.0), AdapterFile(folder / "b.gguf", 0.0)]
    vectors = [AdapterFile(folder / "v.gguf", 0.0)]
    return Model.load(
        folder / f"{format}.gguf", threads=2, adapters=adapters, control_vectors=vectors, **options
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with load(folder, slots=6) as made:
        yield made


def merged(mix: Mapping[str, float], tensors: Mapping[str, Mapping[str, Array]]) -> Any:
    """Weights with the adapters added to them, in float64."""

    def change(w: tiny.TinyWeights) -> None:
        for name, scale in mix.items():
            for weight in [n.removesuffix(".lora_a") for n in tensors[name] if n.endswith(".lora_a")]:
                a, b = (tensors[name][f"{weight}.lora_{p}"].astype(np.float64) for p in "ab")
                w.put(weight, w.array(weight) + scale * ALPHA[name] / RANK[name] * b @ a)

    return change


def test_nets_and_shared_experts_take_adapters_too(tmp_path: Path) -> None:
    """Granite 4: weights of the SSM and attention layers, and of the shared experts."""
    targets = ("ssm_in", "ssm_out", "attn_q", "attn_v", "ffn_gate_shexp", "ffn_down_shexp")
    made = extra_files.factors(3, 4, targets, scale=0.05, arch="granitehybrid")
    assert {name.split(".")[2] for name in made} == set(targets)
    file = extra_files.write_adapter(tmp_path / "a.gguf", made, ALPHA["a"], "granitehybrid")
    paths = [
        tiny_file.write_model(tmp_path / f"{name}.gguf", "granitehybrid", "f32", change=change)
        for name, change in (("plain", None), ("merged", merged({"a": 1.0}, {"a": made})))
    ]
    with (
        Model.load(paths[0], threads=2, adapters=[AdapterFile(file, 0.0)], cache_type="f32") as model,
        Model.load(paths[1], threads=2, cache_type="f32") as whole,
    ):
        found, wanted = model.logits(IDS, adapters={"a": 1.0}), whole.logits(IDS)
        assert np.abs(found - model.logits(IDS)).max() > 0.01, "the adapter does nothing"
    assert np.square(found - wanted).sum() / np.square(wanted).sum() < 1e-8


@pytest.mark.parametrize("mix", [{"a": 1.0}, {"b": -0.5}, {"a": 0.25, "b": 1.5}], ids=str)
def test_logits_are_those_of_merged_weights(mix: dict[str, float], folder: Path, tmp_path: Path) -> None:
    other = tiny_file.write_model(tmp_path / "merged.gguf", "llama", "f32", change=merged(mix, SEEDS))
    with load(folder, "f32") as model, Model.load(other, threads=2) as whole:
        found, wanted = model.logits(IDS, adapters=mix), whole.logits(IDS)
        assert np.abs(found - model.logits(IDS)).max() > 0.1, (
            "the adapter does nothing: the test shows nothing"
        )
    assert np.abs(found - wanted).max() < 2e-3


def test_an_adapter_of_the_embedding_changes_what_is_looked_up_and_not_the_head(tmp_path: Path) -> None:
    tensors = {"a": extra_files.factors(4, targets=(), embedding=True)}
    adapter = extra_files.write_adapter(tmp_path / "a.gguf", tensors["a"])

    def change(w: tiny.TinyWeights) -> None:
        old = w.array("token_embd.weight")
        a, b = (tensors["a"][f"token_embd.weight.lora_{p}"] for p in "ab")
        w.put("output.weight", old)
        w.put("token_embd.weight", old + 2 * a @ b.T)

    base = tiny_file.write_model(tmp_path / "base.gguf", "llama", "f32")
    other = tiny_file.write_model(tmp_path / "merged.gguf", "llama", "f32", change=change)
    with Model.load(base, threads=2, adapters=[adapter]) as model, Model.load(other, threads=2) as whole:
        assert np.abs(model.logits(IDS) - whole.logits(IDS)).max() < 2e-3
        assert np.abs(model.logits(IDS, adapters={}) - whole.logits(IDS)).max() > 0.05


@pytest.mark.parametrize("format", ["q8_0", "q4_k"])
def test_who_uses_none_gets_the_bits_of_a_model_without_any(format: str, folder: Path) -> None:
    with Model.load(folder / f"{format}.gguf", threads=2) as plain:
        wanted = plain.logits(IDS)
        text = plain.generate(IDS, max_tokens=12, sampling=GREEDY)
        text.read()
    with load(folder, format, slots=2) as model:
        assert np.array_equal(model.logits(IDS), wanted)
        other = model.generate(IDS[3:], max_tokens=30, sampling=GREEDY, adapters={"a": 1.0})
        next(other)
        beside = model.generate(IDS, max_tokens=12, sampling=GREEDY)
        beside.read()
        assert beside.ids == text.ids
        other.read()


MIXES: list[tuple[dict[str, float], dict[str, float]]] = [
    ({}, {}),
    ({"a": 1.0}, {}),
    ({"b": 1.0}, {}),
    ({"a": 0.5, "b": -1.0}, {}),
    ({}, {"v": 1.0}),
    ({"a": 0.5}, {"v": -0.7}),
]


def test_a_batch_of_mixes_gives_each_what_it_gets_alone(model: Model) -> None:
    def ask(mix: tuple[dict[str, float], dict[str, float]]) -> list[int]:
        reply = model.generate(
            IDS[:40], max_tokens=25, sampling=GREEDY, adapters=mix[0], control_vectors=mix[1], ignore_eos=True
        )
        reply.read()
        return reply.ids

    alone = [ask(mix) for mix in MIXES]
    assert len({tuple(a) for a in alone}) == len(MIXES), "two mixes answer alike: the test shows little"
    found: list[list[int]] = [[] for _ in MIXES]

    def work(i: int) -> None:
        found[i] = ask(MIXES[i])

    model.service.call(model.engine.pages.tree.clear)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(MIXES))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == alone


def test_what_is_cached_is_found_by_the_same_mix_alone(model: Model) -> None:
    def cached(*mix: dict[str, float]) -> int:
        reply = model.generate(
            IDS, max_tokens=1, sampling=GREEDY, adapters=mix[0], control_vectors=mix[1] if mix[1:] else {}
        )
        reply.read()
        return reply.stats.cached

    model.service.call(model.engine.pages.tree.clear)
    assert [cached({}), cached({"a": 1.0}), cached({"a": 0.5}), cached({}, {"v": 1.0})] == [0, 0, 0, 0]
    assert [cached({}), cached({"a": 1.0}), cached({"a": 0.5, "b": 0}), cached({}, {"v": 1.0})] == [64] * 4
    assert cached({"b": 1.0}) == 0
    assert cached({"a": 0, "b": -0.0}, {"v": 0}) == 64, "a scale of 0 is none at all"


def test_the_scales_of_loading_hold_where_a_request_says_nothing(folder: Path, model: Model) -> None:
    adapters = [AdapterFile(folder / "a.gguf", 0.5, "style"), folder / "b.gguf"]
    with Model.load(folder / "q8_0.gguf", threads=2, adapters=adapters) as other:
        assert np.array_equal(other.logits(IDS), model.logits(IDS, adapters={"a": 0.5, "b": 1.0}))
        assert np.array_equal(
            other.logits(IDS, adapters={"style": 0.5}), model.logits(IDS, adapters={"a": 0.5})
        )
        assert np.array_equal(other.logits(IDS, adapters={}), model.logits(IDS))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e9, True, "1"], ids=str)
def test_a_senseless_scale_or_name_is_refused(scale: Any, model: Model) -> None:
    with pytest.raises(RequestError, match="scale"):
        model.generate(IDS, adapters={"a": scale})
    with pytest.raises(RequestError, match="'c' is not loaded: there are a, b"):
        model.generate(IDS, adapters={"c": 1.0})
    with pytest.raises(RequestError, match="'a' is not loaded: there are v"):
        model.generate(IDS, control_vectors={"a": 1.0})


def bad(name: str, value: Array | None) -> Any:
    def change(tensors: dict[str, Array]) -> None:
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value.astype(np.float32)

    return change


Q = "blk.0.attn_q.weight"
BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("M16 a: shapes", bad(f"{Q}.lora_a", np.ones((4, tiny.WIDTH + 32))), {}, "expected lora_a [4, 256]"),
    ("M16 b: ranks", bad(f"{Q}.lora_a", np.ones((5, tiny.WIDTH))), {}, "expected lora_a [4, 256]"),
    ("M16 c: target", bad("blk.9.attn_q.weight.lora_a", np.ones((4, 4))), {}, "no such weight"),
    ("M16 d: half", bad(f"{Q}.lora_b", None), {}, "got one of them"),
    (
        "M16 e: NaN",
        bad(f"{Q}.lora_b", np.full((tiny.HEADS * tiny.HEAD_DIM, 4), np.nan)),
        {},
        "NaN or infinity",
    ),
    ("M16 f: alpha NaN", None, {"alpha": float("nan")}, "adapter.lora.alpha"),
    ("M16 g: no alpha", None, {"alpha": None}, "adapter.lora.alpha"),
    ("M16 h: norm", bad("output_norm.weight.lora_a", np.ones((4, 4))), {}, "expected a matrix"),
    ("other model", None, {"arch": "qwen3"}, "expected llama"),
    ("no adapter", None, {"general__type": "model"}, "expected adapter"),
    ("no LoRA", None, {"adapter__type": "ia3"}, "expected lora"),
    ("foreign name", bad("blk.0.attn_q.weight", np.ones((4, 4))), {}, ".lora_a or .lora_b"),
    ("nothing", dict.clear, {}, "got none"),
]


@pytest.mark.parametrize(("change", "keys", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_adapter_is_one_line(
    change: Any, keys: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    tensors = extra_files.factors(1)
    if change is not None:
        change(tensors)
    path = extra_files.write_adapter(tmp_path / "bad.gguf", tensors, **keys)
    with pytest.raises(ModelError, match=re.escape(said)) as error:
        Model.load(folder / "q8_0.gguf", adapters=[path])
    assert "\n" not in str(error.value) and "bad.gguf" in str(error.value)


def test_a_model_with_awq_takes_no_adapter(folder: Path, tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", satchel__awq=True)
    with pytest.raises(ModelError, match="--awq"):
        Model.load(path, adapters=[folder / "a.gguf"])


def test_adapters_of_experts_and_two_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    mixture = tiny_file.write_model(tmp_path / "m.gguf", "qwen3moe")
    name = "blk.0.ffn_up_exps.weight"
    tensors = {f"{name}.lora_a": np.ones((7, 4, 256)), f"{name}.lora_b": np.ones((7, 256, 4))}
    path = extra_files.write_adapter(tmp_path / "e.gguf", tensors, arch="qwen3moe")
    with pytest.raises(ModelError, match="experts"):
        Model.load(mixture, adapters=[path])
    router = extra_files.write_adapter(
        tmp_path / "r.gguf",
        {
            "blk.0.ffn_gate_inp.weight.lora_a": np.ones((2, 256)),
            "blk.0.ffn_gate_inp.weight.lora_b": np.ones((7, 2)),
        },
        arch="qwen3moe",
    )
    with Model.load(mixture, adapters=[router], threads=2) as model:
        assert np.abs(model.logits(IDS) - model.logits(IDS, adapters={})).max() > 0
    with pytest.raises(RequestError, match="two files are called 'a'"):
        Model.load(folder / "q8_0.gguf", adapters=[folder / "a.gguf", folder / "a.gguf"])
    with pytest.raises(RequestError, match="layers are chosen of control vectors"):
        Model.load(folder / "q8_0.gguf", adapters=[AdapterFile(folder / "a.gguf", layers=(1, 2))])


def test_a_step_without_adapters_runs_the_plain_plan(model: Model) -> None:
    names = {n.name for n in leaves(model.engine.optimized("tokens").roots, "weight")}
    assert not any("lora" in n or "direction" in n for n in names)
    adapted = {n.name for n in leaves(model.engine.optimized("adapters tokens").roots, "weight")}
    assert adapted > names and sum("lora" in n for n in adapted) == 2 * 7 * tiny.LAYERS


def test_a_worker_process_applies_them_too(folder: Path, model: Model) -> None:
    adapters = [AdapterFile(folder / "a.gguf", 0.0), AdapterFile(folder / "b.gguf", 0.0)]
    with Model.load(folder / "q8_0.gguf", threads=1, adapters=adapters, worker="process") as other:
        for mix in ({}, {"a": 1.0}):
            assert np.array_equal(other.logits(IDS, adapters=mix), model.logits(IDS, adapters=mix))
            texts = [
                m.generate(IDS, max_tokens=8, sampling=GREEDY, adapters=mix).read() for m in (model, other)
            ]
            assert texts[0] == texts[1]
        with pytest.raises(RequestError, match="not loaded"):
            other.generate(IDS, adapters={"c": 1.0})
        mix = {"a": 1.0}
        assert np.array_equal(other.embed([IDS], adapters=mix), model.embed([IDS], adapters=mix))


def test_speculation_changes_no_mix(folder: Path, model: Model) -> None:
    prompt, kwargs = (
        [5, 6] * 20,
        GenerateKwargs(max_tokens=30, sampling=GREEDY, adapters={"a": 0.5}, ignore_eos=True),
    )
    wanted = model.generate(prompt, **kwargs)
    wanted.read()
    with load(folder, speculation=Speculation(lookup=True)) as other:
        found = other.generate(
            [5, 6] * 20, max_tokens=30, sampling=GREEDY, adapters={"a": 0.5}, ignore_eos=True
        )
        found.read()
    assert found.ids == wanted.ids


def test_a_saved_state_belongs_to_its_mix(folder: Path, tmp_path: Path) -> None:
    path, ids = tmp_path / "state.kv", [int(i) for i in np.random.default_rng(3).integers(5, 200, 80)]

    def cached(model: Model) -> int:
        reply = model.generate(ids, max_tokens=2, sampling=GREEDY)
        reply.read()
        return reply.stats.cached

    def load_mix(*scales: float) -> Model:
        return Model.load(folder / "q8_0.gguf", adapters=[AdapterFile(folder / "a.gguf", s) for s in scales])

    with load_mix(0.5) as model:
        assert cached(model) == 0 and model.save_state(path, ids) == 64
    with load_mix(0.5) as model:
        assert model.restore_state(path).tokens == 64 and cached(model) == 64
    for scales in ((), (0.0,), (0.25,)):
        with load_mix(*scales) as other, pytest.raises(RequestError, match=r"state\.numbers"):
            other.restore_state(path)
