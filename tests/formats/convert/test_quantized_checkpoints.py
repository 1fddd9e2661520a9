"""GPTQ, AWQ, compressed-tensors and FP8 weights: kept codes decode to the checkpoint's own values bit for
bit; weights that no GGUF type holds are reported.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packed_weights as packed
import pytest
import toy_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import ModelError
from satchel.formats.convert.codes import Grid, choose, join, numbers, unpack
from satchel.formats.convert.grid import find
from satchel.formats.convert.logical import Logical, pieces
from satchel.formats.convert.quantized import logicals
from satchel.formats.convert.safetensors import SafetensorsFile
from satchel.quant import FORMATS

ROWS, COLUMNS = 64, 256
BASE = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Any]:
    """The logical tensors of a file by name."""
    opened: list[SafetensorsFile] = []

    def run(
        tensors: toy_checkpoint.Tensors, config: dict[str, Any], extensions: bool = True
    ) -> dict[str, Logical]:
        path = tmp_path / f"{len(opened)}.safetensors"
        path.write_bytes(toy_checkpoint.safetensors(tensors))
        opened.append(SafetensorsFile(path))
        found = logicals(opened[-1].tensors, config, tmp_path / "config.json", extensions=extensions)
        return {tensor.name: tensor for tensor in found}

    yield run
    for file in opened:
        file.close()


def decoded(tensor: Logical, size: int = 1 << 20) -> npt.NDArray[np.float32]:
    """The tensor's values, read in pieces of up to `size` bytes."""
    raw = b"".join(bytes(piece) for piece in pieces(tensor, size))
    blocks = np.frombuffer(raw, tensor.fmt.dtype)
    return tensor.fmt.decode(blocks).reshape(tensor.shape)


GPTQ: list[tuple[dict[str, Any], str]] = [
    ({}, "q4_0"),
    ({"group": 64}, "q4_0"),
    ({"group": 128}, "q4_0"),
    ({"group": COLUMNS}, "q4_0"),
    ({"version": 2}, "q4_0"),
    ({"bits": 2, "symmetric": False}, "q4_0"),
    ({"bits": 3, "symmetric": False}, "q4_0"),
    ({"symmetric": False}, "q5_0"),
    ({"symmetric": False, "version": 2}, "q5_0"),
    ({"symmetric": False, "scale": np.full((8, ROWS), 0.25, np.float16)}, "q4_1"),
    ({"bits": 8, "group": 32}, "q8_0"),
    ({"bits": 8, "group": 128}, "i8_g128"),
]


@pytest.mark.parametrize(("options", "kept"), GPTQ)
def test_gptq_codes_are_kept_to_the_bit(options: dict[str, Any], kept: str, read: Any) -> None:
    made = packed.gptq(BASE, ROWS, COLUMNS, **options)
    config = {"quant_method": "gptq"} | (
        {"checkpoint_format": "gptq_v2"} if options.get("version") == 2 else {}
    )
    found = read(made.tensors, config)
    assert list(found) == [f"{BASE}.weight"]
    tensor = found[f"{BASE}.weight"]
    assert tensor.format == kept and kept in tensor.note
    for size in (1, tensor.row_bytes * 5, 1 << 20):
        assert np.array_equal(decoded(tensor, size), made.values)


def test_gptq_in_an_order_of_its_own_becomes_half_floats_and_says_so(read: Any) -> None:
    order = np.random.default_rng(1).permutation(np.arange(COLUMNS) // 32)
    made = packed.gptq(BASE, ROWS, COLUMNS, order=order, symmetric=False)
    tensor = read(made.tensors, {"quant_method": "gptq"})[f"{BASE}.weight"]
    assert tensor.format == "f16" and "order of their own" in tensor.note
    assert np.array_equal(decoded(tensor), made.values.astype(np.float16).astype(np.float32))


def test_scales_beyond_half_floats_become_bf16_and_say_so(read: Any) -> None:
    made = packed.gptq(BASE, ROWS, COLUMNS, scale=np.full((8, ROWS), 1.1e-9, np.float32))
    tensor = read(made.tensors, {"quant_method": "gptq"})[f"{BASE}.weight"]
    assert tensor.format == "bf16" and "fit no type exactly" in tensor.note
    assert np.allclose(decoded(tensor), made.values, rtol=2**-8, atol=0)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq_codes_are_kept_to_the_bit(group: int, read: Any) -> None:
    made = packed.awq(BASE, ROWS, COLUMNS, group=group)
    tensor = read(made.tensors, {"quant_method": "awq"})[f"{BASE}.weight"]
    assert tensor.format == "q5_0"
    for size in (tensor.row_bytes * 5, 1 << 20):
        assert np.array_equal(decoded(tensor, size), made.values)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, "q4_0"),
        ({"group": 128}, "q4_0"),
        ({"symmetric": False}, "q5_0"),
        ({"bits": 8}, "q8_0"),
        ({"bits": 8, "group": 128}, "i8_g128"),
    ],
)
def test_compressed_tensors_are_kept_to_the_bit(options: dict[str, Any], kept: str, read: Any) -> None:
    made = packed.compressed(BASE, ROWS, COLUMNS, **options)
    tensor = read(made.tensors, {"quant_method": "compressed-tensors"})[f"{BASE}.weight"]
    assert tensor.format == kept
    assert np.array_equal(decoded(tensor), made.values)


@pytest.mark.parametrize("groups", [1, 2])
def test_int8_is_kept_in_a_type_of_ours_or_decoded(groups: int, read: Any) -> None:
    made = packed.int8(BASE, ROWS, COLUMNS, groups=groups)
    config = {"quant_method": "compressed-tensors"}
    tensor = read(made.tensors, config)[f"{BASE}.weight"]
    assert tensor.format == "i8_g128" and np.array_equal(decoded(tensor), made.values)
    other = read(made.tensors, config, extensions=False)[f"{BASE}.weight"]
    assert other.format == "bf16" and np.allclose(decoded(other), made.values, rtol=2**-8, atol=0)


@pytest.mark.parametrize("tile", [(128, 128), (1, COLUMNS), (64, 256), None])
def test_fp8_codes_and_scales_are_kept_as_they_are(tile: tuple[int, int] | None, read: Any) -> None:
    made = packed.fp8(BASE, 192, COLUMNS, tile=tile)
    config = {"quant_method": "fp8"} | ({"weight_block_size": list(tile)} if tile else {})
    tensor = read(made.tensors, config)[f"{BASE}.weight"]
    assert tensor.format == "f8_e4m3"
    assert np.array_equal(decoded(tensor, tensor.row_bytes * 7), made.values)
    blocks = np.frombuffer(b"".join(bytes(p) for p in pieces(tensor, 1 << 20)), tensor.fmt.dtype)
    assert np.array_equal(blocks["qs"].reshape(192, COLUMNS), made.tensors[f"{BASE}.weight"][1])


def test_fp8_with_odd_rows_or_without_our_types_becomes_bf16(read: Any) -> None:
    for columns, extensions in ((COLUMNS, False), (96, True), (200, True)):
        made = packed.fp8(BASE, 130, columns)
        tensor = read(made.tensors, {"quant_method": "fp8"}, extensions)[f"{BASE}.weight"]
        assert tensor.format == "bf16" and "as bf16" in tensor.note
        assert np.allclose(decoded(tensor), made.values, rtol=2**-8, atol=0)


def test_fp8_without_a_scale_means_its_codes(read: Any) -> None:
    made = packed.fp8(BASE, 8, COLUMNS)
    alone = {f"{BASE}.weight": made.tensors[f"{BASE}.weight"]}
    tensor = read(alone, {})[f"{BASE}.weight"]
    assert np.array_equal(decoded(tensor), packed.e4m3(alone[f"{BASE}.weight"][1]))


@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    low=st.integers(0, 16),
    span=st.integers(0, 16),
    scale=st.floats(-1e5, 1e5, width=32),
    group=st.sampled_from([32, 64, 128]),
    seed=st.integers(0, 99),
)
def test_whatever_type_is_chosen_holds_the_grid_exactly(
    bits: int, low: int, span: int, scale: float, group: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    zero = rng.integers(low, low + span + 1, (3, 256 // group)).astype(np.int16)
    grid = Grid(np.full(zero.shape, scale, np.float32), zero, group, bits)
    codes = rng.integers(0, 1 << bits, (3, 256)).astype(np.int16)
    for extensions in (False, True):
        target = choose(grid, extensions)
        if target:
            blocks = join(grid, codes, target)
            assert np.array_equal(FORMATS[target].decode(blocks), numbers(grid, codes))
            assert extensions or not target.startswith("i8_")


@given(bits=st.sampled_from([2, 3, 4, 8]), seed=st.integers(0, 99))
def test_words_are_unpacked_as_they_were_packed(bits: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (96, 5))
    assert np.array_equal(unpack(packed.pack_down(codes, bits).T, bits), codes.T)


GRID_TYPES = ("f32", "f16", "bf16")


@pytest.mark.parametrize("name", GRID_TYPES)
def test_floats_on_a_grid_give_their_codes_back(name: str) -> None:
    fmt, rng = FORMATS[name], np.random.default_rng(3)
    blocks = np.zeros((16, 8), FORMATS["q4_0"].dtype)
    blocks["d"] = rng.uniform(1e-4, 0.1, blocks.shape).astype(np.float16) * rng.choice([-1, 1], blocks.shape)
    blocks["qs"] = rng.integers(0, 256, (16, 8, 16))
    blocks["d"][3, 2], blocks["qs"][4, 1] = 0, 0x88
    blocks["qs"][5, 5] = rng.choice([0x78, 0x87, 0x99], 16)  # codes far from the ends alone
    assert fmt.encode is not None
    stored = fmt.encode(FORMATS["q4_0"].decode(blocks), None)
    found = find(name, stored)
    assert found is not None
    back = fmt.encode(FORMATS["q4_0"].decode(found), None)
    assert np.array_equal(fmt.decode(back), fmt.decode(stored))


@pytest.mark.parametrize("name", GRID_TYPES)
def test_floats_off_the_grid_are_left_alone(name: str) -> None:
    fmt, rng = FORMATS[name], np.random.default_rng(4)
    assert fmt.encode is not None
    blocks = np.zeros((4, 2), FORMATS["q4_0"].dtype)
    blocks["d"], blocks["qs"] = 0.01, rng.integers(0, 256, (4, 2, 16))
    values = FORMATS["q4_0"].decode(blocks)
    values[2, 40] *= 1.02
    for x in (values, rng.standard_normal((4, 64)).astype(np.float32), np.full((1, 32), np.nan, np.float32)):
        assert find(name, fmt.encode(x, None)) is None


def damaged(change: Any) -> dict[str, Any]:
    tensors = dict(packed.gptq(BASE, ROWS, COLUMNS).tensors)
    change(tensors)
    return tensors


def shape_of(name: str, *shape: int, dtype: str = "I32") -> Any:
    kind = toy_checkpoint.NAMES[dtype]
    return lambda tensors: tensors.update({f"{BASE}.{name}": (dtype, np.zeros(shape, kind))})


BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("scales missing", lambda t: t.pop(f"{BASE}.scales"), {}, "scales is missing"),
    ("zeros missing", lambda t: t.pop(f"{BASE}.qzeros"), {}, "qzeros is missing"),
    ("zeros of no width", shape_of("qzeros", 8, 5), {}, "expected I32 [8, 4], got I32 [8, 5]"),
    ("scales of another height", shape_of("scales", 7, ROWS, dtype="F16"), {}, "expected"),
    ("scales of another width", shape_of("scales", 8, ROWS + 1, dtype="F16"), {}, "expected"),
    ("scales that are codes", shape_of("scales", 8, ROWS), {}, "F16, BF16 or F32"),
    ("weights that are floats", shape_of("qweight", 32, ROWS, dtype="F32"), {}, "expected I32"),
    ("weights of one dimension", shape_of("qweight", 32), {}, "expected I32"),
    (
        "groups out of range",
        lambda t: t.update({f"{BASE}.g_idx": ("I32", np.full(COLUMNS, 9, np.int32))}),
        {},
        "groups from 0 to 7",
    ),
    (
        "infinite scales",
        lambda t: t.update({f"{BASE}.scales": ("F16", np.full((8, ROWS), np.inf, np.float16))}),
        {},
        "finite scales",
    ),
    ("another method", lambda t: None, {"quant_method": "bitsandbytes"}, "expected one of gptq, awq"),
    ("no method", lambda t: None, {"quant_method": None}, "without scales"),
    ("awq of another kind", lambda t: None, {"quant_method": "awq", "version": "gemv"}, "expected gemm"),
]


@pytest.mark.parametrize(("change", "config", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_damaged_scheme_is_one_line(change: Any, config: dict[str, Any], said: str, read: Any) -> None:
    with pytest.raises(ModelError) as error:
        for tensor in read(damaged(change), {"quant_method": "gptq"} | config).values():
            decoded(tensor)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(2, 3), (7,), (3, 2), (1, 1, 1, 2)])
def test_scales_of_no_layout_are_refused(shape: tuple[int, ...], read: Any) -> None:
    tensors = dict(packed.fp8(BASE, 256, COLUMNS).tensors)
    tensors[f"{BASE}.weight_scale_inv"] = ("F32", np.ones(shape, np.float32))
    with pytest.raises(ModelError, match="expected one scale"):
        read(tensors, {"quant_method": "fp8"})


def test_a_whole_gptq_checkpoint_becomes_a_file_that_runs(tmp_path: Path) -> None:
    from satchel.formats.convert.write import write_source
    from satchel.formats.gguf import open_gguf
    from satchel.runtime.weights.sources import open_checkpoint

    plain = toy_checkpoint.tensors("llama")
    tensors = toy_checkpoint.stored(plain)
    for name in [n for n in plain if "_proj" in n]:
        rows, columns = plain[name].shape
        if columns % 32 == 0:
            del tensors[name]
            tensors |= packed.gptq(name.removesuffix(".weight"), rows, columns, seed=len(name)).tensors
    folder = toy_checkpoint.write(
        tmp_path / "m", "llama", values=tensors, quantization_config={"quant_method": "gptq", "bits": 4}
    )
    with open_checkpoint(folder) as made:
        assert any("kept in q4_0" in line for line in made.notes)
        write_source(made, tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as gguf:
        assert gguf.tensors["blk.0.attn_q.weight"].format == "q4_0"
        want = packed.gptq(BASE, 64, 64, seed=len(f"{BASE}.weight")).values
        order = np.arange(64).reshape(4, 2, 8).swapaxes(1, 2).reshape(-1)
        got = FORMATS["q4_0"].decode(gguf.array("blk.0.attn_q.weight"))
        assert np.array_equal(got, want[order])


def test_a_file_names_the_types_that_are_our_own(tmp_path: Path) -> None:
    from satchel.formats.convert.shaping import Shaping
    from satchel.runtime.weights.sources import open_checkpoint

    sizes = {"hidden_size": 128, "intermediate_size": 128}
    tensors = toy_checkpoint.stored(toy_checkpoint.tensors("llama", width=128, ffn=128))
    made = packed.fp8("model.layers.0.mlp.up_proj", 128, 128)
    tensors |= made.tensors
    folder = toy_checkpoint.write(
        tmp_path / "m", "llama", values=tensors, quantization_config={"quant_method": "fp8"}, **sizes
    )
    with open_checkpoint(folder) as source:
        assert list(source.metadata["satchel.extension_types"]) == ["f8_e4m3"]  # type: ignore[arg-type]
        assert source.tensors["blk.0.ffn_up.weight"].format == "f8_e4m3"
    for shaping in (Shaping(dequantize=True), Shaping(extensions=False), Shaping(outtype="bf16")):
        with open_checkpoint(folder, shaping) as source:
            assert "satchel.extension_types" not in source.metadata
            assert source.tensors["blk.0.ffn_up.weight"].format == "bf16"
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 128


SCHEMES: dict[str, tuple[Any, str]] = {
    "gptq": (packed.gptq, "gptq"),
    "awq": (packed.awq, "awq"),
    "compressed": (packed.compressed, "compressed-tensors"),
    "compressed with zeros": (lambda *a: packed.compressed(*a, symmetric=False), "compressed-tensors"),
    "int8": (packed.int8, "compressed-tensors"),
    "fp8": (packed.fp8, "fp8"),
}


@given(
    scheme=st.sampled_from(list(SCHEMES)),
    which=st.integers(0, 9),
    dtype=st.sampled_from(list(toy_checkpoint.NAMES)),
    shape=st.lists(st.sampled_from([0, 1, 2, 8, 32, 64, 256]), max_size=3),
    fill=st.sampled_from([0, 1, 255]),
)
def test_any_tensor_in_a_schemes_place_is_read_or_refused(
    scheme: str, which: int, dtype: str, shape: list[int], fill: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make, method = SCHEMES[scheme]
    tensors = dict(make(BASE, ROWS, COLUMNS).tensors)
    name = list(tensors)[which % len(tensors)]
    size = int(np.prod(shape)) * np.dtype(toy_checkpoint.NAMES[dtype]).itemsize
    raw = np.full(size, fill, np.uint8).view(toy_checkpoint.NAMES[dtype]).reshape(shape)
    tensors[name] = (dtype, raw)
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(toy_checkpoint.safetensors(tensors))
    file = SafetensorsFile(path)
    try:
        config = {"quant_method": method}
        for tensor in logicals(file.tensors, config, path, extensions=True):
            assert decoded(tensor).shape == tensor.shape
    except ModelError as error:
        assert "\n" not in str(error)
    finally:
        file.close()
