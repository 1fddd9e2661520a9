"""The GGUF container: a reader that checks every byte of the header, an atomic writer, and typed metadata."""

from satchel.formats.gguf.describe import describe
from satchel.formats.gguf.header import TensorInfo
from satchel.formats.gguf.metadata import Metadata
from satchel.formats.gguf.opened import OpenFile, open_file
from satchel.formats.gguf.reader import GGUF, Part, open_gguf
from satchel.formats.gguf.types import TENSOR_TYPES, TYPE_IDS, TensorType, ValueType
from satchel.formats.gguf.values import StringArray, Typed, Value, typed
from satchel.formats.gguf.writer import TensorSource, fill_gguf, sources, write_gguf

__all__ = [
    "GGUF",
    "TENSOR_TYPES",
    "TYPE_IDS",
    "Metadata",
    "OpenFile",
    "Part",
    "StringArray",
    "TensorInfo",
    "TensorSource",
    "TensorType",
    "Typed",
    "Value",
    "ValueType",
    "describe",
    "fill_gguf",
    "open_file",
    "open_gguf",
    "sources",
    "typed",
    "write_gguf",
]
