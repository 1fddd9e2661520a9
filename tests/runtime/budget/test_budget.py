"""Formats by budget: choices against an exhaustive search, curves against their data, a whole search."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tiny_file
from devices import needs
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.quant import FORMATS
from satchel.runtime.budget.choose import FormatOption, choose, frontier, hull, total_bytes, total_kld
from satchel.runtime.budget.curve import Point, read_off, relative_error, share_out
from satchel.runtime.budget.search import FormatSearch, TensorGroup, candidates, group
from satchel.runtime.tasks.perplexity import windows


def option(nbytes: int, kld: float, name: str = "q8_0") -> FormatOption:
    return FormatOption(name, nbytes, kld, kld)


tensors = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1)), min_size=1, max_size=4), min_size=1, max_size=4
)


@given(tensors, st.integers(0, 160))
def test_a_choice_keeps_the_limit_and_is_near_the_best(
    found: list[list[tuple[int, float]]], limit: int
) -> None:
    options = {str(i): [option(*o) for o in each] for i, each in enumerate(found)}
    ways = [dict(zip(options, way, strict=True)) for way in itertools.product(*options.values())]
    fitting = [total_kld(way) for way in ways if total_bytes(way) <= limit]
    if not fitting:
        with pytest.raises(RequestError, match="at least"):
            choose(options, limit)
        return
    chosen = choose(options, limit)
    assert total_bytes(chosen) <= limit
    best, worst = min(fitting), max(fitting)
    assert total_kld(chosen) <= best + 0.35 * (worst - best) + 1e-9


@given(st.integers(0, 2**32))
def test_with_two_tensors_the_choice_is_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = {
        n: [option(int(b), float(k)) for b, k in zip(rng.integers(1, 99, 4), rng.random(4), strict=True)]
        for n in "ab"
    }
    limit = int(rng.integers(100, 200))
    pairs = [(a, b) for a in options["a"] for b in options["b"] if a.nbytes + b.nbytes <= limit]
    best = min(a.kld + b.kld for a, b in pairs)
    assert total_kld(choose(options, limit)) == pytest.approx(best)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=8))
def test_a_hull_is_convex_and_falls(points: list[tuple[int, float]]) -> None:
    found = hull([option(*p) for p in points])
    assert all(a.nbytes < b.nbytes and a.kld > b.kld for a, b in itertools.pairwise(found))
    slopes = [(a.kld - b.kld) / (b.nbytes - a.nbytes) for a, b in itertools.pairwise(found)]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(slopes))
    assert min(p[0] for p in points) == found[0].nbytes and min(p[1] for p in points) == found[-1].kld


def test_the_frontier_ends_at_the_best_file() -> None:
    options = {"a": [option(1, 3.0), option(2, 1.0), option(5, 0.0)], "b": [option(1, 1.0), option(9, 0.5)]}
    steps = frontier(options)
    assert [s.name for s in steps] == ["a", "a", "b"]
    assert [s.nbytes for s in steps] == [3, 6, 14] and steps[-1].kld == pytest.approx(0.5)


def test_what_was_measured_is_read_off_exactly() -> None:
    points = [Point(1e-4, 2e-3), Point(1e-2, 0.4), Point(1e-3, 3e-2)]
    for p in points:
        assert read_off(points, p.error) == pytest.approx(p.kld)
    assert read_off(points, 5e-5) == pytest.approx(1e-3), "in proportion below"
    assert read_off(points, 2e-2) == pytest.approx(0.8), "and above"
    assert read_off(points, 0) == 0 and read_off([], 1) == 0
    between = [read_off(points, e) for e in np.geomspace(1e-5, 1, 60)]
    assert all(a <= b for a, b in itertools.pairwise(between))


def test_noise_never_makes_a_smaller_error_dearer() -> None:
    points = [Point(1e-4, 5e-3), Point(1e-3, 4e-3), Point(1e-2, -1e-9)]
    found = [read_off(points, e) for e in np.geomspace(1e-6, 1, 50)]
    assert all(a <= b for a, b in itertools.pairwise(found)) and min(found) > 0


def test_tensors_measured_together_share_by_error() -> None:
    errors = {"a": {"x": 1e-3, "y": 1e-2}, "b": {"x": 3e-3, "y": 3e-2}}
    found = share_out(errors, {"x": 0.4})
    assert found["a"]["x"] + found["b"]["x"] == pytest.approx(0.4)
    assert found["b"]["x"] == pytest.approx(3 * found["a"]["x"])
    assert found["a"]["y"] == pytest.approx(1.0)


def test_groups_hold_each_tensor_once_and_no_two_kinds() -> None:
    names = [f"blk.{i}.{k}.weight" for i in range(13) for k in ("attn_q", "ffn_up")] + ["token_embd.weight"]
    for most in (1, 3, 9, 27, 99):
        found = group(names, most)
        assert sorted(n for g in found for n in g.tensors) == sorted(names)
        assert all(len({n.split(".")[-2] for n in g.tensors}) == 1 for g in found)
        assert len(found) <= max(3, most)
    assert TensorGroup("0-12.attn_q", tuple(f"blk.{i}.attn_q.weight" for i in range(13))) in group(names, 3)


def test_candidates_fit_the_rows_and_save_bytes() -> None:
    for width in (256, 96, 32, 20):
        found = candidates("bf16", (4, width))
        sizes = [FORMATS[f].row_bytes(width) for f in found]
        assert found[-1] == "bf16" and sizes == sorted(sizes)
    assert candidates("q4_0", (4, 64), ("q8_0", "q4_0")) == ("q4_0",)


def test_errors_are_weighted_by_column() -> None:
    x = np.random.default_rng(4).standard_normal((8, 64)).astype(np.float32)
    encode, decode = FORMATS["q4_0"].encode, FORMATS["q4_0"].decode
    assert encode is not None
    plain = float(np.square(decode(encode(x, None)) - x).sum() / np.square(x).sum())
    assert relative_error("q4_0", x, None) == pytest.approx(plain, rel=1e-5)
    ones = np.ones(64, np.float32)
    assert relative_error("q4_0", x, 3 * ones) == pytest.approx(relative_error("q4_0", x, ones), rel=1e-3)
    assert relative_error("q4_0", np.zeros((2, 32), np.float32), None) == 0


@needs("cpu")
@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe"])
def test_a_search_measures_what_the_file_will_cost(tmp_path: Path, arch: str) -> None:
    from satchel.formats.quantize import QuantizeOptions, find_recipe, plan, write
    from satchel.runtime.budget.probe import Exchange, Prober, measure_file

    path = tiny_file.write_model(tmp_path / "x.gguf", arch, "f32")
    rng = np.random.default_rng(0)
    cut = windows([int(i) for i in rng.integers(0, 256, 128)], 64)
    with open_gguf(path) as gguf, Prober(gguf, cut, None, tmp_path / "base", threads=2) as prober:
        search = FormatSearch(gguf, prober, wanted=("q4_0", "q8_0"), threads=2)
        same = dict.fromkeys(search.candidates, "f32")
        planned = plan(gguf, tmp_path / "y.gguf", QuantizeOptions(find_recipe("Q8_0"), formats=same))
        fixed = planned.file_bytes - sum(search.bytes_in(n, "f32") for n in same)
        limit = fixed + sum(search.bytes_in(n, "q4_0") for n in same) * 3 // 2
        found = search.run(limit, fixed, seconds=3)
        assert found.file_bytes <= limit and set(found.formats) == set(same)
        assert found.predicted > 0
        assert abs(prober.measure({})) < 1e-6, "nothing stays exchanged"
        settings = QuantizeOptions(find_recipe("Q8_0"), formats=found.formats)
        write(gguf, tmp_path / "y.gguf", settings)
        assert (tmp_path / "y.gguf").stat().st_size == found.file_bytes
        with open_gguf(tmp_path / "y.gguf") as made:
            blocks = {n: Exchange(f, np.array(made.array(n))) for n, f in found.formats.items()}
        exchanged = prober.measure(blocks)
        assert 0 < exchanged < all_in(search, prober, "q4_0")
        base = prober.base
    assert measure_file(tmp_path / "y.gguf", base, None, 2).kld_mean == pytest.approx(exchanged, abs=1e-9)


@needs("cpu")
def test_formats_without_products_are_refused_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from satchel.runtime.budget.probe import Prober

    path = tiny_file.write_model(tmp_path / "x.gguf", "qwen3", "f32")
    cut = windows(list(range(32)), 16)
    with open_gguf(path) as gguf, Prober(gguf, cut, None, tmp_path / "base", threads=1) as prober:
        monkeypatch.setattr(prober, "runs", lambda name, format: format != "q5_k")
        assert all("q5_k" not in found for found in FormatSearch(gguf, prober).candidates.values())
        for more in ({"wanted": ("q5_k", "q8_0")}, {"held": {"blk.0.attn_q.weight": "q5_k"}}):
            with pytest.raises(RequestError, match="no products for q5_k"):
                FormatSearch(gguf, prober, **more)  # type: ignore[arg-type]


def all_in(search: FormatSearch, prober: object, format: str) -> float:
    """Divergence with every matrix in one format."""
    exchanges = {}
    for name in search.candidates:
        info, encode = search.gguf.tensors[name], FORMATS[format].encode
        assert encode is not None and info.format == "f32"
        from satchel.runtime.budget.probe import Exchange

        exchanges[name] = Exchange(format, encode(np.array(search.gguf.array(name)), None))
    return float(prober.measure(exchanges))  # type: ignore[attr-defined]
