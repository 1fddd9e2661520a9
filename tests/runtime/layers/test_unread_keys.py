"""Keys of an architecture: an invalid value is one error that names the key; an unread key is refused where
it would change the result.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tiny

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata
from satchel.runtime.layers.arch import Arch, Cache, HParams, architectures, find_arch

SHORT = Cache(context=tiny.CONTEXT)
WRONG: tuple[object, ...] = (
    *("x\ny", "", [0], [1, 2], ["a"], True, -1, -(2**40), 2**63 - 1),
    *(float("nan"), float("inf"), -float("inf"), -1.5, 1e38),
)
NOTHING = object()


@cache
def made(arch: str) -> tuple[dict[str, object], tiny.TinyWeights]:
    return dict(tiny.metadata(arch).items()), tiny.weights(arch)


def build(arch: str, **changed: object) -> Arch:
    values, weights = made(arch)
    values = values | {f"{arch}.{key}": value for key, value in changed.items()}
    meta = Metadata.of({k: v for k, v in values.items() if v is not NOTHING}, "x.gguf")  # type: ignore[misc]
    built = find_arch(arch)(HParams(meta, arch), weights, SHORT)
    built.build()
    return built


def kind(value: object) -> type:
    return type(value[0]) if isinstance(value, list | np.ndarray) and len(value) else type(value)


@pytest.mark.parametrize("arch", architectures())
def test_no_value_of_a_key_crashes_or_passes_as_another_kind(arch: str) -> None:
    """Every key that the architecture reads, with a few values out of all that are wrong for most keys: an
    error of one line that names the key or a tensor, or a model that is built of numbers.
    """
    rng, values = np.random.default_rng(len(arch)), made(arch)[0]
    for key in sorted(build(arch).hp.read_keys):
        for at in rng.permutation(len(WRONG))[:2]:
            value = WRONG[at]
            try:
                built = build(arch, **{key: value})
            except ModelError as error:
                assert "\n" not in str(error)
                assert (
                    key in str(error) or ".weight" in str(error) or "blk." in str(error) or arch in str(error)
                )
                continue
            usual = values.get(f"{arch}.{key}")
            assert not (isinstance(value, float) and not np.isfinite(value)), (key, value)
            assert usual is None or kind(value) is not str or kind(usual) is str, (key, value)
            assert all(np.isfinite(array).all() for array in constants(built)), (key, value)


def constants(built: Arch) -> list[np.ndarray]:
    return [node.arg("value").array for node in built.graph._nodes.values() if node.op == "const"]


REFUSED: list[tuple[str, str, object]] = [
    ("llama", "attn_logit_softcapping", 50.0),
    ("llama", "final_logit_softcapping", 30.0),
    ("llama", "attention.sliding_window", 32),
    ("llama", "attention.clamp_kqv", 8.0),
    ("llama", "attention.some_new_flag", True),
    ("llama", "logit_scale", 0.5),
    ("llama", "residual_scale", 0.22),
    ("llama", "embedding_scale", 12.0),
    ("llama", "rope.freq_base_swa", 1000.0),
    ("llama", "rope.scaling.alpha", 1000.0),
    ("llama", "attention.causal", False),
    ("qwen3", "expert_count", 8),
    ("qwen3moe", "expert_gating_func", 2),
    ("qwen3moe", "expert_weights_norm", False),
    ("qwen3moe", "expert_weights_scale", 2.5),
    ("qwen3moe", "expert_group_count", 4),
    ("gemma2", "attention.temperature_scale", 0.1),
    ("gemma4", "rope.dimension_count_swa", 32),
    ("granite", "expert_count", 4),
    ("phi3", "attention.sliding_window_pattern", [True, False, True]),
]


@pytest.mark.parametrize(("arch", "key", "value"), REFUSED)
def test_a_key_that_would_change_the_numbers_and_is_not_read_is_refused(
    arch: str, key: str, value: object
) -> None:
    with pytest.raises(ModelError, match=rf"{arch}\.{key.replace('.', '[.]')}: expected") as caught:
        build(arch, **{key: value})
    assert "\n" not in str(caught.value)


NEUTRAL: list[tuple[str, str, object]] = [
    ("llama", "attention.sliding_window", tiny.CONTEXT),
    ("llama", "final_logit_softcapping", 0.0),
    ("llama", "expert_used_count", 2),  # of no experts
    ("llama", "rope.scaling.yarn_beta_fast", 32.0),  # of no YaRN
    ("llama", "rope.scaling.original_context_length", 8192),
    ("llama", "logit_scale", 1.0),
    ("llama", "attention.causal", True),
    ("llama", "tensor_data_layout", "Meta AI original pth"),
    ("llama", "vocab_size", tiny.VOCAB),
    ("llama", "rope.freq_base_swa", 10000.0),  # as all layers have it
    ("qwen3moe", "expert_gating_func", 1),
    ("qwen3moe", "expert_weights_norm", True),
    ("gemma4", "rope.dimension_count_swa", 64),
]


@pytest.mark.parametrize(("arch", "key", "value"), NEUTRAL)
def test_a_key_that_changes_nothing_is_left_alone(arch: str, key: str, value: object) -> None:
    assert build(arch, **{key: value}).notes == ()


def test_a_key_that_nobody_knows_is_told() -> None:
    built = build("llama", colour="green")
    assert built.notes == ("llama.colour says nothing to this version and is left out",)


def test_granite_files_that_switch_their_positions_off_turn_nothing() -> None:
    rotates = {
        flag: any(node.op == "rope" for node in build("granite", **changed).graph._nodes.values())
        for flag, changed in ((True, {}), (False, {"rope.scaling.finetuned": False}))
    }
    assert rotates == {True: True, False: False}
