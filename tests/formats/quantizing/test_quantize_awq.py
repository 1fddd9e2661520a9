"""AWQ: the scaled model computes the same, only scalable weights are scaled, and the file is an
ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_file

from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.formats.gguf import TensorSource, open_gguf, sources, write_gguf
from satchel.formats.imatrix import Origin, Sums, write_importance
from satchel.formats.quantize import QuantizeOptions, find_recipe, plan, write
from satchel.formats.quantizing import awq
from satchel.formats.quantizing.calibration import Diagonals
from satchel.formats.quantizing.plan import plan_tensors
from satchel.quant import FORMATS
from satchel.quant.calibration.awq import Sample, Spread
from satchel.quant.format import F32
from satchel.runtime.compiler.check import inputs as step_inputs
from satchel.runtime.graph import toposort
from satchel.runtime.kv import Pages
from satchel.runtime.layers.arch import Cache
from satchel.runtime.ops import evaluate
from satchel.runtime.sampling import GREEDY

ARCHITECTURES = ["llama", "mistral", "qwen2", "qwen3", "qwen3moe"]
IDS = [5, 17, 3, 250, 99, 5, 5, 31]
LAYERS = range(tiny.LAYERS)


def importance(path: Path, seed: int = 1) -> dict[str, F32]:
    """Mean squares of very different sizes; weights with the same input have the same."""
    rng, found = np.random.default_rng(seed), {}
    with open_gguf(path) as source:
        for name, info in source.tensors.items():
            if len(info.shape) > 1:
                size = info.shape[-1] * (info.shape[0] if len(info.shape) == 3 else 1)
                found[name] = np.exp(3 * rng.standard_normal(size)).astype(np.float32)
    return found


def logits(arch: str, w: tiny.TinyWeights) -> F32:
    """Of the last token, by the ops' definitions."""
    cache = Cache(24)
    forward = tiny.build(arch, w, cache)
    pages = Pages(cache)
    pages.reserve(0, len(IDS))
    given = step_inputs(IDS, 0, len(IDS), GREEDY, pages)
    given["rows"] = np.arange(len(IDS), dtype=np.int32)
    states = {
        n.name: np.zeros(tuple(n.type.shape), {"i32": np.int32, "f16": np.float16}[n.type.format])
        for n in toposort(forward.roots("tokens"))
        if n.op == "state"
    }
    (found,) = evaluate((forward.logits,), {**w.tensors, **states, **given})
    return np.asarray(found, np.float32)


@pytest.fixture(params=[True, False], ids=["powers", "any"])
def exact(request: pytest.FixtureRequest) -> bool:
    """Whether scales are powers of two, so that every intermediate result is rounded as before."""
    return bool(request.param)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    """Gives every mapping random scales."""
    rng = np.random.default_rng(12)

    def scales(samples: list[Sample], inputs: F32, weights: F32, spread: Spread, run: object) -> F32:
        assert inputs.shape == weights.shape and np.isfinite(inputs).all() and (weights > 0).all()
        assert all(s.x.shape[1] == len(spread(inputs)) == len(s.importance) for s in samples)
        drawn = rng.standard_normal(len(inputs))
        return np.exp2(np.rint(drawn) if exact else drawn).astype(np.float32)

    monkeypatch.setattr(awq, "best_scales", scales)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_model_computes_the_same(
    arch: str, exact: bool, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", arch, "f32")
    before, after = tiny.weights(arch), tiny.TinyWeights()
    with open_gguf(path) as source:
        choices = plan_tensors(source, QuantizeOptions(find_recipe("Q8_0")))
        made = awq.AwqScaling(source, choices, Diagonals(importance(path)), pool)
        changed = set()
        for choice in choices:
            x = before.array(choice.name)
            rows = x.reshape(-1, x.shape[-1])
            if scaling := made.scaling(choice):
                changed.add(choice.name.partition(".")[2].partition(".")[2])
                # In two cuts, as the encoder meets them.
                cut = len(rows) // 3
                rows = np.concatenate([scaling.apply(rows[:cut], 0), scaling.apply(rows[cut:], cut)])
            after.put(choice.name, rows.reshape(x.shape))
    wanted = {"attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output"}
    dense = {"ffn_gate", "ffn_up", "ffn_down"}
    wanted |= {"ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps"} if arch == "qwen3moe" else dense
    biases = {"attn_v.bias"} if arch == "qwen2" else set()
    assert changed == {f"{name}.weight" for name in wanted} | biases
    assert len(made.found) == (3 if arch == "qwen3moe" else 4) * tiny.LAYERS
    a, b = (logits(arch, w).astype(np.float64) for w in (before, after))
    # The cache rounds values to f16, and numbers that differ in float32's last place at times differently.
    assert np.square(a - b).sum() <= (0 if exact else 1e-6) * np.square(a).sum()


@pytest.mark.usefixtures("always")
def test_the_file_holds_the_scaled_numbers(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "qwen2", "f32")
    settings, data = QuantizeOptions(find_recipe("Q8_0")), importance(path)
    planned = plan(path, tmp_path / "x.gguf", settings, awq=True)
    report = write(path, tmp_path / "x.gguf", settings, importance=data, awq=True)
    assert planned.file_bytes == (tmp_path / "x.gguf").stat().st_size
    assert set(report.errors) == {c.name for c in report.choices if c.changed}
    with open_gguf(path) as old, open_gguf(tmp_path / "x.gguf") as new:
        assert new.metadata["satchel.awq"] is True

        def ratio(name: str) -> F32:
            """The factor of each column, by least squares."""
            a, b = (FORMATS[g.info(name).format].decode(g.array(name)) for g in (old, new))
            a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, a.shape[-1])
            return np.asarray((a * b).sum(axis=0) / (a * a).sum(axis=0))

        for i in LAYERS:
            norm = ratio(f"blk.{i}.attn_norm.weight")
            columns = ratio(f"blk.{i}.attn_q.weight")
            assert np.allclose(norm * columns, 1, rtol=0.1) and norm.std() > 0.3
            bias = ratio(f"blk.{i}.attn_v.bias").reshape(tiny.KV_HEADS, 1, tiny.HEAD_DIM)
            heads = ratio(f"blk.{i}.attn_output.weight")
            heads = heads.reshape(tiny.KV_HEADS, tiny.HEADS // tiny.KV_HEADS, tiny.HEAD_DIM)
            assert np.allclose(heads * bias, 1, rtol=0.1)
        assert np.array_equal(old.array("output_norm.weight"), new.array("output_norm.weight"))


def test_scales_lower_the_error_of_what_is_written(tmp_path: Path) -> None:
    """With uneven columns the output's error falls; the number of threads changes nothing."""
    w = tiny.weights("llama")
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    uneven = np.exp(1.2 * np.random.default_rng(4).standard_normal(tiny.FFN)).astype(np.float32)
    with open_gguf(path) as source:
        given = [
            TensorSource(t.name, t.shape, "f32", w.array(t.name) * uneven) if "ffn_down" in t.name else t
            for t in sources(source)
        ]
        write_gguf(tmp_path / "uneven.gguf", source.metadata, given)
    data = {name: np.ones_like(x) for name, x in importance(path).items()}
    path, settings = tmp_path / "uneven.gguf", QuantizeOptions(find_recipe("q4_0"), pure=True)
    for name, use_awq, threads in (("a", False, 2), ("b", True, 1), ("c", True, 3)):
        write(path, tmp_path / name, settings, importance=data, awq=use_awq, threads=threads)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    errors = {}
    with open_gguf(path) as old, open_gguf(tmp_path / "a") as plain, open_gguf(tmp_path / "b") as scaled:
        up = FORMATS["q4_0"].decode(scaled.array("blk.0.ffn_up.weight"))
        x = old.array("blk.0.ffn_up.weight")
        scales = np.einsum("rk,rk->r", x, x) / np.einsum("rk,rk->r", up, x)
        for name, found, by in (("a", plain, 1), ("b", scaled, scales)):
            down = FORMATS["q4_0"].decode(found.array("blk.0.ffn_down.weight")) / by
            errors[name] = np.square(down - old.array("blk.0.ffn_down.weight")).sum()
    assert errors["b"] < 0.9 * errors["a"]


def find(path: Path, type: str = "Q8_0", known: set[str] | None = None, **more: object) -> set[str]:
    """Names of the producers of every mapping of layer 1."""
    with open_gguf(path) as source:
        settings = QuantizeOptions(find_recipe(type), **more)  # type: ignore[arg-type]
        choices = plan_tensors(source, settings)
        data = {k: v for k, v in importance(path).items() if known is None or k in known}
        mappings = awq.possible_mappings(source, choices, Diagonals(data))
    return {
        name.split(".")[2] for mapping in mappings for name in mapping.producers if name.startswith("blk.1.")
    }


def rewritten(path: Path, drop: str = "", add: str = "", narrow: str = "") -> Path:
    """The model without a tensor, with another, or with one in f16."""
    target = path.with_name("changed.gguf")
    with open_gguf(path) as source:
        given = [t for t in sources(source) if t.name != drop]
        if add:
            given.append(TensorSource(add, (tiny.WIDTH,), "f32", np.ones(tiny.WIDTH, np.float32)))
        if narrow:
            x = source.array(narrow)
            half = TensorSource(narrow, x.shape, "f16", x.astype(np.float16))
            given = [half if t.name == narrow else t for t in given]
        write_gguf(target, source.metadata, given)
    return target


ALL = {"attn_norm", "ffn_norm", "attn_v", "ffn_up"}


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({}, ALL),
        ({"add": "blk.1.post_attention_norm.weight"}, set()),
        ({"add": "blk.1.attn_norm_2.weight"}, set()),
        ({"add": "blk.0.attn_qkv.weight"}, ALL),
        ({"drop": "blk.1.ffn_gate.weight"}, ALL - {"ffn_up"}),
        ({"drop": "blk.1.attn_norm.weight"}, ALL - {"attn_norm"}),
        ({"narrow": "blk.1.ffn_norm.weight"}, ALL - {"ffn_norm"}),
    ],
)
def test_only_known_tensors_are_scaled(change: dict[str, str], left: set[str], tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    assert find(rewritten(path, **change)) == left


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("attn_k", ALL - {"attn_norm"}),
        ("attn_v", ALL - {"attn_norm", "attn_v"}),
        ("ffn_up", ALL - {"ffn_norm", "ffn_up"}),
        ("ffn_down", ALL - {"ffn_up"}),
    ],
)
def test_matrices_that_stay_narrow_are_not_scaled(pattern: str, left: set[str], tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    assert find(path, overrides=[(pattern, "f16")]) == left
    assert find(path, overrides=[(pattern, "f32")]) >= left


def test_a_router_that_is_not_f32_keeps_its_norm(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "qwen3moe", "f32")
    assert find(path) == {"attn_norm", "attn_v", "ffn_norm"}
    assert find(rewritten(path, narrow="blk.1.ffn_gate_inp.weight")) == {"attn_norm", "attn_v"}


@pytest.mark.parametrize("heads", [(4, 3), (4, 4), (5, 2), (1, 2), (0, 0), (0, 2)])
def test_heads_that_do_not_share_evenly(heads: tuple[int, int], tmp_path: Path) -> None:
    keys = {f"llama__attention__head_count{end}": n for end, n in zip(("", "_kv"), heads, strict=True)}
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32", **keys)
    assert find(path) == ALL - {"attn_v"}


def test_what_is_not_met_is_not_scaled(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    assert find(path, known={"blk.1.ffn_down.weight", "blk.1.attn_q.weight"}) == {"ffn_up"}
    with pytest.raises(RequestError, match="found none; leave out --awq"):
        find(path, known=set())
    with pytest.raises(RequestError, match="found none; leave out --awq"):
        find(path, "F16")


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    settings = QuantizeOptions(find_recipe("Q8_0"))
    with pytest.raises(RequestError, match="expected importance data"):
        write(path, tmp_path / "x.gguf", settings, awq=True)
    with open_gguf(path) as source:
        other = {**source.metadata, "general.architecture": "gemma"}
        write_gguf(tmp_path / "other.gguf", other, sources(source))
    with pytest.raises(RequestError, match="got 'gemma'"):
        write(tmp_path / "other.gguf", tmp_path / "x.gguf", settings, importance=importance(path), awq=True)
    assert not (tmp_path / "x.gguf").exists()
    assert main(["quantize", str(path), str(tmp_path / "x.gguf"), "Q8_0", "--awq"]) == 2
    assert "give --imatrix FILE" in capsys.readouterr().err
    data = tmp_path / "i.gguf"
    data.write_bytes(b"")
    more = ["--target-size", "1MB", "--text", str(path), "--imatrix", str(data), "--awq"]
    assert main(["quantize", str(path), str(tmp_path / "x.gguf"), *more]) == 2
    assert "--save-rules first" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("type", ["Q4_0", "Q2_K"])
def test_numbers_that_cannot_be_encoded(value: float, type: str, tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    with open_gguf(path) as source:
        x = np.full(source.info("blk.1.ffn_down.weight").shape, value, np.float32)
        bad = TensorSource("blk.1.ffn_down.weight", x.shape, "f32", x)
        write_gguf(
            tmp_path / "bad.gguf",
            source.metadata,
            [bad if t.name == bad.name else t for t in sources(source)],
        )
    settings, data = QuantizeOptions(find_recipe(type)), importance(path)
    with pytest.raises(RequestError, match=r"tensor blk\.1\.ffn_down\.weight"):
        write(tmp_path / "bad.gguf", tmp_path / "x.gguf", settings, importance=data, awq=True)


@pytest.mark.parametrize("wrong", [np.ones(7), np.full(tiny.FFN, np.nan), np.full(tiny.FFN, -1)])
def test_importance_that_does_not_fit(wrong: F32, tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    data = importance(path) | {"blk.1.ffn_down.weight": wrong.astype(np.float32)}
    with pytest.raises(RequestError, match=r"importance of blk\.1\.ffn_down\.weight: expected"):
        write(path, tmp_path / "x.gguf", QuantizeOptions(find_recipe("Q8_0")), importance=data, awq=True)


@pytest.mark.parametrize("dry", [False, True])
def test_the_command_takes_awq(dry: bool, tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "llama", "f32")
    sums = [
        Sums((name,), x.astype(np.float64)[None], np.ones(1), np.diag(x))
        for name, x in importance(path).items()
    ]
    write_importance(tmp_path / "i.gguf", sums, Origin(("x",), 1, 512))
    args = [str(path), str(tmp_path / "x.gguf"), "Q4_0", "--imatrix", str(tmp_path / "i.gguf"), "--awq"]
    assert main(["quantize", *args, *(["--dry-run"] if dry else [])]) == 0
    assert (tmp_path / "x.gguf").exists() != dry
