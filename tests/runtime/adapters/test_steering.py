"""Control vectors: added to a layer's output as the definition says; scales, ranges; bad files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import extra_files
import numpy as np
import pytest
import tiny
import tiny_file
from devices import needs

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime import ops
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.adapters.control_vectors import read_control_vector
from satchel.runtime.api.model import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.graph import Node
from satchel.runtime.layers.arch import Arch, Cache, HParams
from satchel.runtime.models.llama import Llama
from satchel.runtime.weights.resident import Uploaded
from satchel.runtime.weights.weights import FileWeights

pytestmark = needs("cpu")

IDS = [int(t) for t in np.random.default_rng(6).integers(0, tiny.VOCAB, 30)]
VECTOR = extra_files.directions(3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("steering") / "m.gguf", "llama", "f32")


def steered_logits(path: Path, add: dict[int, Any]) -> Any:
    """Logits of a model to whose layers these values are added as constants."""

    class Steered(Llama):
        def layer(self: Arch, x: Node, i: int) -> Node:
            y = super().layer(x, i)  # type: ignore[misc]
            return ops.add(y, self.graph.const(add[i].reshape(1, -1), "f32")) if i in add else y

    with open_gguf(path) as gguf, Model.load(path, threads=2) as model:
        weights, cache = FileWeights(gguf), Cache(96)
        values = {name: gguf.array(name) for name in gguf.tensors}
        arch = Steered(HParams(gguf.metadata, "llama"), weights, cache)
        engine = Engine(arch.build(), cache, [model.device], Uploaded(values), batch=64)
        logits = engine.logits([BatchEntry(0, IDS)])
        engine.release()
        return logits


@pytest.mark.parametrize("scale", [1.0, -0.8])
def test_it_is_added_to_what_leaves_its_layers(scale: float, base: Path, tmp_path: Path) -> None:
    vector = extra_files.write_vector(tmp_path / "v.gguf", VECTOR)
    wanted = steered_logits(base, {int(n.split(".")[1]): np.float32(scale) * d for n, d in VECTOR.items()})
    with Model.load(base, threads=2, control_vectors=[AdapterFile(vector, scale)]) as model:
        assert np.abs(model.logits(IDS) - wanted).max() < 1e-4
        assert np.abs(model.logits(IDS, control_vectors={}) - wanted).max() > 0.05


def test_two_vectors_add_up_and_a_range_leaves_the_other_layers(base: Path, tmp_path: Path) -> None:
    one = extra_files.write_vector(tmp_path / "one.gguf", VECTOR)
    two = extra_files.write_vector(tmp_path / "two.gguf", extra_files.directions(8, (1,)))
    other = extra_files.directions(8, (1,))["direction.1"]
    wanted = steered_logits(base, {1: 0.5 * other, 2: VECTOR["direction.2"]})
    vectors = [AdapterFile(one, layers=(2, 9)), AdapterFile(two, 0.5)]
    with Model.load(base, threads=2, control_vectors=vectors) as model:
        assert np.abs(model.logits(IDS) - wanted).max() < 1e-4
        text = model.generate(IDS, max_tokens=3).read()
        assert isinstance(text, str)


ONE = np.ones(tiny.WIDTH, np.float32)
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("M17 a: huge layer", {"direction.536870912": ONE}, {}, "direction.1 to direction.2"),
    ("M17 b: negative layer", {"direction.-1": ONE}, {}, "direction.1 to direction.2"),
    ("M17 c: layer 0", {"direction.0": ONE}, {}, "direction.1 to direction.2"),
    ("M17 d: beyond the model", {"direction.3": ONE}, {}, "direction.1 to direction.2"),
    ("no number", {"direction.x": ONE}, {}, "direction.1 to direction.2"),
    ("twice", {"direction.1": ONE, "direction.01": ONE}, {}, "two directions"),
    ("width", {"direction.1": np.ones(tiny.WIDTH // 2)}, {}, "expected 256 numbers"),
    ("matrix", {"direction.1": np.ones((1, tiny.WIDTH))}, {}, "expected 256 numbers"),
    ("NaN", {"direction.1": ONE * np.nan}, {}, "NaN or infinity"),
    ("a model", {"direction.1": ONE}, {"general__architecture": "llama"}, "expected controlvector"),
]


@pytest.mark.parametrize(("tensors", "keys", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_vector_is_one_line(
    tensors: dict[str, Any], keys: dict[str, Any], said: str, base: Path, tmp_path: Path
) -> None:
    path = extra_files.write_vector(tmp_path / "bad.gguf", tensors, **keys)
    with open_gguf(base) as model, pytest.raises(ModelError, match=re.escape(said)) as error:
        read_control_vector(path, model)
    assert "\n" not in str(error.value) and "bad.gguf" in str(error.value)


def test_a_range_without_layers_is_refused(base: Path, tmp_path: Path) -> None:
    path = extra_files.write_vector(tmp_path / "v.gguf", {"direction.1": ONE})
    with open_gguf(base) as model, pytest.raises(RequestError, match="layers 2 to 3: it has 1 to 1"):
        read_control_vector(path, model, (2, 3))
    with pytest.raises(RequestError, match="expected a first and a last"):
        AdapterFile(path, layers=(3, 2))
