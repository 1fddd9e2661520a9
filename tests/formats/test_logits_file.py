"""Files of log-probabilities: llama.cpp's layout byte for byte, exact sizes, and every field checked before
use.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from satchel.errors import ModelError
from satchel.formats.logits import decode, encode, open_logits, record_dtype, scored, write_logits

CONTEXT, VOCAB, WINDOWS = 8, 7, 2
TOKENS = [i % VOCAB for i in range(CONTEXT * WINDOWS)]


def by_hand(logits: np.ndarray) -> bytes:
    """One record as llama-perplexity's log_softmax computes it, value by value."""
    values = [float(x) for x in logits]
    high = max(values)
    low = max(min(values), high - 16)
    log_sum = np.log(sum(np.exp(v - high) for v in values))
    scale = (high - low) / 65535
    steps = [round((v - low) / scale) if scale and v > low else 0 for v in values]
    return struct.pack(f"<2f{len(steps)}H", scale, low - high - log_sum, *steps) + bytes(2 * (len(steps) % 2))


def softmax_parts(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = logits.max(axis=-1)
    return high, np.log(np.exp(logits - high[:, None]).sum(axis=-1)).astype(np.float32)


def random_logits(rows: int, vocab: int = VOCAB, scale: float = 4) -> np.ndarray:
    return (np.random.default_rng(rows).standard_normal((rows, vocab)) * scale).astype(np.float32)


def write(path: Path) -> Path:
    def fill(keep: Callable[[np.ndarray], None]) -> None:
        for _ in range(WINDOWS):
            logits = random_logits(scored(CONTEXT))
            keep(encode(logits, *softmax_parts(logits)))

    write_logits(path, CONTEXT, VOCAB, TOKENS, fill)
    return path


@pytest.mark.parametrize("vocab", [1, 2, 7, 300])
@pytest.mark.parametrize("scale", [0, 0.01, 4, 1000])
def test_records_are_llama_cpp_s(vocab: int, scale: float) -> None:
    logits = random_logits(5, vocab, scale)
    made = encode(logits, *softmax_parts(logits))
    for record, row in zip(made, logits, strict=True):
        wanted = np.frombuffer(by_hand(row), record_dtype(vocab))[0]
        assert np.allclose(
            [record["scale"], record["lowest"]], [wanted["scale"], wanted["lowest"]], rtol=1e-5
        )
        assert np.abs(record["steps"].astype(int) - wanted["steps"].astype(int)).max() <= 1


def test_what_is_decoded_is_near() -> None:
    logits = random_logits(6, 100)
    high, log_sum = softmax_parts(logits)
    exact = np.maximum(logits - high[:, None], -16) - log_sum[:, None]
    assert np.abs(decode(encode(logits, high, log_sum), 100) - exact).max() < 16 / 65535


def test_layout_of_the_file(tmp_path: Path) -> None:
    data = write(tmp_path / "base").read_bytes()
    rows = WINDOWS * (CONTEXT - 1 - CONTEXT // 2)
    assert data[:20] == b"_logits_" + struct.pack("<3i", CONTEXT, VOCAB, WINDOWS)
    assert data[20 : 20 + 64] == struct.pack(f"<{len(TOKENS)}i", *TOKENS)
    assert len(data) == 84 + rows * 2 * (2 * ((VOCAB + 1) // 2) + 4)
    assert data[84 : 84 + 8 + 2 * VOCAB][8:] == by_hand(random_logits(scored(CONTEXT))[0])[8 : 8 + 2 * VOCAB]


def test_read_back(tmp_path: Path) -> None:
    found = open_logits(write(tmp_path / "base"))
    assert (found.context, found.vocab) == (CONTEXT, VOCAB)
    assert found.tokens.reshape(-1).tolist() == TOKENS
    logits = random_logits(scored(CONTEXT))
    high, log_sum = softmax_parts(logits)
    exact = np.maximum(logits - high[:, None], -16) - log_sum[:, None]
    for window in range(WINDOWS):
        assert np.abs(found.log_probs(window, 1, 3) - exact[1:3]).max() < 1e-3


def test_wrong_number_of_records_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="records"):
        write_logits(tmp_path / "base", CONTEXT, VOCAB, TOKENS, lambda keep: None)
    assert list(tmp_path.iterdir()) == []


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: b"", "begins with"),
        (lambda d: d[:19], "begins with"),
        (lambda d: patched(d, 0, b"GGUF"), "begins with"),
        (lambda d: d[:-1], "make it again"),
        (lambda d: d + b"\0", "make it again"),
        (lambda d: patched(d, 8, struct.pack("<i", -8)), "damaged"),
        (lambda d: patched(d, 8, struct.pack("<i", 3)), "damaged"),
        (lambda d: patched(d, 12, struct.pack("<i", 0)), "damaged"),
        (lambda d: patched(d, 12, struct.pack("<i", 2**31 - 1)), "make it again"),
        (lambda d: patched(d, 16, struct.pack("<i", -1)), "damaged"),
        (lambda d: patched(d, 16, struct.pack("<i", 2**31 - 1)), "make it again"),
        (lambda d: patched(d, 8, struct.pack("<3i", *[2**31 - 1] * 3)), "make it again"),
        (lambda d: patched(d, 24, struct.pack("<i", VOCAB)), "token id"),
        (lambda d: patched(d, 24, struct.pack("<i", -1)), "token id"),
    ],
)
def test_damaged_files(tmp_path: Path, change: Callable[[bytes], bytes], says: str) -> None:
    path = write(tmp_path / "base")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ModelError, match=says):
        open_logits(path)


@pytest.mark.parametrize("bad", [(np.nan, -1), (np.inf, -1), (-1, -1), (1, np.nan), (1, 5), (1, -np.inf)])
def test_damaged_records(tmp_path: Path, bad: tuple[float, float]) -> None:
    path = write(tmp_path / "base")
    size = record_dtype(VOCAB).itemsize
    path.write_bytes(patched(path.read_bytes(), 84 + size, struct.pack("<2f", *bad)))
    with pytest.raises(ModelError, match="record 1"):
        open_logits(path).log_probs(0, 0, 3)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="can't be read"):
        open_logits(tmp_path / "none")
