"""Messages between a program and its worker process: a JSON object followed by raw bytes, each with a length
prefix. Only the kinds of values listed here are carried: nothing that is read can run code, and a received
length never reserves more than a message may have.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.chat import Style
from satchel.formats.gguf import OpenFile
from satchel.runtime.adapter_file import AdapterFile
from satchel.runtime.api.options import Options
from satchel.runtime.api.refusals import Busy, PromptTooLong, QueueFull
from satchel.runtime.engine.beam import Beam
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.resume import Restored
from satchel.runtime.engine.stats import Distribution, EngineStats
from satchel.runtime.engine.tally import Usage
from satchel.runtime.grammar.spec import (
    AnyJson,
    Choice,
    Gbnf,
    JsonSchema,
    Lark,
    Regex,
    ToolCallGrammar,
    ToolSchema,
    dump,
)
from satchel.runtime.graph import Array
from satchel.runtime.kv import Miss
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import Sampling
from satchel.runtime.sampling.dry import Breakers
from satchel.runtime.sampling.logprobs import Logprob
from satchel.runtime.scheduler import SchedulerLimits
from satchel.runtime.speculation import Speculation
from satchel.runtime.tasks.likelihood import Scored
from satchel.runtime.tasks.rerank import Ranked

LENGTHS = struct.Struct("<QQ")  # bytes of the JSON object, bytes after it
PART = 1 << 18  # most raw bytes of a message: a fraction of a millisecond
MOST = 1 << 22  # most bytes of a JSON object that a worker sends
MOST_REQUEST = 1 << 32  # most bytes of a JSON object that the program sends
TEXT = 1 << 16  # most characters of an error or a log line
KIND, VALUE = "$", "v"
CARRIED: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Beam,
        Breakers,
        Cache,
        Choice,
        Distribution,
        EngineStats,
        AdapterFile,
        GenerateRequest,
        Gbnf,
        AnyJson,
        JsonSchema,
        Lark,
        SchedulerLimits,
        Logprob,
        Options,
        Ranked,
        Regex,
        Restored,
        Sampled,
        Sampling,
        Scored,
        Speculation,
        Style,
        ToolSchema,
        ToolCallGrammar,
        Usage,
    )
}
SCHEMAS = {
    ("JsonSchema", "schema"),
    ("ToolSchema", "parameters"),
}  # fields of any depth, which travel as JSON text
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        Busy,
        DeviceError,
        MemoryError,
        ModelError,
        OSError,
        PromptTooLong,
        QueueFull,
        RequestError,
        TypeError,
        ValueError,
    )
}
# What decoding raises for a value that encode() did not make.
UNFIT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1")
Message = dict[str, Any]


class Arrays:
    """Arrays of a value to send; their bytes follow it, one after another."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self.size = 0

    def add(self, array: Array) -> dict[str, Any]:
        """The placeholder in the value for the array."""
        plain = np.ascontiguousarray(array)
        if plain.dtype.str not in DTYPES:
            raise RequestError(f"an array of {plain.dtype} cannot be sent to another process")
        told = {KIND: "array", VALUE: [plain.dtype.str, list(plain.shape), self.size]}
        self.parts.append(plain.reshape(-1).view(np.uint8).data)
        self.size += plain.nbytes
        return told


NO_BYTES: Array = np.empty(0, np.uint8)


def write_message(file: BinaryIO, message: Message, data: bytes | memoryview = b"") -> None:
    """Writes one message; the caller holds the lock."""
    file.write(_lead(message, data))
    if data:
        file.write(data)
    file.flush()


def pack_message(message: Message, data: bytes = b"") -> bytes:
    """One message as bytes."""
    return _lead(message, data) + data


def _lead(message: Message, data: bytes | memoryview) -> bytes:
    """A message before its raw bytes."""
    head = json.dumps(message, separators=(",", ":")).encode()
    return LENGTHS.pack(len(head), len(data)) + head


def read_message(file: BinaryIO, most: int = MOST) -> tuple[Message, bytes] | None:
    """The next message; None at the end of the pipe, even inside a message. Raises DeviceError for a JSON
    object of more than `most` bytes, more than PART raw bytes, or an invalid message.
    """
    lengths = file.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_size, data_size = LENGTHS.unpack(lengths)
    if head_size > most or data_size > PART:
        told = f"{head_size:,} and {data_size:,} bytes, expected {most:,} and {PART:,} at most"
        raise DeviceError(f"the worker process sent a message of {told}")
    head, data = file.read(head_size), file.read(data_size)
    if len(head) < head_size or len(data) < data_size:
        return None
    try:
        message: Message = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"the worker process sent what is no message, for it is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise DeviceError(f"the worker process sent {head[:40]!a}, which is no message")
    return message, data


def encode(value: Any, arrays: Arrays | None = None) -> Any:
    """A value as JSON. Arrays go into `arrays`, or become lists without it. Raises RequestError for a value
    that cannot be sent to another process.
    """
    if isinstance(value, Miss):
        return {KIND: "Miss", VALUE: value.value}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [v if type(v) is int else encode(v, arrays) for v in value]
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist() if arrays is None else arrays.add(value)
    if isinstance(value, (tuple, frozenset)):
        return {KIND: type(value).__name__, VALUE: [encode(v, arrays) for v in value]}
    if isinstance(value, Mapping):
        return {KIND: "dict", VALUE: [[encode(k), encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, OpenFile):  # its descriptor travels beside the message
        return {KIND: "file", VALUE: str(value.path)}
    name = type(value).__name__
    if is_dataclass(value) and CARRIED.get(name) is type(value):
        named = ((f.name, getattr(value, f.name)) for f in fields(value) if f.init)
        return {KIND: name, VALUE: {field: _encode_field(name, field, v, arrays) for field, v in named}}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [encode(v, arrays) for v in value]
    raise RequestError(
        f"a {name} cannot be sent to a worker process: load the model with worker='thread' to use it"
    )


def _encode_field(name: str, field: str, value: Any, arrays: Arrays | None) -> Any:
    if (name, field) in SCHEMAS and isinstance(value, Mapping):
        return {KIND: "json", VALUE: dump(value, "the JSON schema")}
    return encode(value, arrays)


def decode(value: Any, data: Array = NO_BYTES) -> Any:
    """The inverse of encode(). data: the arrays' bytes, uint8. Raises DeviceError for anything that encode()
    does not make, because the other side is not trusted.
    """
    try:
        return _decode(value, data)
    except (*UNFIT, RequestError) as error:  # RequestError: an option out of range
        raise DeviceError(f"the worker process sent a value that cannot be read: {error}") from None


def _decode(value: Any, data: Array) -> Any:
    if isinstance(value, list):
        return [v if type(v) is int else _decode(v, data) for v in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value.get(KIND), value.get(VALUE)
    if kind in CARRIED and isinstance(inner, dict):
        return CARRIED[kind](**{name: _decode(v, data) for name, v in inner.items()})
    if kind == "file":
        return OpenFile(Path(str(inner)))
    if kind == "Miss":
        return Miss(str(inner))
    if kind == "json" and isinstance(inner, str):
        return json.loads(inner)
    if kind == "array" and isinstance(inner, list) and inner[0] in DTYPES:
        return _array(data, *inner)
    if kind in ("tuple", "frozenset", "dict") and isinstance(inner, list):
        items: list[Any] = [v if type(v) is int else _decode(v, data) for v in inner]
        return tuple(items) if kind == "tuple" else frozenset(items) if kind == "frozenset" else dict(items)
    raise DeviceError(f"the worker process sent a value of the kind {kind!r}, which is not known")


def _array(data: Array, name: str, shape: Sequence[int], at: int) -> Array:
    """The array in the bytes from `at` on. Raises ValueError if it exceeds them."""
    if not all(isinstance(n, int) and n >= 0 for n in (at, *shape)):
        raise ValueError(f"an array of the shape {shape} at {at}")
    size = math.prod(shape) * np.dtype(name).itemsize
    if at + size > len(data):
        raise ValueError(f"an array of {size:,} bytes at {at:,} of {len(data):,}")
    return data[at : at + size].view(name).reshape(shape)


def encode_error(error: Exception) -> list[Any]:
    """An error's kind, or the nearest one that is carried, its text and its numbers. Any other kind
    is a bug.
    """
    kind = next((k.__name__ for k in type(error).__mro__ if ERRORS.get(k.__name__) is k), "")
    if not kind:
        return ["DeviceError", repr(error)[:TEXT], {}]
    return [kind, str(error)[:TEXT], {name: n for name, n in vars(error).items() if isinstance(n, int)}]


def decode_error(value: Any) -> Exception:
    """The inverse of encode_error(); a DeviceError if the kind, text or numbers are invalid."""
    try:
        name, text, numbers = value
        kind = ERRORS.get(name, DeviceError)
        error = kind.__new__(kind, text)  # its message is formatted already
        vars(error).update({key: n for key, n in numbers.items() if isinstance(n, int)})
    except UNFIT as wrong:
        return DeviceError(f"the worker process sent an error that cannot be read: {wrong}")
    return error
