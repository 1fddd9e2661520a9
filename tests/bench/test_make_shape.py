"""Tests of bench/make_shape.py: shapes have the published numbers of parameters, a small file of each runs,
and files are the same each time.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import make_shape
import numpy as np
import pytest
from shapes import SHAPES, DeltaNet, Latent, Rope, Shape

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import build_tokenizer
from satchel.quant import FORMATS
from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import libraries
from satchel.runtime.engine.batch_entry import BatchEntry

needs_cpu = pytest.mark.skipif(
    "cpu" not in {f.name for f in libraries() if not f.reason}, reason="no CPU backend is installed"
)
# Billions of parameters and tensors of the real files; 0: not known. Llama 4 and Gemma 3 without their eyes.
REAL = {
    "llama-3.1-8b": (8.03, 292),
    "llama-3.3-70b": (70.554, 724),
    "qwen2.5-0.5b": (0.494, 290),
    "qwen2.5-7b": (7.616, 339),
    "qwen3-8b": (8.191, 399),
    "qwen3-14b": (14.768, 443),
    "qwen3-30b-a3b": (30.532, 579),
    "qwen3-next-80b-a3b": (79.674, 843),
    "deepseek-v2-lite": (15.706, 0),
    "deepseek-r1": (671.026, 0),
    "gpt-oss-20b": (20.915, 459),
    "gemma-3-4b": (3.88, 444),
    "gemma-3-12b": (11.766, 626),
    "llama-4-scout": (107.77, 0),
}


@pytest.mark.parametrize("name", REAL)
def test_shapes_have_the_published_parameters(name: str) -> None:
    s, (billions, tensors) = SHAPES[name], REAL[name]
    found = make_shape.tensor_shapes(replace(s, layers=s.whole or s.layers))
    assert sum(map(prod, found.values())) == pytest.approx(billions * 1e9, abs=6e5)
    assert len(found) == tensors or not tensors


def small(s: Shape) -> Shape:
    """The same parts in small sizes."""
    m, latent = s.mixture, s.latent
    if m is not None:
        m = replace(
            m,
            experts=16,
            used=min(m.used, 3),
            ffn=256,
            shared=256 * bool(m.shared),
            dense=min(m.dense, 1),
            groups=4 * bool(m.groups),
            groups_used=2 * bool(m.groups_used),
        )
    if latent is not None:
        latent = Latent(64, 32, 32, 32, 128 * bool(latent.queries))
    return replace(
        s,
        layers=4,
        whole=0,
        width=256,
        heads=4,
        kv_heads=min(s.kv_heads, 2),
        head_dim=96 if latent else 64,
        ffn=512,
        vocab=16640,
        window=16 * bool(s.window),
        rope=replace(s.rope, dims=32 * bool(s.rope.dims)),
        mixture=m,
        latent=latent,
        delta=s.delta and DeltaNet(2, 4, 64, 4, 2),
    )


@needs_cpu
@pytest.mark.parametrize("name", SHAPES)
def test_a_small_file_of_each_shape_runs(name: str, tmp_path: Path) -> None:
    type = "MXFP4_MOE" if name.startswith("gpt-oss") else "Q4_K_M"
    path = make_shape.write(name, small(SHAPES[name]), type, tmp_path / "small.gguf")
    with Model.load(path, context=64) as model:
        assert not model.notes, "nothing in the file is left unread"
        logits = model.engine.logits([BatchEntry(0, range(5, 45))])
    assert np.isfinite(logits).all() and logits.std() > 0.1
    assert len(set(logits.argmax(-1).tolist())) > 5, "what comes next hangs on what was"


def test_a_shape_is_cut_to_layers_and_tokens(tmp_path: Path) -> None:
    path = make_shape.make("tiny", "Q8_0", tmp_path / "a.gguf", layers=1, vocab=17000)
    with open_gguf(path) as gguf:
        assert gguf.metadata.get_uint("llama.block_count") == 1
        assert gguf.tensors["token_embd.weight"].shape == (17000, 256)
        tokenizer = build_tokenizer(gguf.metadata)
        assert tokenizer.decode([16999]) == " more615", "an answer with such tokens has text"
        assert max(tokenizer.encode("Hello more615")) < 16384
        assert not any(name.startswith("blk.1.") for name in gguf.tensors)
    for wrong in ({"layers": 3}, {"layers": -1}, {"vocab": 100}):
        with pytest.raises(RequestError, match=r"--(layers|vocab): expected"):
            make_shape.make("tiny", "Q8_0", tmp_path / "b.gguf", **wrong)
    assert list(tmp_path.iterdir()) == [path]


def test_part_of_a_model_can_be_written_whole() -> None:
    r1 = SHAPES["deepseek-r1"]
    names = make_shape.tensor_shapes(r1)
    assert (r1.layers, r1.whole) == (8, 61)
    assert [f"blk.{i}.ffn_gate_exps.weight" in names for i in range(8)] == [False] * 3 + [True] * 5


def test_gpt_oss_has_the_formats_of_its_files() -> None:
    formats = make_shape.tensor_formats(SHAPES["gpt-oss-20b"], "MXFP4_MOE")
    kinds = {name.removeprefix("blk.3."): format for name, format in formats.items()}
    assert {kinds[f"ffn_{n}_exps.weight"] for n in ("gate", "up", "down")} == {"mxfp4"}
    assert kinds["attn_q.weight"] == kinds["output.weight"] == kinds["token_embd.weight"] == "q8_0"
    assert kinds["ffn_gate_exps.bias"] == kinds["attn_sinks.weight"] == kinds["ffn_gate_inp.weight"] == "f32"


def test_rings_are_shared_by_larger_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is longer than its ring goes round, block by block, and each begins elsewhere."""
    monkeypatch.setattr(make_shape, "RING", 34 * 100)
    monkeypatch.setattr(make_shape, "PIECE", 34 * 32)
    rings = make_shape.Rings(np.random.default_rng(3), {"q8_0": 32 * 1000})
    ring = bytes(rings.data["q8_0"])
    found = [b"".join(rings.stretch("q8_0", 34 * 250)) for _ in range(3)]
    assert len(ring) == 34 * 100 and len(set(found)) > 1
    for made in found:
        assert len(made) == 34 * 250 and made[: 34 * 100] == made[34 * 100 : 34 * 200]
        at = (ring + ring).find(made[: 34 * 100])
        assert at >= 0 and at % 34 == 0


@pytest.mark.parametrize(
    ("shape", "type", "narrow"), [("tiny", "Q4_K_M", ""), ("tiny", "q8_0", ""), ("tiny", "BF16", "")]
)
def test_made_files_are_whole_and_the_same_each_time(
    tmp_path: Path, shape: str, type: str, narrow: str
) -> None:
    first = make_shape.make(shape, type, tmp_path / "a.gguf", narrow)
    again = make_shape.make(shape, type, tmp_path / "b.gguf", narrow)
    assert first.read_bytes() == again.read_bytes()
    assert make_shape.make(shape, type, again, narrow, seed=1).read_bytes() != first.read_bytes()
    with open_gguf(first) as gguf:
        assert gguf.metadata.get_str("general.architecture") == "llama"
        assert {i.format for i in gguf.tensors.values()} <= {"q4_k", "q6_k", "q8_0", "bf16", "f32"}


@pytest.mark.parametrize("format", [*make_shape.SCALES, "f16", "bf16", "f32"])
def test_random_blocks_decode_to_numbers_of_a_weights_size(format: str) -> None:
    blocks = make_shape.random_blocks(np.random.default_rng(1), format, 1 << 16)
    x = FORMATS[format].decode(blocks.view(FORMATS[format].dtype))
    assert x.size == 1 << 16 and np.isfinite(x).all()
    assert make_shape.DEVIATION / 4 < x.std() < make_shape.DEVIATION * 4


def test_narrow_rows_take_the_format_that_was_asked_for() -> None:
    shape = SHAPES["qwen2.5-0.5b"]
    wide = make_shape.tensor_formats(shape, "Q4_K_M", "q8_0")
    assert (wide["blk.0.attn_q.weight"], wide["token_embd.weight"]) == ("q8_0", "q8_0")
    assert {wide[f"blk.{i}.ffn_down.weight"] for i in range(24)} == {"q4_k", "q6_k"}
    assert make_shape.tensor_formats(shape, "Q4_K_M")["blk.0.attn_q.weight"] == "q5_0"
    assert make_shape.tensor_formats(shape, "BF16", "q8_0")["blk.0.attn_q.weight"] == "bf16"


def test_unknown_shapes_types_and_formats_are_errors(tmp_path: Path) -> None:
    for shape, type, narrow in (
        ("tiny2", "Q8_0", ""),
        ("tiny", "Q9", ""),
        ("tiny", "Q8_0", "q3"),
        ("tiny", "Q5_1", ""),
    ):
        with pytest.raises(RequestError):
            make_shape.make(shape, type, tmp_path / "x.gguf", narrow)
    with pytest.raises(RequestError, match="can't be written"):
        make_shape.make("tiny", "Q8_0", Path("/dev/null/x.gguf"))
    assert list(tmp_path.iterdir()) == []


def test_a_shape_says_where_its_sizes_are_from() -> None:
    assert all(s.source.count("/") == 1 for name, s in SHAPES.items() if name != "tiny")
    assert SHAPES["gemma-3-1b"].rope == Rope(1e6)
