"""Files of log-probabilities in the format of llama.cpp's llama-perplexity; each program reads the other's.

Layout: "_logits_"; context, vocabulary size and number of windows (int32 each); the windows' tokens (int32);
then one record per scored token: scale and lowest log-probability (float32), and a uint16 n per token id,
whose log-probability is lowest + scale * n.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.formats.gguf.atomic import replace_files

F32 = npt.NDArray[np.float32]
Records = npt.NDArray[Any]
MAGIC = b"_logits_"
HEADER = struct.Struct("<8s3i")
SPAN = 16.0  # log-probabilities more than 16 below the best are stored as 16 below it
LEVELS = 65535


def scored(context: int) -> int:
    """The number of scored tokens of a window: those after its first half."""
    return context - 1 - context // 2


def record_dtype(vocab: int) -> np.dtype[Any]:
    """The dtype of one record; with an odd vocabulary size it has one padding number."""
    return np.dtype([("scale", "<f4"), ("lowest", "<f4"), ("steps", "<u2", (vocab + vocab % 2,))])


def encode(logits: F32, high: F32, log_sum: F32) -> Records:
    """Records (n) of logits (n, V). high: each row's largest; log_sum: log(sum(exp(logit - high))), (n)."""
    low = np.maximum(logits.min(axis=-1), high - np.float32(SPAN))
    scale = (high - low) / np.float32(LEVELS)
    out = np.zeros(len(logits), record_dtype(logits.shape[-1]))
    out["scale"], out["lowest"] = scale, low - high - log_sum
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = np.clip(np.rint((logits - low[:, None]) * inverse[:, None]), 0, LEVELS)
    out["steps"][:, : logits.shape[-1]] = steps
    return out


def decode(records: Records, vocab: int) -> F32:
    """Log-probabilities (n, V) of records."""
    out: F32 = records["steps"][:, :vocab] * records["scale"][:, None] + records["lowest"][:, None]
    return out


def write_logits(
    path: str | Path,
    context: int,
    vocab: int,
    tokens: Sequence[int],
    fill: Callable[[Callable[[Records], None]], None],
) -> None:
    """Writes a file atomically. fill: gets a function, which it calls with the records of each window, in
    order.

    tokens: of all windows, a multiple of `context`. ValueError where the number of records is wrong.
    """
    replace_files([(Path(path), partial(_write, context, vocab, np.asarray(tokens, "<i4"), fill))])


def _write(
    context: int,
    vocab: int,
    tokens: npt.NDArray[np.int32],
    fill: Callable[[Callable[[Records], None]], None],
    file: IO[bytes],
) -> None:
    windows = len(tokens) // context
    file.write(HEADER.pack(MAGIC, context, vocab, windows) + tokens.tobytes())
    start = file.tell()
    fill(lambda records: _append(file, records))
    wanted = windows * scored(context) * record_dtype(vocab).itemsize
    if file.tell() - start != wanted:
        raise ValueError(f"expected {wanted} bytes of records, got {file.tell() - start}")


def _append(file: IO[bytes], records: Records) -> None:
    file.write(records.tobytes())


@dataclass(frozen=True, slots=True)
class LogitsFile:
    """A checked file. Records are read from disk on demand."""

    path: Path
    context: int
    vocab: int
    tokens: npt.NDArray[np.int32]  # (windows, context)

    def log_probs(self, window: int, start: int, stop: int) -> F32:
        """Log-probabilities (stop - start, V) of a window's scored tokens from start to stop. ModelError
        where they are invalid.
        """
        first = window * scored(self.context)
        records = self._read(first + start, stop - start)
        scale, lowest = records["scale"], records["lowest"]
        good = np.isfinite(scale) & np.isfinite(lowest) & (scale >= 0) & (lowest <= 0)
        if not good.all():
            bad = int(np.argmin(good))
            wanted, got = "expected a scale >= 0 and a lowest <= 0", f"{scale[bad]} and {lowest[bad]}"
            raise ModelError(f"{self.path}: record {first + start + bad}: {wanted}, got {got}; make it again")
        return decode(records, self.vocab)

    def _read(self, first: int, count: int) -> Records:
        """Reads `count` records from `first` on. ModelError where the file is truncated meanwhile."""
        dtype = record_dtype(self.vocab)
        offset = HEADER.size + self.tokens.nbytes + first * dtype.itemsize
        try:
            found = np.fromfile(self.path, dtype, count, offset=offset)
        except OSError as error:
            raise ModelError(f"{self.path}: can't be read: {error.strerror or error}") from None
        if len(found) != count:
            raise ModelError(
                f"{self.path}: expected {count} records from {first} on, got {len(found)}; it was cut"
            )
        return found


def open_logits(path: str | Path) -> LogitsFile:
    """Opens a file and checks its sizes and tokens. ModelError where it is missing, of another kind or
    truncated.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER.size)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror or error}") from None
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise ModelError(
            f"{path}: expected a file of logits, which begins with {MAGIC.decode()}, got {head[:8]!r}; "
            "make one by `satchel perplexity --kl-divergence-base`"
        )
    _, context, vocab, windows = HEADER.unpack(head)
    if context < 4 or vocab < 1 or windows < 1:
        got = f"context {context}, vocabulary {vocab}, windows {windows}"
        raise ModelError(f"{path}: expected positive sizes, got {got}; the file is damaged")
    rows = windows * scored(context)
    wanted = HEADER.size + 4 * windows * context + rows * (8 + 2 * (vocab + vocab % 2))
    if size != wanted:
        raise ModelError(
            f"{path}: {windows} windows of {context} need {wanted:,} bytes, it has {size:,}; make it again"
        )
    tokens = np.fromfile(path, "<i4", windows * context, offset=HEADER.size).reshape(windows, context)
    if tokens.min() < 0 or tokens.max() >= vocab:
        raise ModelError(f"{path}: a token id is not below the vocabulary of {vocab}; the file is damaged")
    return LogitsFile(path, context, vocab, tokens)
