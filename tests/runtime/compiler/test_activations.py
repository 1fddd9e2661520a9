"""Quantized weights with activations of 8 and of 16 bits, against the same weights in float32."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from devices import needs
from tiny_file import write_model

from satchel import Model
from satchel.errors import RequestError
from satchel.formats.quantize import find_recipe, quantize_file

needs_cpu = needs("cpu")
IDS = [int(i) for i in np.random.default_rng(5).integers(0, 250, 60)]


def logits(path: Path, **options: object) -> npt.NDArray[np.float64]:
    with Model.load(path, **options) as model:  # type: ignore[arg-type]
        return model.logits(IDS).astype(np.float64)


@needs_cpu
@pytest.mark.parametrize("format", ["q4_k", "q8_0", "q4_0", "q2_k", "iq4_xs", "mxfp4"])
def test_16_bits_are_nearer_to_the_weights_own_products(format: str, tmp_path: Path) -> None:
    path, wide = write_model(tmp_path / "m.gguf", format=format), tmp_path / "f32.gguf"
    quantize_file(path, wide, find_recipe("F32"), requantize=True)
    exact = logits(wide)
    errors = {bits: float(np.mean((logits(path, activations=bits) - exact) ** 2)) for bits in (8, 16)}
    assert 0 < errors[16] < errors[8] / 3, errors


@needs_cpu
def test_16_bits_with_weights_in_the_file_give_the_same_bits(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", format="q4_k")
    packed, mapped = (logits(path, activations=16, repack=repack) for repack in (True, False))
    np.testing.assert_array_equal(packed, mapped)


def test_other_numbers_of_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="activations is 4: expected one of 0, 8, 16"):
        Model.load(write_model(tmp_path / "m.gguf"), activations=4)


@needs_cpu
def test_the_numba_backend_agrees(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="numba is not installed: its backend cannot run")
    path = write_model(tmp_path / "m.gguf")
    compiled, loops = (logits(path, activations=16, device=name) for name in ("cpu", "numba"))
    # Sums in another order round to other bfloat16 now and then.
    assert np.mean((loops - compiled) ** 2) < 1e-4 * np.mean(compiled**2)
