"""The container's rules on names, shapes, types and alignment, shared by reader and writer.

A rule raises Violation("expected X, got Y"). The caller, which knows the file and the byte, turns it into the
error that users see. Sizes are Python integers, so they cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

from satchel.errors import ModelError
from satchel.formats.gguf.types import REMOVED_TYPES, TENSOR_TYPES, TensorType

KEY_LIMIT = 65_535  # bytes: the limit of the GGUF specification
NAME_LIMIT = 63  # bytes: ggml stores a name in 64 bytes with a terminating zero
DIMS_LIMIT = 4
ALIGNMENT_LIMIT = 1 << 21  # bytes: a huge page
COUNT_LIMIT = 1 << 20  # keys, or tensors: bounds the memory and time of parsing a header
HEADER_LIMIT = 1 << 28  # bytes before the tensor data, for the same reason
NUMBER_LIMIT = (1 << 63) - 1
FAULTS_LIMIT = 1000  # bounds the memory of a file with many faults

AGAIN = "the file is damaged or no GGUF: download or convert it again"


class Violation(ValueError):
    """A rule of the container is broken; the text says what was expected and what was found."""


class Fault(ModelError):
    """A ModelError about one place of a file, with its parts as attributes.

    subject: a key, a tensor, or a part of the header.
    at: the byte offset, or None.
    reason: "expected X, got Y".
    do: what the user can do.
    """

    def __init__(self, source: str, subject: str, at: int | None, reason: str, do: str) -> None:
        shown = subject if len(subject) <= 100 else f"{subject[:97]}..."
        place = "" if at is None else f" at byte {at}"
        super().__init__(f"{source}: {shown}{place}: {reason}; {do}")
        self.subject, self.at, self.reason, self.do = subject, at, reason, do


class Judge:
    """Decides whether a reader continues after a broken rule that it could read past. This one never does."""

    def refuse(self, error: ModelError) -> None:
        raise error

    def place(self, part: int, key: str, at: int) -> None:
        """Called with the byte offset of each key in its part."""


class Survey(Judge):
    """Lets the reader continue and collects its errors in `faults`, in file order. The error after
    FAULTS_LIMIT of them ends the reading.
    """

    def __init__(self) -> None:
        self.faults: list[ModelError] = []
        self.places: dict[str, int] = {}

    def refuse(self, error: ModelError) -> None:
        if len(self.faults) >= FAULTS_LIMIT:
            raise error
        self.faults.append(error)

    def place(self, part: int, key: str, at: int) -> None:
        if part == 0:
            self.places.setdefault(key, at)


STRICT = Judge()


def fault(path: Path, what: str, at: int, reason: str, do: str = AGAIN) -> Fault:
    """The one-line error of a malformed file. `what` may be a key, which is printable but up to
    64 KB long.
    """
    return Fault(str(path), what, at, reason, do)


def quote(text: str | bytes, limit: int = 60) -> str:
    """Untrusted text escaped to ASCII for one line of a terminal, and truncated."""
    shown = ascii(text) if isinstance(text, str) else ascii(text.decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= limit else f"{shown[: limit - 4]}...'"


def decode_name(raw: bytes, limit: int) -> str:
    """A key or a tensor's name: 1 to `limit` bytes of UTF-8 without control characters."""
    if not 0 < len(raw) <= limit:
        raise Violation(f"expected 1 to {limit} bytes, got {len(raw)}")
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise Violation(f"expected UTF-8, got {quote(raw)} ({error.reason})") from None
    if not name.isprintable():
        raise Violation(f"expected printable characters, got {quote(name)}")
    return name


def check_alignment(alignment: int) -> int:
    if not 0 < alignment <= ALIGNMENT_LIMIT or alignment & (alignment - 1):
        raise Violation(f"expected a power of two up to {ALIGNMENT_LIMIT}, got {alignment}")
    return alignment


def find_type(number: int) -> TensorType:
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        state = "which ggml removed" if number in REMOVED_TYPES else "which this version does not know"
        raise Violation(f"expected one of the {len(TENSOR_TYPES)} tensor types, got {number}, {state}")
    return kind


def check_size(shape: Sequence[int], kind: TensorType) -> int:
    """Bytes of a tensor of this shape (outermost dimension first).

    A dimension may be 0. The product of the others must still fit 63 bits, in elements and in bytes, because
    numpy and C multiply them.
    """
    if shape and not 0 <= min(shape) <= max(shape) <= NUMBER_LIMIT:
        raise Violation(f"expected dimensions from 0 to 2^63-1, got {list(shape)}")
    row = shape[-1] if shape else 1
    if row % kind.block:
        raise Violation(f"expected rows of a multiple of {kind.block} elements ({kind.name}), got {row}")
    empty = 0 in shape
    elements = prod(max(dim, 1) for dim in shape) if empty else prod(shape)
    if max(elements, elements // kind.block * kind.size) > NUMBER_LIMIT:
        raise Violation(f"expected a tensor below 2^63 bytes, got {list(shape)} of {kind.name}")
    return 0 if empty else elements // kind.block * kind.size


def pad(size: int, alignment: int) -> int:
    return -size % alignment
