"""Any value at any key of a checkpoint's JSON files gives a model that loads, or one error line."""

import json
from pathlib import Path
from typing import Any

import pytest
import toy_checkpoint as toy
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import SatchelError
from satchel.formats.convert import tokenizerjson
from satchel.formats.convert.shaping import Shaping
from satchel.runtime.weights.sources import open_adapter, open_checkpoint

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([0, 1, 2, 4, 64, 288, 1e38, -1.0, "gptq", "yarn", "llama3", "linear", "<|im_end|>"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)
ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["yarn", "llama3", "linear", "dynamic", "default"])},
    optional=dict.fromkeys(
        (
            "factor",
            "rope_theta",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "partial_rotary_factor",
        ),
        LEAVES,
    ),
)
CONFIG_KEYS = (
    *toy.config("llama"),
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "_name_or_path",
)
TOKENIZER_KEYS = (
    "eos_token",
    "bos_token",
    "add_bos_token",
    "chat_template",
    "added_tokens_decoder",
    "tokenizer_class",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write(tmp_path_factory.mktemp("hostile") / "m", "llama", dtype="BF16")


def check(folder: Path, name: str, data: Any) -> None:
    """The folder with this file opens or is refused in one line; the file is then restored."""
    path = folder / name
    before = path.read_bytes() if path.exists() else None
    path.write_text(json.dumps(data))
    try:
        with pytest.MonkeyPatch.context() as patch:
            if (
                name != "tokenizer.json"
            ):  # the probes take most of the time, and do not depend on the other files
                patch.setattr(tokenizerjson, "find_pretokenizer", lambda *_: "qwen2")
            with open_checkpoint(folder, Shaping(grids=False)) as source:
                assert source.tensors
    except SatchelError as error:
        assert "\n" not in str(error) and len(str(error)) < 2500
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


@given(key=st.sampled_from(CONFIG_KEYS), value=VALUES)
def test_any_value_in_the_config(folder: Path, key: str, value: Any) -> None:
    check(folder, "config.json", toy.config("llama") | {key: value})


@given(rope=ROPE)
def test_any_rotary_scaling(folder: Path, rope: dict[str, Any]) -> None:
    check(folder, "config.json", toy.config("llama") | {"rope_parameters": rope})


@given(key=st.sampled_from(TOKENIZER_KEYS), value=VALUES)
def test_any_value_in_the_tokenizers_settings(folder: Path, key: str, value: Any) -> None:
    check(folder, "tokenizer_config.json", {key: value})


@given(key=st.sampled_from(["eos_token_id", "bos_token_id"]), value=VALUES)
def test_any_value_in_the_generation_config(folder: Path, key: str, value: Any) -> None:
    check(folder, "generation_config.json", {key: value})


@given(
    key=st.sampled_from(
        ["added_tokens", "model", "normalizer", "pre_tokenizer", "post_processor", "decoder"]
    ),
    value=VALUES,
)
def test_any_value_in_the_tokenizer(folder: Path, key: str, value: Any) -> None:
    check(folder, "tokenizer.json", toy.tokenizer() | {key: value})


@given(
    key=st.sampled_from(
        ["vocab", "merges", "unk_token", "byte_fallback", "ignore_merges", "type", "dropout"]
    ),
    value=VALUES,
)
def test_any_value_in_the_tokenizers_model(folder: Path, key: str, value: Any) -> None:
    data = toy.tokenizer()
    data["model"] |= {key: value}
    check(folder, "tokenizer.json", data)


@given(
    key=st.sampled_from(["r", "lora_alpha", "use_rslora", "rank_pattern", "peft_type", "bias", "use_dora"]),
    value=VALUES,
)
def test_any_value_in_an_adapters_config(folder: Path, key: str, value: Any) -> None:
    import numpy as np

    lora = folder.parent / "lora"
    lora.mkdir(exist_ok=True)
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    factors = {
        f"{name}A.weight": np.ones((2, 64), np.float32),
        f"{name}B.weight": np.ones((96, 2), np.float32),
    }
    (lora / "adapter_model.safetensors").write_bytes(toy.safetensors(toy.stored(factors)))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": True} | {key: value}
    (lora / "adapter_config.json").write_text(json.dumps(config))
    try:
        with open_adapter(lora, folder) as source:
            assert source.tensors
    except SatchelError as error:
        assert "\n" not in str(error)
