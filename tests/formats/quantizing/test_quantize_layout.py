"""A dry run's prediction is exact to the byte; each matrix of a stack has its own importance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.formats.gguf import TensorSource, open_gguf, sources, write_gguf
from satchel.formats.quantize import QuantizeOptions, find_recipe, plan, quantize_file, write
from satchel.quant import FORMATS

METADATA = {"general.architecture": "llama", "llama.block_count": 2, "general.alignment": 64}
SHAPES = {
    "token_embd.weight": (61, 256),
    "output.weight": (61, 256),
    "output_norm.weight": (256,),
    "blk.0.attn_q.weight": (33, 256),
    "blk.0.ffn_up_exps.weight": (3, 5, 256),
    "blk.1.attn_v.weight": (17, 96),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(8)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    found = [TensorSource(name, x.shape, "f32", x) for name, x in arrays.items()]
    write_gguf(tmp_path / "in.gguf", METADATA, found)
    return tmp_path / "in.gguf"


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q4_K_M", "q5_1"])
@pytest.mark.parametrize("leave", [False, True])
def test_a_plan_is_exact_to_the_byte(model: Path, tmp_path: Path, name: str, leave: bool) -> None:
    settings = QuantizeOptions(find_recipe(name), leave_output=leave)
    extra = {"quantize.imatrix.file": "x" * 77}
    planned = plan(model, tmp_path / "out.gguf", settings, metadata=extra)
    report = write(model, tmp_path / "out.gguf", settings, metadata=extra)
    assert planned.files == ((tmp_path / "out.gguf", (tmp_path / "out.gguf").stat().st_size),)
    assert planned.choices == report.choices and planned.bytes_after == report.bytes_after
    with open_gguf(tmp_path / "out.gguf") as found:
        assert found.alignment == 64 and found.metadata["quantize.imatrix.file"] == "x" * 77
        kept = found.info("output.weight").format == "f32"
    assert kept == leave


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q2_K", "Q4_K_M"])
@pytest.mark.parametrize("pure", [False, True])
def test_norms_of_several_rows_stay_float32(tmp_path: Path, name: str, pure: bool) -> None:
    """One row a head (StableLM, Command R+) or a group (Mamba-2), in rows that every block divides."""
    rng, names = np.random.default_rng(9), ("attn_q_norm", "attn_k_norm", "ssm_norm")
    arrays = {f"blk.0.{n}.weight": rng.standard_normal((4, 256)).astype(np.float32) for n in names}
    arrays["blk.0.ffn_up.weight"] = rng.standard_normal((4, 256)).astype(np.float32)
    found = [TensorSource(n, x.shape, "f32", x) for n, x in arrays.items()]
    write_gguf(tmp_path / "in.gguf", METADATA, found)
    write(tmp_path / "in.gguf", tmp_path / "out.gguf", QuantizeOptions(find_recipe(name), pure=pure))
    with open_gguf(tmp_path / "out.gguf") as out:
        assert {n for n, info in out.tensors.items() if info.format != "f32"} == {"blk.0.ffn_up.weight"}
        for n in names:
            np.testing.assert_array_equal(out.array(f"blk.0.{n}.weight"), arrays[f"blk.0.{n}.weight"])


def test_parts_are_planned_exactly_too(model: Path, tmp_path: Path) -> None:
    with open_gguf(model) as whole:
        parts = write_gguf(tmp_path / "split.gguf", METADATA, sources(whole), counts=[2, 1, 3])
    settings = QuantizeOptions(find_recipe("Q8_0"))
    planned = plan(parts[0], tmp_path / "out.gguf", settings, keep_split=True)
    write(parts[0], tmp_path / "out.gguf", settings, keep_split=True)
    assert [path.stat().st_size for path, _ in planned.files] == [size for _, size in planned.files]
    with open_gguf(planned.files[0][0]) as found:
        assert [info.part for info in found.tensors.values()] == [0, 0, 1, 2, 2, 2]
        assert list(found.tensors) == list(SHAPES)


@pytest.mark.parametrize("counts", [[6, 1], [5], [7, -1], []])
def test_counts_that_do_not_add_up(model: Path, tmp_path: Path, counts: list[int]) -> None:
    with open_gguf(model) as whole, pytest.raises(ValueError, match="parts of 6 tensors"):
        write_gguf(tmp_path / "x.gguf", METADATA, sources(whole), counts=counts)


def test_each_matrix_of_a_stack_has_its_own_importance(model: Path, tmp_path: Path) -> None:
    name = "blk.0.ffn_up_exps.weight"
    table = np.random.default_rng(2).random((3, 256)).astype(np.float32) ** 6
    quantize_file(model, tmp_path / "x.gguf", find_recipe("Q4_0"), importance={name: table.reshape(-1)})
    encode = FORMATS["q4_0"].encode
    assert encode is not None
    with open_gguf(model) as before, open_gguf(tmp_path / "x.gguf") as after:
        x, found = before.array(name), after.array(name)
        for i in range(3):
            assert np.array_equal(found[i], encode(np.array(x[i]), table[i]))
            assert not np.array_equal(found[i], encode(np.array(x[i]), table[i - 1]))


def test_each_tensor_is_announced_once_in_order(model: Path, tmp_path: Path) -> None:
    begun: list[str] = []
    counted: list[int] = []
    report = write(
        model,
        tmp_path / "x.gguf",
        QuantizeOptions(find_recipe("Q8_0")),
        started=lambda choice: begun.append(choice.name),
        progress=counted.append,
    )
    assert begun == list(SHAPES) and sum(counted) == report.bytes_after


def test_an_encoder_s_refusal_names_the_tensor(model: Path, tmp_path: Path) -> None:
    if FORMATS["iq1_s"].encode is None:
        pytest.skip("iq1_s has no encoder")
    with pytest.raises(RequestError, match=r"in\.gguf: tensor token_embd\.weight: .*imatrix"):
        quantize_file(model, tmp_path / "x.gguf", find_recipe("Q8_0"), overrides=[("token_embd", "iq1_s")])
    begun: list[str] = []
    late = QuantizeOptions(find_recipe("Q8_0"), [("ffn_up_exps", "iq1_s")])
    with pytest.raises(RequestError, match=r"blk\.0\.ffn_up_exps\.weight"):
        write(model, tmp_path / "x.gguf", late, started=lambda choice: begun.append(choice.name))
    assert begun == [], "said before anything is encoded"
    assert not (tmp_path / "x.gguf").exists()
