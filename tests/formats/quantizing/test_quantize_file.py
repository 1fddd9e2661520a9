"""The quantize driver and command: written files, refusals, and that a refusal leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import TensorSource, open_gguf, write_gguf
from satchel.formats.quantize import QuantizeReport, find_recipe, plan_file, quantize_file
from satchel.quant import FORMATS

F32 = npt.NDArray[np.float32]
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "general.file_type": 0,
    "tokenizer.ggml.tokens": ["a", "b", "é"],
    "llama.block_count": 1,
}


def tensors() -> dict[str, F32]:
    rng = np.random.default_rng(31)
    shapes = {
        "token_embd.weight": (64, 256),
        "output_norm.weight": (256,),
        "blk.0.attn_v.weight": (32, 256),
        "blk.0.ffn_down.weight": (256, 96),
        "blk.0.ffn_up_exps.weight": (3, 8, 512),
        "blk.0.attn_q.bias": (256,),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) * 0.02 for name, shape in shapes.items()}


def write(path: Path, found: dict[str, F32], name: str = "f32") -> Path:
    encode = FORMATS[name].encode
    assert encode is not None
    kinds = {key: name if x.ndim > 1 else "f32" for key, x in found.items()}
    write_gguf(
        path,
        METADATA,
        [
            TensorSource(key, x.shape, kinds[key], encode(x, None) if x.ndim > 1 else x)
            for key, x in found.items()
        ],
    )
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", tensors())


def decoded(path: Path) -> dict[str, F32]:
    with open_gguf(path) as found:
        return {
            name: FORMATS[info.format].decode(found.array(name)).reshape(info.shape)
            for name, info in found.tensors.items()
        }


def test_writes_what_the_encoders_give(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.gguf"
    written: list[int] = []
    report = quantize_file(model, target, find_recipe("q4_k_m"), threads=3, progress=written.append)
    kinds = {choice.name: choice.target for choice in report.choices}
    assert kinds == {
        "token_embd.weight": "q6_k",
        "output_norm.weight": "f32",
        "blk.0.attn_v.weight": "q6_k",
        "blk.0.ffn_down.weight": "q8_0",
        "blk.0.ffn_up_exps.weight": "q4_k",
        "blk.0.attn_q.bias": "f32",
    }
    assert sum(written) == report.bytes_after == sum(choice.bytes_after for choice in report.choices)
    assert report == QuantizeReport(plan_file(model, find_recipe("Q4_K_M")).choices, report.errors)
    found = decoded(target)
    for name, x in tensors().items():
        encode = FORMATS[kinds[name]].encode
        assert encode is not None
        assert np.array_equal(found[name], FORMATS[kinds[name]].decode(encode(x, None)).reshape(x.shape))
        if kinds[name] != "f32":
            miss = np.sqrt(np.mean((found[name] - x) ** 2) / np.mean(x**2))
            assert report.errors[name] == pytest.approx(miss, rel=1e-4)
    with open_gguf(target) as small:
        assert small.metadata["general.file_type"] == 15
        assert small.metadata["general.quantization_version"] == 2
        assert list(small.metadata.get_array("tokenizer.ggml.tokens", kind="str")) == ["a", "b", "é"]


def test_the_gguf_package_reads_the_same(model: Path, tmp_path: Path) -> None:
    quantize_file(model, tmp_path / "small.gguf", find_recipe("Q5_K_S"))
    want = decoded(tmp_path / "small.gguf")
    for tensor in gguf.GGUFReader(tmp_path / "small.gguf").tensors:
        assert np.array_equal(
            gguf.dequantize(tensor.data, tensor.tensor_type).reshape(-1), want[tensor.name].ravel()
        )


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_S", "Q6_K"]
)
def test_every_recipe_writes_a_file_that_decodes_near_the_source(
    name: str, model: Path, tmp_path: Path
) -> None:
    quantize_file(model, tmp_path / "x.gguf", find_recipe(name))
    for key, x in tensors().items():
        y = decoded(tmp_path / "x.gguf")[key]
        assert float(np.sqrt(np.mean((y - x) ** 2) / np.mean(x**2))) < 0.12


def test_bytes_do_not_depend_on_threads_or_on_the_source_being_split(model: Path, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{i}.gguf" for i in range(3))
    quantize_file(model, first, find_recipe("Q4_K_M"), threads=1)
    quantize_file(model, second, find_recipe("Q4_K_M"), threads=4)
    assert first.read_bytes() == second.read_bytes()
    with open_gguf(model) as whole:
        sources = [
            TensorSource(n, t.shape, t.type_id, whole.raw(n).tobytes()) for n, t in whole.tensors.items()
        ]
    parts = write_gguf(tmp_path / "split.gguf", METADATA, sources, max_size=70000)
    assert len(parts) > 1
    quantize_file(parts[0], third, find_recipe("Q4_K_M"))
    assert third.read_bytes() == first.read_bytes()


def test_overrides_win_in_order(model: Path) -> None:
    overrides = [("attn_v", "q4_0"), ("attn", "f16"), ("ffn_down", "Q5_1")]
    report = plan_file(model, find_recipe("Q8_0"), overrides=overrides)
    kinds = {choice.name: choice.target for choice in report.choices}
    assert kinds["blk.0.attn_v.weight"] == "q4_0"
    assert kinds["blk.0.ffn_down.weight"] == "q5_1"
    assert kinds["blk.0.attn_q.bias"] == "f32"


def test_importance_changes_the_codes(model: Path, tmp_path: Path) -> None:
    rows = {"blk.0.attn_v.weight": np.linspace(0.01, 9, 256, dtype=np.float32) ** 2}
    quantize_file(model, tmp_path / "a.gguf", find_recipe("Q4_0"))
    quantize_file(model, tmp_path / "b.gguf", find_recipe("Q4_0"), importance=rows)
    plain, weighted = decoded(tmp_path / "a.gguf"), decoded(tmp_path / "b.gguf")
    assert {name for name in plain if not np.array_equal(plain[name], weighted[name])} == set(rows)
    for wrong in (rows["blk.0.attn_v.weight"][:-1], -rows["blk.0.attn_v.weight"]):
        with pytest.raises(RequestError, match="importance of blk"):
            quantize_file(
                model, tmp_path / "c.gguf", find_recipe("Q4_0"), importance={"blk.0.attn_v.weight": wrong}
            )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([("nothing_here", "q8_0")], "found none"),
        ([("attn_v", "a8_256")], "expected one of"),
        ([("attn_v", "q3_x")], "expected one of"),
        ([("attn_v", "i32")], "expected one of"),
        ([("(", "q8_0")], "regular expression"),
        ([("ffn_down", "q6_k")], "multiple of 256"),
        ([("output_norm", "q8_0")], "found none"),
    ],
)
def test_bad_overrides_are_refused(model: Path, overrides: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        plan_file(model, find_recipe("Q8_0"), overrides=overrides)


def refuses(error: type[Exception], words: str, source: Path, name: str) -> None:
    """The error in one line; the folder's content is unchanged."""
    target = source.parent / "out.gguf"
    target.write_bytes(b"what was here before")
    before = sorted(source.parent.iterdir())
    with pytest.raises(error, match=words) as caught:
        quantize_file(source, target, find_recipe(name))
    assert "\n" not in str(caught.value)
    assert sorted(source.parent.iterdir()) == before
    assert target.read_bytes() == b"what was here before"


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "F16"])
def test_numbers_that_are_not_finite_are_refused_by_tensor(tmp_path: Path, poison: float, name: str) -> None:
    found = tensors()
    found["blk.0.ffn_up_exps.weight"][2, 7, 511] = poison
    refuses(RequestError, r"blk\.0\.ffn_up_exps\.weight.*NaN", write(tmp_path / "model.gguf", found), name)


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_K_M", "Q4_0"])
def test_numbers_too_large_for_the_scales_are_refused_by_tensor(tmp_path: Path, name: str) -> None:
    found = tensors()
    found["blk.0.attn_v.weight"][3] = 1e30
    refuses(RequestError, r"blk\.0\.attn_v\.weight.*overflow", write(tmp_path / "model.gguf", found), name)


def test_a_quantized_source_needs_leave(tmp_path: Path) -> None:
    found = {key: x for key, x in tensors().items() if key != "blk.0.attn_q.bias"}
    source = write(tmp_path / "model.gguf", found, "q8_0")
    refuses(RequestError, "allow-requantize", source, "Q4_0")
    quantize_file(source, tmp_path / "x.gguf", find_recipe("Q4_0"), requantize=True)
    quantize_file(source, tmp_path / "y.gguf", find_recipe("Q8_0"))
    assert all(np.array_equal(decoded(tmp_path / "y.gguf")[key], x) for key, x in decoded(source).items())


def test_the_source_is_never_the_target(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    (tmp_path / "link.gguf").symlink_to(model)
    for target in (model, tmp_path / "link.gguf"):
        with pytest.raises(RequestError, match="another file than the source"):
            quantize_file(model, target, find_recipe("Q8_0"))
    assert model.read_bytes() == before


def cut_short(model: Path) -> bytes:
    return model.read_bytes()[:-1000]


def shape_too_large(model: Path) -> bytes:
    name = b"blk.0.attn_v.weight"
    data = bytearray(model.read_bytes())
    at = data.index(name) + len(name) + 4
    data[at : at + 16] = (2**40).to_bytes(8, "little") + (2**40).to_bytes(8, "little")
    return bytes(data)


def unknown_type(model: Path) -> bytes:
    name = b"blk.0.attn_v.weight"
    data = bytearray(model.read_bytes())
    at = data.index(name) + len(name) + 4 + 16
    data[at : at + 4] = (250).to_bytes(4, "little")
    return bytes(data)


def offset_past_the_end(model: Path) -> bytes:
    name = b"blk.0.attn_v.weight"
    data = bytearray(model.read_bytes())
    at = data.index(name) + len(name) + 4 + 16 + 4
    data[at : at + 8] = (2**50).to_bytes(8, "little")
    return bytes(data)


def experts_of_the_wrong_type(model: Path) -> bytes:
    with open_gguf(model) as whole:
        sources = [
            TensorSource(n, t.shape, t.type_id, whole.raw(n).tobytes()) for n, t in whole.tensors.items()
        ]
    other = model.with_name("other.gguf")
    write_gguf(other, METADATA | {"llama.expert_count": "many"}, sources)
    data = other.read_bytes()
    other.unlink()
    return data


@pytest.mark.parametrize(
    "damage",
    [
        cut_short,
        shape_too_large,
        unknown_type,
        offset_past_the_end,
        experts_of_the_wrong_type,
        lambda _: b"GGUF",
    ],
)
def test_m23_a_malformed_source_is_one_clear_error(model: Path, damage: Callable[[Path], bytes]) -> None:
    model.write_bytes(damage(model))
    refuses(ModelError, "model.gguf", model, "Q4_K_M")


def test_a_vocabulary_alone_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", METADATA, [])
    refuses(ModelError, "metadata alone", tmp_path / "model.gguf", "Q8_0")


def test_unknown_type_lists_the_known() -> None:
    with pytest.raises(RequestError, match=r"Q9_Z: expected one of F32, F16, .*Q6_K"):
        find_recipe("Q9_Z")
