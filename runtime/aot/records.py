"""The tables of the sections that cext/embed reads, as numpy dtypes: cext/embed/sections.h declares the same
structs, and a test compares the two.

A section is a head, then tables in a fixed order, each at a multiple of 8 bytes; the head has their counts,
and the section's size follows from these. All numbers are little-endian.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from satchel.cext import ABI_HASH, dtype_of
from satchel.formats.gguf import Typed, ValueType
from satchel.runtime.graph import Array
from satchel.runtime.weights.weights import PANELS_KEY as PANELS_KEY

PLAN_KEY, TOKENIZER_KEY, TEMPLATE_KEY = "satchel.plan", "satchel.tokenizer", "satchel.template"
KEYS = (PLAN_KEY, TOKENIZER_KEY, TEMPLATE_KEY)
GRAMMAR_PREFIX = "satchel.grammar."  # and a name
HAL_HASH = ABI_HASH  # of the tables that a plan is made of

PLAN_HEAD = np.dtype(
    [
        ("magic", "S8"), ("size", "<u4"), ("crc", "<u4"), ("hal", "<u8"),
        ("file_crc", "<u4"), ("n_names", "<u4"), ("n_weights", "<u4"), ("n_states", "<u4"),
        ("n_groups", "<u4"), ("n_plans", "<u4"), ("n_variants", "<u4"), ("block", "<u4"),
        ("batch", "<u4"), ("vocabulary", "<u4"), ("least_context", "<u4"), ("most_context", "<u4"),
        ("context", "<u4"), ("slots", "<u4"), ("pooling", "<u4"), ("whole", "<u4"), ("width", "<u4"),
        ("zero", "<u4"),
    ]
)  # fmt: skip
PLAN_WEIGHT = np.dtype(
    [
        ("name", "<u4"), ("name_size", "<u4"), ("format", "<u4"), ("packed", "<u4"),
        ("ndim", "<u4"), ("zero", "<u4"), ("shape", "<i8", 4),
    ]
)  # fmt: skip
PLAN_STATE = np.dtype([("unit", "<u8"), ("kinds", "u1", 4), ("zero", "<u4")])
PLAN_GROUP = np.dtype([("window", "<u4"), ("zero", "<u4")])
PLAN_ENTRY = np.dtype(
    [
        ("variant", "<u4"), ("tokens", "<u4"), ("rows", "<u4"), ("n_fields", "<u4"), ("n_steps", "<u4"),
        ("n_views", "<u4"), ("n_ops", "<u4"), ("n_args", "<u4"), ("n_consts", "<u4"), ("what", "<u4"),
        ("arena", "<u8"), ("out", "<u8"), ("output", "<u8"),
    ]
)  # fmt: skip
PLAN_FIELD = np.dtype([("unit", "<u8"), ("kinds", "u1", 4), ("what", "<u2"), ("group", "<u2")])
PLAN_VIEW = np.dtype(
    [("of", "u1"), ("kinds", "u1", 4), ("zero", "u1", 3), ("index", "<u4"), ("zero2", "<u4"),
     ("view", dtype_of("hal_view"))]
)  # fmt: skip

TOKENIZER_HEAD = np.dtype(
    [
        ("magic", "S8"), ("size", "<u4"), ("crc", "<u4"), ("n_tokens", "<u4"), ("n_bytes", "<u4"),
        ("n_merges", "<u4"), ("n_words", "<u4"), ("n_specials", "<u4"), ("n_ends", "<u4"),
        ("n_programs", "<u4"), ("n_code", "<u4"), ("n_classes", "<u4"), ("n_ranges", "<u4"),
        ("n_maps", "<u4"), ("n_points", "<u4"), ("n_charsmap", "<u4"), ("flags", "<u4"), ("kind", "<u4"),
        ("bos", "<i4"), ("eos", "<i4"), ("unknown", "<i4"), ("unknown_score", "<f4"), ("zero", "<u4"),
    ]
)  # fmt: skip
TOKENIZER_MERGE = np.dtype([("left", "<u4"), ("right", "<u4"), ("made", "<u4"), ("rank", "<u4")])
TOKENIZER_WORD = np.dtype([("token", "<u4"), ("at", "<u4"), ("size", "<u4"), ("value", "<u4")])
TOKENIZER_SPECIAL = np.dtype([("token", "<u4"), ("flags", "<u4")])
TOKENIZER_CODE = np.dtype([("op", "<u4"), ("a", "<u4"), ("b", "<u4"), ("c", "<u4")])
TOKENIZER_CLASS = np.dtype([("first", "<u4"), ("count", "<u4")])
TOKENIZER_RANGE = np.dtype([("low", "<u4"), ("high", "<u4")])
TOKENIZER_MAP = np.dtype(
    [("low", "<u4"), ("high", "<u4"), ("kind", "<u4"), ("value", "<u4"), ("count", "<u4"), ("zero", "<u4")]
)

GRAMMAR_HEAD = np.dtype(
    [
        ("magic", "S8"), ("size", "<u4"), ("crc", "<u4"), ("n_rules", "<u4"), ("n_states", "<u4"),
        ("n_ranges", "<u4"), ("n_calls", "<u4"),
    ]
)  # fmt: skip
GRAMMAR_STATE = np.dtype([("first_range", "<u4"), ("first_call", "<u4"), ("final", "<u4"), ("zero", "<u4")])
GRAMMAR_RANGE = np.dtype([("low", "u1"), ("high", "u1"), ("zero", "<u2"), ("to", "<u4")])
GRAMMAR_CALL = np.dtype([("rule", "<u4"), ("to", "<u4")])


def sections_of(keys: Iterable[str]) -> set[str]:
    """Those of these keys that hold sections which the C library checks by themselves; the plan's checksum
    covers all others.
    """
    return {key for key in keys if key in KEYS or key.startswith(GRAMMAR_PREFIX)}


TEMPLATE_HEAD = np.dtype(
    [
        ("magic", "S8"), ("size", "<u4"), ("crc", "<u4"), ("n_variants", "<u4"), ("n_code", "<u4"),
        ("n_macros", "<u4"), ("n_constants", "<u4"), ("n_members", "<u4"), ("n_variables", "<u4"),
        ("n_escapes", "<u4"), ("n_markers", "<u4"), ("n_ranges", "<u4"), ("n_cases", "<u4"),
        ("n_bytes", "<u4"), ("flags", "<u4"), ("mark", "<u4"), ("refused", "<u4"), ("thinking_begin", "<u4"),
        ("thinking_end", "<u4"), ("calls_format", "<u4"), ("calls_begin", "<u4"), ("switches", "<u4"),
        ("zero", "<u4"),
    ]
)  # fmt: skip
TEMPLATE_VARIANT = np.dtype(
    [
        ("name", "<u4"), ("entry", "<u4"), ("n_slots", "<u4"), ("source", "<u4"), ("flags", "<u4"),
        ("tools_place", "<u4"), ("tools_name", "<u4"), ("call_arguments", "<u4"), ("call_content", "<u4"),
        ("zero", "<u4"),
    ]
)  # fmt: skip
TEMPLATE_CODE = np.dtype([("op", "u1"), ("count", "u1"), ("line", "<u2"), ("a", "<u4"), ("b", "<u4")])
TEMPLATE_MACRO = np.dtype(
    [
        ("entry", "<u4"), ("n_slots", "<u4"), ("name", "<u4"), ("arguments", "<u4"), ("flags", "<u4"),
        ("zero", "<u4"),
    ]
)  # fmt: skip
TEMPLATE_CONSTANT = np.dtype([("kind", "<u4"), ("size", "<u4"), ("value", "<i8")])
TEMPLATE_VARIABLE = np.dtype([("name", "<u4"), ("value", "<u4")])
TEMPLATE_ESCAPE = np.dtype([("from", "<u4"), ("to", "<u4")])
TEMPLATE_RANGE = np.dtype([("low", "<u4"), ("high", "<u4")])
TEMPLATE_CASE = np.dtype(
    [("kind", "<u4"), ("step", "<u4"), ("low", "<u4"), ("high", "<u4"), ("delta", "<i4")]
)


def section(head: Array, tables: Sequence[Array | bytes]) -> bytes:
    """A section's bytes, with its size and CRC-32 (of all that follows the CRC) in the head."""
    parts = [table if isinstance(table, bytes) else table.tobytes() for table in tables]
    body = b"".join(part + bytes(-len(part) % 8) for part in parts)
    head["size"] = head.dtype.itemsize + len(body)
    head["crc"] = zlib.crc32(body, zlib.crc32(head.tobytes()[16:]))
    return head.tobytes() + body


def as_value(raw: bytes) -> Typed:
    """The section as a metadata value: an array of uint64, of which readers that take elements one by one
    have an eighth to read.
    """
    return Typed(ValueType.ARRAY, np.frombuffer(raw, "<u8"), ValueType.UINT64)
