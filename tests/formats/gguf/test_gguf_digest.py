"""Digests of tensors, files and models; the model's own is independent of order, parts and alignment."""

from __future__ import annotations

import hashlib
from pathlib import Path

import mini_file
import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.formats.gguf import TensorSource, open_gguf, sources, write_gguf
from satchel.formats.gguf.digest import ALGORITHMS, compare, data_digest, digest, read_manifest
from satchel.formats.gguf.histogram import histogram


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_digests_are_those_of_the_bytes(algorithm: str, tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf")
    raw = path.read_bytes()
    calls: list[tuple[int, int]] = []
    with open_gguf(path) as gguf:
        found = digest(gguf, algorithm, lambda done, total: calls.append((done, total)))
        wanted = {
            name: hashlib.new(algorithm, raw[info.offset : info.offset + info.nbytes]).hexdigest()
            for name, info in gguf.tensors.items()
        }
        data = hashlib.new(algorithm)
        for info in gguf.tensors.values():
            data.update(raw[info.offset : info.offset + info.nbytes])
        assert data_digest(gguf, algorithm) == data.hexdigest()
    assert found.tensors == wanted and list(found.tensors) == list(wanted)
    assert found.files == {"m.gguf": hashlib.new(algorithm, raw).hexdigest()}
    assert calls[-1][0] == calls[-1][1] == len(raw) + sum(i.nbytes for i in gguf.tensors.values())


def test_the_model_is_the_same_in_any_order_parts_and_alignment(tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf")
    with open_gguf(path) as gguf:
        wanted = digest(gguf)
        turned = list(reversed(sources(gguf)))
        write_gguf(tmp_path / "turned.gguf", {"other": "keys"}, turned, alignment=256)
        first, *_ = write_gguf(tmp_path / "parts.gguf", gguf.metadata, sources(gguf), max_size=3000)
        renamed = [TensorSource("x" + s.name, s.shape, s.type, s.data) for s in turned]
        write_gguf(tmp_path / "renamed.gguf", {}, renamed)
        flat = [TensorSource(s.name, (1, *s.shape), s.type, s.data) for s in turned]
        write_gguf(tmp_path / "reshaped.gguf", {}, flat)
    lines = (
        f"{n} {gguf.tensors[n].format} {'x'.join(map(str, gguf.tensors[n].shape))} {d}\n"
        for n, d in sorted(wanted.tensors.items())
    )
    assert wanted.model == hashlib.sha256("".join(lines).encode()).hexdigest()
    for name, same in (
        ("turned.gguf", True),
        (first.name, True),
        ("renamed.gguf", False),
        ("reshaped.gguf", False),
    ):
        with open_gguf(tmp_path / name) as gguf:
            assert (digest(gguf).model == wanted.model) == same


def test_a_manifest_of_ours_compares_equal_and_names_what_changed(tmp_path: Path) -> None:
    path, manifest = mini_file.write_mini(tmp_path / "m.gguf"), tmp_path / "m.txt"
    with open_gguf(path) as gguf:
        found = digest(gguf)
        manifest.write_text("\n".join(found.lines()) + "\n")
        assert compare(gguf, found, read_manifest(manifest, "sha256")) == []
        at = gguf.tensors["blk.0.ffn_up.weight"].offset + 3
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with open_gguf(path) as gguf:
        wrong = compare(gguf, digest(gguf), read_manifest(manifest, "sha256"))
    named = [line.split(":")[0] for line in wrong]
    assert named == ["tensor blk.0.ffn_up.weight", "file m.gguf", "the model"]


def test_manifests_of_others_are_read(tmp_path: Path) -> None:
    """sha256sum's lines name a file; gguf-hash's last line covers the tensors' bytes in order."""
    path, manifest = mini_file.write_mini(tmp_path / "m.gguf"), tmp_path / "m.txt"
    with open_gguf(path) as gguf:
        found = digest(gguf)
        for text, good in (
            (f"{found.files['m.gguf']}  m.gguf\n", True),
            (f"{found.files['m.gguf'].upper()} *elsewhere.gguf\n", True),
            (f"sha256    {data_digest(gguf, 'sha256')}  m.gguf\n", True),
            (f"{'0' * 64}  m.gguf\n", False),
            (
                f"# made by hand\n\nsha256 {found.tensors['output_norm.weight']} m.gguf:output_norm.weight\n",
                False,
            ),
        ):
            manifest.write_text(text)
            assert (compare(gguf, found, read_manifest(manifest, "sha256")) == []) == good


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hello", "sha256 xyz m.gguf", "sha256", "a" * 7 + " m", "\0" * 64]
)
def test_what_is_no_manifest_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(RequestError, match="give a manifest"):
        read_manifest(path, "sha256")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="got no text"):
        read_manifest(path, "sha256")
    with pytest.raises(RequestError, match="can't be read"):
        read_manifest(tmp_path / "none", "sha256")


def test_an_unknown_algorithm_is_refused(tmp_path: Path) -> None:
    with (
        open_gguf(mini_file.write_mini(tmp_path / "m.gguf")) as gguf,
        pytest.raises(RequestError, match="crc32"),
    ):
        digest(gguf, "crc32")


def write_values(path: Path, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Path:
    write_gguf(path, {}, [TensorSource("t", x.shape, "f32", x), TensorSource("none", (0,), "f32", b"")])
    return path


def test_a_histogram_counts_every_number_once(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((300, 64)).astype(np.float32)
    x[0, :3] = 0
    with open_gguf(write_values(tmp_path / "m.gguf", x)) as gguf:
        found = histogram(gguf, "t", 17)
    assert (found.count, sum(found.counts), len(found.counts), found.zeros) == (x.size, x.size, 17, 3)
    assert found.counts == tuple(np.histogram(x.astype(np.float64), found.edges)[0])
    assert (found.least, found.largest) == (float(x.min()), float(x.max()))
    assert found.mean == pytest.approx(float(x.mean(dtype=np.float64))) and found.deviation == pytest.approx(
        float(x.std()), 1e-5
    )


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([[2.5, 2.5]], 1),
        ([[0.0, 0.0]], 1),
        ([[-3e38, 3e38]], 5),
        ([[1.0, np.nextafter(np.float32(1), np.float32(2))]], 5),
        ([[1e-45, 2e-45]], 5),
        ([[np.nan, 1.0, -np.inf, 2.0]], 5),
    ],
    ids=["one-value", "zeros", "widest", "closest", "subnormal", "not-numbers"],
)
def test_extreme_values_have_a_histogram(values: list[list[float]], counts: int, tmp_path: Path) -> None:
    x = np.array(values, np.float32)
    with open_gguf(write_values(tmp_path / "m.gguf", x)) as gguf:
        found = histogram(gguf, "t", 5)
    assert sum(found.counts) == int(np.isfinite(x).sum()) and len(found.counts) <= counts
    assert found.nan == int((~np.isfinite(x)).sum())


def test_what_has_no_histogram(tmp_path: Path) -> None:
    x = np.full((2, 2), np.nan, np.float32)
    with open_gguf(write_values(tmp_path / "m.gguf", x)) as gguf:
        for name, bins, match in (
            ("t", 5, "none of them"),
            ("none", 5, "got 0 values"),
            ("x", 5, "got none"),
            ("t", 0, "bins"),
        ):
            with pytest.raises(RequestError, match=match):
                histogram(gguf, name, bins)
