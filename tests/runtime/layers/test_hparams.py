"""Hyper-parameters that are valid GGUF and invalid for the model: each is one ModelError that names the key
or tensor.
"""

import math

import numpy as np
import pytest
import tiny

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata
from satchel.formats.verify_values import NOT_A_NUMBER, judge
from satchel.quant import FORMATS
from satchel.runtime.layers.arch import Cache, HParams, find_arch

CACHE = Cache(context=tiny.CONTEXT)
GONE = object()


def build(arch: str, changed: dict[str, object], w: tiny.TinyWeights | None = None) -> None:
    values = dict(tiny.metadata(arch).items())
    for key, value in changed.items():
        name = f"{arch}.{key}"
        if value is GONE:
            values.pop(name)
        else:
            values[name] = value
    meta = Metadata.of(values, "x.gguf")
    find_arch(arch)(HParams(meta, arch), w or tiny.weights(arch), CACHE).build()


HEADS, KV = "attention.head_count", "attention.head_count_kv"
CASES = [
    ("M01", "block_count", 0),
    ("M01", "block_count", 513),
    ("M01", "block_count", 2**31),
    ("M01", "block_count", "3"),
    ("M01", "block_count", 3.0),
    ("M01", "block_count", GONE),
    ("M01", "block_count", 4),
    ("M02", HEADS, 0),
    ("M02", HEADS, GONE),
    ("M02", HEADS, 2**20),
    ("M02", KV, 0),
    ("M02", KV, 3),
    ("M02", KV, 8),
    ("M02", KV, [2, 2]),
    ("M02", KV, [2, 2, 2, 2]),
    ("M02", KV, [2, 0, 2]),
    ("M02", KV, [2, -2, 2]),
    ("M03", "embedding_length", 0),
    ("M03", "embedding_length", -1),
    ("M03", "embedding_length", 512),
    ("M03", "embedding_length", 2**32 - 1),
    ("M03", "feed_forward_length", 0),
    ("M03", "feed_forward_length", 100),
    ("M03", "feed_forward_length", GONE),
    ("M03", "context_length", 0),
    ("M03", "context_length", -5),
    ("M03", "vocab_size", 0),
    ("M03", "vocab_size", 7),
    ("M04", "rope.dimension_count", 63),
    ("M04", "rope.dimension_count", 128),
    ("M04", "rope.dimension_count", 0),
    ("M04", "rope.freq_base", 0.0),
    ("M04", "rope.freq_base", math.nan),
    ("M04", "rope.freq_base", math.inf),
    ("M04", "rope.freq_base", -1.0),
    ("M04", "rope.scaling.factor", 0.0),
    ("M04", "rope.scaling.type", "spiral"),
    ("M05", "attention.layer_norm_rms_epsilon", 0.0),
    ("M05", "attention.layer_norm_rms_epsilon", -1e-5),
    ("M05", "attention.layer_norm_rms_epsilon", math.nan),
    ("M05", "attention.scale", math.inf),
    ("M02", "attention.key_length", 0),
    ("M02", "attention.key_length", 48),
]


@pytest.mark.parametrize(("row", "key", "value"), CASES, ids=[f"{r}-{k}-{v!s:.20}" for r, k, v in CASES])
def test_bad_values_name_the_key(row: str, key: str, value: object) -> None:
    with pytest.raises(ModelError) as caught:
        build("llama", {key: value})
    text = str(caught.value)
    assert "\n" not in text and ("llama." in text or "blk." in text or ".weight" in text)


def test_good_values_load() -> None:
    build("llama", {})
    build("llama", {KV: [2, 2, 2], "vocab_size": tiny.VOCAB})


@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output_norm.weight", "token_embd.weight"])
def test_m14_a_missing_tensor_is_named(name: str) -> None:
    w = tiny.weights("llama")
    del w.tensors[name]
    with pytest.raises(ModelError, match=name):
        build("llama", {}, w)


def test_m14_a_transposed_tensor_is_named_with_both_shapes() -> None:
    w = tiny.weights("llama")
    w.put("blk.0.ffn_down.weight", np.zeros((tiny.FFN, tiny.WIDTH), np.float32))
    with pytest.raises(
        ModelError, match=r"blk.0.ffn_down.weight: expected shape \(256, 512\), got \(512, 256\)"
    ):
        build("llama", {}, w)


def test_m14_an_unknown_tensor_is_named() -> None:
    w = tiny.weights("llama")
    w.put("blk.0.wormhole.weight", np.zeros((4, 4), np.float32))
    with pytest.raises(ModelError, match=r"blk\.0\.wormhole\.weight"):
        build("llama", {}, w)


def test_m14_an_output_of_its_own_beside_the_embedding_is_used() -> None:
    forward = tiny.build("llama", tiny.weights("llama", tied=False), CACHE)
    assert forward.logits.src[1].name == "output.weight"


@pytest.mark.parametrize("format", ["f32", "f16", "q8_0", "q4_k"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_m15_a_value_that_is_no_number_is_found(format: str, bad: float) -> None:
    w = tiny.weights("llama", format)
    good = w.tensors["blk.2.ffn_up.weight"]
    assert judge(FORMATS[format], good) == {}
    spoiled = good.copy()
    if spoiled.dtype.names:
        spoiled["d"][5, 0] = bad
    else:
        spoiled[5, 3] = bad
    found = judge(FORMATS[format], spoiled)
    assert list(found) == [NOT_A_NUMBER] and np.flatnonzero(found[NOT_A_NUMBER].any(axis=1)).tolist() == [5]


def test_an_unknown_architecture_lists_what_there_is() -> None:
    with pytest.raises(
        ModelError, match=r"x.gguf: architecture 'gpt-neox' is not supported; .* llama, .* qwen2, .* qwen3"
    ):
        find_arch("gpt-neox", "x.gguf")
    for name in ("../etc", "os", "", "llama.x"):
        with pytest.raises(ModelError, match="not supported"):
            find_arch(name)


def test_rope_scaling_kinds() -> None:
    """linear divides frequencies, llama3's factors are the file's, yarn keeps fast pairs and interpolates
    slow ones.
    """
    from satchel.runtime.layers.blocks import rope_frequencies

    def frequencies(extra: dict[str, object], w: tiny.TinyWeights | None = None):
        meta = Metadata.of({**tiny.metadata("llama"), **{f"llama.{k}": v for k, v in extra.items()}})
        return rope_frequencies(
            find_arch("llama")(HParams(meta, "llama"), w or tiny.weights("llama"), CACHE), 64
        )

    plain, one = frequencies({})
    assert one == 1 and plain[0] == 1 and np.all(np.diff(plain) < 0)
    linear, _ = frequencies({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    np.testing.assert_allclose(linear * 4, plain, rtol=1e-6)
    w = tiny.weights("llama")
    w.put("rope_freqs.weight", np.linspace(1, 8, 32, dtype=np.float32))
    np.testing.assert_allclose(frequencies({}, w)[0] * np.linspace(1, 8, 32), plain, rtol=1e-6)
    yarn, scale = frequencies(
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "context_length": 4096}
    )
    assert (
        yarn[0] == plain[0]
        and yarn[-1] == pytest.approx(plain[-1] / 4)
        and scale == pytest.approx(1.1386, 1e-4)
    )
