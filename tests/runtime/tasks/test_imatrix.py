"""Importance data: sums of the inputs of a model's products equal those of the definitions, separately for
each expert.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_file

from satchel.errors import ModelError
from satchel.formats.imatrix import Sums
from satchel.runtime.compiler.check import inputs as step_inputs
from satchel.runtime.device.libraries import libraries
from satchel.runtime.graph import toposort
from satchel.runtime.kv import Pages
from satchel.runtime.layers.arch import Cache
from satchel.runtime.ops import evaluate
from satchel.runtime.sampling import GREEDY
from satchel.runtime.tasks import imatrix
from satchel.runtime.tasks.imatrix import Collector, Observed, choose_products, collect, find_taps

HAVE = {f.name for f in libraries() if not f.reason}
compiled = pytest.mark.skipif("cpu" not in HAVE, reason="the CPU backend is not built")
CONTEXT = 24
IDS = np.arange(CONTEXT * 2, dtype=np.int32).reshape(2, CONTEXT) % 60


def expected(arch: str, window: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Input and experts of each weight's product by the ops' definitions, for one whole window."""
    w, cache = tiny.weights(arch, "f32"), Cache(CONTEXT)
    forward = tiny.build(arch, w, cache)
    pages = Pages(cache)
    pages.reserve(0, len(window))
    nodes = {
        n.src[1].name: (n.src[0], n.src[2] if n.op == "expert_linear" else None)
        for n in toposort((forward.logits,))
        if n.op in ("linear", "expert_linear")
    }
    states = {
        n.name: np.zeros(tuple(n.type.shape), {"i32": np.int32, "f16": np.float16}[n.type.format])
        for n in toposort(forward.roots("tokens"))
        if n.op == "state"
    }
    given = step_inputs(window.tolist(), 0, len(window), GREEDY, pages)
    given["rows"] = np.arange(len(window), dtype=np.int32)
    flat = list(dict.fromkeys(n for pair in nodes.values() for n in pair if n is not None))
    values = dict(zip(flat, evaluate(tuple(flat), {**w.tensors, **states, **given}), strict=True))
    return {name: (values[x], None if ids is None else values[ids]) for name, (x, ids) in nodes.items()}


def gathered(tmp_path: Path, arch: str, batch: int) -> list[Sums]:
    path = tiny_file.write_model(tmp_path / "m.gguf", arch, "f32")
    with Observed.load(path, context=CONTEXT, batch=batch) as model:
        wanted, refused = choose_products(model.taps, 1 << 30)
        assert not refused
        return collect(model, IDS, None, wanted)


@compiled
@pytest.mark.parametrize(("arch", "batch"), [("qwen3", 512), ("qwen3", 16), ("llama", 512), ("qwen3moe", 16)])
def test_sums_are_those_of_the_definitions(tmp_path: Path, arch: str, batch: int) -> None:
    found = {name: sums for sums in gathered(tmp_path, arch, batch) for name in sums.weights}
    whole = [expected(arch, window) for window in IDS]
    assert set(found) == set(whole[0])
    for name, sums in found.items():
        x = np.concatenate([w[name][0] for w in whole]).astype(np.float64)
        if whole[0][name][1] is None:
            squares, rows = np.square(x).sum(axis=0)[None], np.array([len(x)])
        else:
            ids = np.concatenate([w[name][1] for w in whole])
            each = x if x.ndim == 3 else np.repeat(x[:, None], ids.shape[1], axis=1)
            squares = np.array([np.square(each[ids == e]).sum(axis=0) for e in range(tiny.EXPERTS)])
            rows = np.array([np.sum(ids == e) for e in range(tiny.EXPERTS)])
        np.testing.assert_array_equal(sums.rows, rows)
        np.testing.assert_allclose(sums.squares, squares, rtol=2e-3, atol=1e-5 * squares.max())
        if x.ndim == 3:
            assert sums.products is None
        elif sums.products is not None:
            product = x.T @ x
            np.testing.assert_allclose(sums.products, product, rtol=0, atol=1e-3 * np.abs(product).max())


def test_products_of_one_input_are_shared_and_those_of_experts_left_out() -> None:
    forward = tiny.build("qwen3moe", tiny.weights("qwen3moe"), Cache(CONTEXT))
    taps = find_taps(forward)
    assert ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight") in [t.weights for t in taps]
    assert taps[-1].weights == ("token_embd.weight",)
    wanted, refused = choose_products(taps, 1 << 30)
    assert not refused
    names = {name for i in wanted for name in taps[i].weights}
    assert "blk.0.ffn_up_exps.weight" in names and "blk.0.ffn_down_exps.weight" not in names
    assert "blk.0.ffn_gate_inp.weight" not in names


@pytest.mark.parametrize("limit", [0, 4 * tiny.WIDTH**2, 1 << 30])
def test_products_fit_the_memory_that_is_allowed(limit: int) -> None:
    taps = find_taps(tiny.build("qwen3", tiny.weights("qwen3"), Cache(CONTEXT)))
    wanted, refused = choose_products(taps, limit)
    assert sum(4 * taps[i].width ** 2 for i in wanted) <= limit
    assert len(wanted) + len(refused) == len(taps)
    assert not limit or min(t.width for t in taps) in {taps[i].width for i in wanted}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_no_numbers_name_the_weight(bad: float) -> None:
    taps = find_taps(tiny.build("llama", tiny.weights("llama"), Cache(CONTEXT)))
    x = np.zeros((2, taps[0].width), np.float32)
    x[1, 3] = bad
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight"):
        Collector(taps, frozenset()).add(0, x, None)


@compiled
def test_wide_models_take_smaller_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_file.write_model(tmp_path / "m.gguf", "qwen3", "q8_0")
    monkeypatch.setattr(imatrix, "STEP_BYTES", 4 << 20)
    with Observed.load(path, context=CONTEXT) as model:
        assert 16 <= model.engine.batch < 512
