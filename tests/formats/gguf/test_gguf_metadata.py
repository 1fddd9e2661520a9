"""Typed access to metadata: what each getter accepts and refuses; an error names the key, the expected type
and the value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from satchel.errors import ModelError
from satchel.formats.gguf import Metadata, StringArray, ValueType, typed

WIDTHS = [kind for kind in ValueType if kind.name.lstrip("U").startswith("INT")]
META = Metadata.of(
    {
        **{f"one.{kind.name}": typed(7, kind) for kind in WIDTHS},
        "minus": -1,
        "large": 1 << 33,
        "half": 0.5,
        "double": typed(0.25, ValueType.FLOAT64),
        "nan": math.nan,
        "inf": math.inf,
        "yes": True,
        "text": "hello",
        "ints": [1, 2, 3],
        "floats": [0.5, math.nan],
        "bools": [True, False],
        "words": ["a", "b"],
        "none": typed([], ValueType.STRING),
        "broken": StringArray.of(["ok", b"a\xffb"]),
    },
    "m.gguf",
)


@pytest.mark.parametrize("kind", WIDTHS)
def test_integers_of_every_width_are_integers(kind: ValueType) -> None:
    assert META.get_uint(f"one.{kind.name}", low=7, high=7) == 7


def test_getters_give_values_and_defaults() -> None:
    assert META.get_float("half") == 0.5 and META.get_float("double", low=0.25, high=0.25) == 0.25
    assert META.get_bool("yes") is True and META.get_str("text") == "hello"
    assert META.get_uint("large", high=1 << 40) == 1 << 33
    assert META.get_array("ints", kind="int", length=3).tolist() == [1, 2, 3]
    assert math.isnan(META.get_array("floats", kind="float")[1])
    assert META.get_array("words", kind="str", length=2).tolist() == ["a", "b"]
    assert META.get_array("none", kind="str") == []
    assert META.get_uint("no", 5) == 5 and META.get_uint("no", None) is None
    assert (
        META.get_float("no", 0.5) == 0.5
        and META.get_bool("no", False) is False
        and META.get_str("no", "") == ""
    )
    assert META.get_array("no", None, kind="str") is None
    assert META.get_uints("ints", 3) == (1, 2, 3) and META.get_uints("one.UINT32", 2) == (7, 7)
    assert META.get_uints("no", 2, None) is None


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("get_uint", "no", {}, "expected an integer from 0 to 4294967295, got no such key"),
    ("get_uint", "minus", {}, "from 0 to 4294967295, got -1"),
    ("get_uint", "large", {}, "got 8589934592"),
    ("get_uint", "one.UINT8", {"low": 8}, "from 8 to 4294967295, got 7"),
    ("get_uint", "one.UINT8", {"high": 6}, "from 0 to 6, got 7"),
    ("get_uint", "yes", {}, "got bool True"),
    ("get_uint", "yes", {"default": 3}, "got bool True"),
    ("get_uint", "half", {}, "got float32 0.5"),
    ("get_uint", "text", {}, "got string 'hello'"),
    ("get_uint", "ints", {}, "got array of int32"),
    ("get_float", "no", {}, "expected a finite float, got no such key"),
    ("get_float", "nan", {}, "expected a finite float, got nan"),
    ("get_float", "inf", {}, "got inf"),
    ("get_float", "one.UINT8", {}, "got uint8 7"),
    ("get_float", "half", {"low": 0.75}, "a finite float from 0.75 to inf, got 0.5"),
    ("get_float", "yes", {}, "got bool True"),
    ("get_bool", "one.UINT8", {}, "expected a bool, got uint8 7"),
    ("get_bool", "no", {}, "no such key"),
    ("get_str", "yes", {}, "expected a string, got bool True"),
    ("get_str", "words", {}, "got array of string"),
    ("get_array", "no", {"kind": "str"}, "expected an array of str values, got no such key"),
    ("get_array", "text", {"kind": "str"}, "got string 'hello'"),
    ("get_array", "words", {"kind": "int"}, "expected an array of int values, got array of string"),
    ("get_array", "ints", {"kind": "float"}, "got array of int32"),
    ("get_array", "bools", {"kind": "int"}, "got array of bool"),
    ("get_array", "ints", {"kind": "int", "length": 4}, "expected an array of 4 int values, got 3 values"),
    ("get_uints", "ints", {"count": 4}, "got 3 values"),
    ("get_uints", "ints", {"count": 3, "high": 2}, r"ints\[2\]: expected 3 integers from 0 to 2, got 3"),
    ("get_uints", "words", {"count": 2}, "got array of string"),
    ("get_uints", "half", {"count": 2}, "got float32"),
    ("get_uints", "no", {"count": 2}, "no such key"),
]


@pytest.mark.parametrize(("getter", "key", "options", "match"), REFUSED)
def test_getter_refuses(getter: str, key: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        getattr(META, getter)(key, **options)
    assert str(caught.value).startswith(f"m.gguf: {key}")


def test_metadata_is_a_read_only_mapping() -> None:
    assert "half" in META and "no" not in META and META.get("no") is None
    assert list(META)[-1] == "broken" and len(META) == len(dict(META))
    ints = META.typed("ints")
    assert (ints.type, ints.element) == (ValueType.ARRAY, ValueType.INT32) and ints.value is META["ints"]
    with pytest.raises(TypeError):
        META["half"] = 1  # type: ignore[index]


def test_string_array_is_a_sequence() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(1, 0x2FFF, size))) for size in rng.integers(0, 9, 500)]
    array = StringArray.of(words)
    assert len(array) == 500 and array.tolist() == words == list(array)
    assert array[3:400:7] == words[3:400:7] and array[-1] == words[-1]
    assert array.raw(5) == words[5].encode() and words[9] in array
    assert array == StringArray.of(words) and array != StringArray.of(words[1:]) and array == words
    assert StringArray.of([]).tolist() == []
    for index in (500, -501):
        with pytest.raises(IndexError):
            array[index]


def test_string_that_is_no_utf8_fails_where_it_is_decoded() -> None:
    array = META.get_array("broken", kind="str")
    assert array[0] == "ok" and array.raw(1) == b"a\xffb"
    for touch in (array.tolist, lambda: array[1], lambda: list(array)):
        with pytest.raises(ModelError, match=r"string 1: expected UTF-8, got 'a\\\\xffb'"):
            touch()
