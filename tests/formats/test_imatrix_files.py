"""Importance data: files of both formats read back the same, llama.cpp's layout is kept, damaged files are
refused.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from satchel.errors import ModelError
from satchel.formats.gguf import TensorSource, write_gguf
from satchel.formats.imatrix import (
    Origin,
    Sums,
    open_importance,
    pack_upper,
    unpack_upper,
    write_dat,
    write_importance,
)

ORIGIN = Origin(("a.txt", "b.txt"), 3, 16)


def sums() -> list[Sums]:
    """Two weights with products of columns, one without, and a stack of three experts, one of which has no
    inputs.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48, 32)).astype(np.float32)
    squares = np.square(x, dtype=np.float64).sum(axis=0)[None]
    experts = np.array([rng.random(8), rng.random(8), np.zeros(8)])
    return [
        Sums(("blk.0.attn_q.weight", "blk.0.attn_k.weight"), squares, np.array([48.0]), x.T @ x),
        Sums(("blk.0.ffn_down.weight",), np.ones((1, 4)) * 96, np.array([48.0])),
        Sums(("blk.0.ffn_up_exps.weight",), experts, np.array([5.0, 2.0, 0.0])),
    ]


def test_gguf_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    write_importance(path, sums(), ORIGIN)
    first, second, third = sums()
    with open_importance(path) as found:
        assert found.origin == ORIGIN and found.has_products
        assert found.weights == (*first.weights, *second.weights, *third.weights)
        assert first.products is not None
        mean = first.products / 48
        for name in first.weights:
            np.testing.assert_allclose(found.diagonal(name), mean.diagonal(), rtol=1e-5)
        h = found.hessian("blk.0.attn_k.weight")
        assert h is not None and h is found.hessian("blk.0.attn_q.weight")
        off = ~np.eye(32, dtype=bool)
        np.testing.assert_allclose(h.matrix[off], mean[off], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.diagonal("blk.0.ffn_down.weight"), 2)
        stack = found.diagonal("blk.0.ffn_up_exps.weight")
        assert stack is not None
        np.testing.assert_allclose(stack[:8], third.squares[0] / 5, rtol=1e-6)
        np.testing.assert_array_equal(stack[16:], 1)
        assert found.hessian("blk.0.ffn_down.weight") is None
        assert found.diagonal("other.weight") is None and found.hessian("other.weight") is None


def test_gguf_is_laid_out_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    write_importance(path, sums(), ORIGIN)
    reader = gguf.GGUFReader(path)
    fields = reader.fields
    assert fields["general.type"].contents() == "imatrix"
    assert fields["imatrix.datasets"].contents() == ["a.txt", "b.txt"]
    assert (fields["imatrix.chunk_count"].contents(), fields["imatrix.chunk_size"].contents()) == (3, 16)
    tensors = {t.name: t for t in reader.tensors}
    stack = tensors["blk.0.ffn_up_exps.weight.in_sum2"], tensors["blk.0.ffn_up_exps.weight.counts"]
    assert [list(t.shape) for t in stack] == [[8, 3], [1, 3]]
    np.testing.assert_allclose(stack[0].data, sums()[2].squares, rtol=1e-6)
    np.testing.assert_array_equal(stack[1].data.reshape(-1), [5, 2, 0])
    assert "blk.0.attn_q.weight.in_products" in tensors
    assert "blk.0.attn_k.weight.in_products" not in tensors


def test_dat_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    write_dat(path, sums(), ORIGIN)
    data = path.read_bytes()
    count, length = struct.unpack_from("<ii", data)
    assert count == 4 and data[8 : 8 + length] == b"blk.0.attn_q.weight"
    assert struct.unpack_from("<ii", data, 8 + length) == (3, 32)  # calls of 16 tokens each, values
    with open_importance(path) as found:
        assert not found.has_products and found.origin == Origin(("a.txt, b.txt",), 3, 0)
        np.testing.assert_allclose(
            found.diagonal("blk.0.attn_k.weight"), sums()[0].squares[0] / 48, rtol=1e-5
        )
        stack = found.diagonal("blk.0.ffn_up_exps.weight")
        assert stack is not None
        np.testing.assert_allclose(stack.reshape(3, 8)[1], sums()[2].squares[1] / 2, rtol=1e-5)
        np.testing.assert_array_equal(stack.reshape(3, 8)[2], 1)


@pytest.mark.parametrize("width", [1, 2, 7])
def test_upper_triangles(width: int) -> None:
    x = np.random.default_rng(width).standard_normal((width, width)).astype(np.float32)
    matrix = x + x.T
    packed = np.concatenate(list(pack_upper(matrix)))
    assert packed.shape == (width * (width + 1) // 2,)
    np.testing.assert_array_equal(unpack_upper(packed, width), matrix)


def test_every_cut_of_a_dat_is_refused_or_whole(tmp_path: Path) -> None:
    whole = tmp_path / "i.dat"
    write_dat(whole, sums(), Origin((), 3, 16))
    data, cut = whole.read_bytes(), tmp_path / "cut.dat"
    legal = {len(data), len(data) - 4, len(data) - 8}  # older files end after the entries, or the chunks
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        if size in legal:
            open_importance(cut).close()
        else:
            with pytest.raises(ModelError):
                open_importance(cut)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "a number of entries"),
        (struct.pack("<i", -1), "entries"),
        (struct.pack("<i", 1 << 30), "entries"),
        (struct.pack("<iiii", 1, 1 << 30, 0, 0), "a name"),
        (struct.pack("<ii1sii", 1, 1, b"a", 1, 1 << 30), "values"),
        (struct.pack("<ii1siif", 1, 1, b"a", 1, 1, float("nan")), "finite"),
        (struct.pack("<ii1siif", 1, 1, b"a", 1, 1, -1.0), "finite"),
        (struct.pack("<ii1siif", 1, 1, b"a", -1, 1, 1.0), "calls"),
    ],
)
def test_damaged_dat(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad.dat"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=said):
        open_importance(path)


def tensors(**changes: np.ndarray | None) -> list[TensorSource]:
    """Tensors of a small file; changes by suffix, None leaves one out."""
    values: dict[str, np.ndarray | None] = {
        "in_sum2": np.ones((1, 4)),
        "counts": np.ones((1, 1)),
        "in_products": np.eye(4)[np.triu_indices(4)],
        **changes,
    }
    found = {k: v.astype(np.float32) for k, v in values.items() if v is not None}
    return [TensorSource(f"w.weight.{k}", v.shape, "f32", v) for k, v in found.items()]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"in_sum2": None}, "in_sum2"),
        ({"counts": None}, "counts"),
        ({"in_sum2": np.full((1, 4), np.inf)}, "finite"),
        ({"in_sum2": -np.ones((1, 4))}, "finite"),
        ({"counts": np.full((1, 1), -1.0)}, "finite"),
        ({"counts": np.ones((3, 1))}, "whole rows"),
    ],
)
def test_damaged_gguf(tmp_path: Path, changes: dict[str, np.ndarray | None], said: str) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, {"general.type": "imatrix"}, tensors(**changes))
    with pytest.raises(ModelError, match=said):
        open_importance(path)


@pytest.mark.parametrize(
    "products", [np.ones(9), np.full(10, np.nan), -np.eye(4)[np.triu_indices(4)], np.full(10, -9.0)]
)
def test_damaged_products(tmp_path: Path, products: np.ndarray) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, {"general.type": "imatrix"}, tensors(in_products=products))
    with open_importance(path) as found, pytest.raises(ModelError, match=r"w\.weight\.in_products"):
        found.hessian("w.weight")


def test_sharing_names_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    shared = ["w.weight=gone.weight", "gone.weight=w.weight", "=", "w.weight"]
    write_gguf(path, {"general.type": "imatrix", "satchel.imatrix.shared": shared}, tensors())
    with open_importance(path) as found:
        assert found.hessian("w.weight") is not None and found.hessian("gone.weight") is None


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="can't be read"):
        open_importance(tmp_path / "none.gguf")
