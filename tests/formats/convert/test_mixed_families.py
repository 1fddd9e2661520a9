"""Converted families with unusual layers: a small random model computes what transformers computes."""

from __future__ import annotations

import json
from pathlib import Path

import families
import mixed_families as mixed
import numpy as np
import pytest
import toy_checkpoint as toy
from accuracy import nmse
from peer import peer_rows

from satchel.errors import RequestError
from satchel.formats.convert.write import write_source
from satchel.quant import FORMATS
from satchel.runtime.api.model import Model
from satchel.runtime.weights.sources import open_checkpoint

NMSE = 1e-6
SHAPES = json.loads(mixed.STEM.with_suffix(".json").read_text())


def converted(folder: Path, case: str, **changes: object) -> Path:
    source = families.write(folder / case, mixed.config(case) | changes, families.values_of(SHAPES[case]))
    with open_checkpoint(source) as opened:
        return write_source(opened, folder / f"{case}.gguf")[0]


@pytest.mark.parametrize("case", mixed.CASES)
def test_logits_are_those_that_transformers_gave(case: str, tmp_path: Path) -> None:
    """tests/data/convert/make_mixed.py stores the logits."""
    with np.load(mixed.STEM.with_suffix(".npz")) as stored:
        want = stored[case].astype(np.float64)
    with Model.load(converted(tmp_path, case), cache_type="f32", threads=1) as model:
        got = np.asarray(model.logits(families.IDS))[list(families.KEPT)]
    assert nmse(got, want) < NMSE


def test_phimoe_takes_longropes_long_factors_beyond_the_original_context(tmp_path: Path) -> None:
    """transformers uses its short list for every length; so its logits with that list are those that we must
    have with the same numbers as the long list.
    """
    rope = mixed.config("phimoe_long")["rope_scaling"]
    swapped = rope | {"long_factor": rope["short_factor"], "short_factor": rope["long_factor"]}
    swapped |= {"original_max_position_embeddings": 16}
    path = converted(tmp_path, "phimoe_long", rope_scaling=swapped, original_max_position_embeddings=16)
    with np.load(mixed.STEM.with_suffix(".npz")) as stored:
        want = stored["phimoe_long"].astype(np.float64)
    for context, same in ((128, True), (16, False)):
        with Model.load(path, cache_type="f32", threads=1, context=context) as model:
            ids = families.IDS[:6]
            got = np.asarray(model.logits(ids))[5]
        assert (nmse(got, want[0]) < NMSE) == same


def test_blocks_of_four_bit_floats_keep_their_codes(tmp_path: Path) -> None:
    """A checkpoint with gpt-oss's published codes gives the same result as one with float experts."""
    rng, values = np.random.default_rng(1), families.values_of(SHAPES["gpt_oss"])
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    packed: dict[str, tuple[str, np.ndarray]] = {}
    for name in [n for n in values if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = values[name].shape
        blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        scales = rng.integers(120, 126, blocks.shape[:-1], dtype=np.uint8)
        codes = np.stack((blocks & 15, blocks >> 4), -1).reshape(*scales.shape, 32)
        numbers = np.where(codes & 8, -1, 1) * table[codes & 7] * 2.0 ** (scales[..., None].astype(int) - 127)
        values[name] = numbers.reshape(experts, outputs, inputs).swapaxes(1, 2).astype(np.float32)
        packed |= {f"{name}_blocks": ("U8", blocks), f"{name}_scales": ("U8", scales)}
    plain = families.write(tmp_path / "plain", mixed.config("gpt_oss"), values)
    settings = mixed.config("gpt_oss") | {"quantization_config": {"quant_method": "mxfp4"}}
    rest = {n: v for n, v in values.items() if f"{n}_blocks" not in packed}
    source = families.write(tmp_path / "packed", settings, rest)
    (source / "model.safetensors").write_bytes(toy.safetensors(toy.stored(rest) | packed))
    with open_checkpoint(plain) as a, open_checkpoint(source) as b:
        assert set(a.tensors) == set(b.tensors)
        for name in (n for n in a.tensors if "_exps.weight" in n):
            assert b.tensors[name].format == "mxfp4" and a.tensors[name].shape == b.tensors[name].shape
            want = np.frombuffer(b"".join(a.chunks(name)), np.float32)
            got = np.frombuffer(b"".join(b.chunks(name)), FORMATS["mxfp4"].dtype)
            np.testing.assert_array_equal(FORMATS["mxfp4"].decode(got).ravel(), want)


@pytest.mark.parametrize("case", mixed.ENCODERS)
def test_an_encoder_gives_the_hidden_states_of_transformers(case: str, tmp_path: Path) -> None:
    """In a batch and alone; the encoder refuses to generate, and refuses a text longer than a step."""
    with np.load(mixed.STEM.with_suffix(".npz")) as stored:
        want = stored[case].astype(np.float64)
    with Model.load(converted(tmp_path, case), cache_type="f32", threads=1, batch=40) as model:
        alone = model.embed_tokens([families.IDS], normalize=False)[0]
        texts = [families.IDS[:n] for n in (3, 24, 9, 24, 1)]
        beside = model.embed_tokens(texts, normalize=False)
        with pytest.raises(RequestError, match="embeddings, not text"):
            model.generate([7, 8], max_tokens=1)
        with pytest.raises(RequestError, match="embeddings, not text"):
            model.logits([7, 8])
        with pytest.raises(RequestError, match="reads a text in one step"):
            model.embed([list(range(7, 50))])
    assert nmse(alone[list(families.KEPT)], want) < NMSE
    np.testing.assert_array_equal(beside[1], alone)
    np.testing.assert_array_equal(beside[3], alone)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [c for c in mixed.ENCODERS if c not in mixed.UNKNOWN_TO_PEER])
def test_an_encoder_gives_the_hidden_states_of_llama_cpp(case: str, tmp_path: Path) -> None:
    path = converted(tmp_path, case)
    with Model.load(path, cache_type="f32", threads=1) as model:
        ours = model.embed_tokens([families.IDS], normalize=False)[0]
    assert nmse(ours, peer_rows(path, families.IDS)) < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize("case", [c for c in mixed.CASES if c not in mixed.UNKNOWN_TO_PEER])
def test_llama_cpp_reads_the_file_and_agrees(case: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = converted(tmp_path, case)
    with Model.load(path, cache_type="f32", threads=1) as model:
        ours = np.asarray(model.logits(families.IDS))
    peer = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False, flash_attn=False)
    peer.eval(families.IDS)
    theirs = np.array(peer.scores[: len(families.IDS)])
    peer.close()
    assert nmse(ours, theirs) < 1e-4
