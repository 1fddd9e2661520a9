"""The C library of searches gives the bits of its definitions, on every instruction set; so does numba.
Without either, numpy searches, with a note, or an error says what to install.
"""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from search_cases import KINDS, SCALAR, STEPS, Loop, numbers, scalar_arguments, step_arguments
from trained import trained_like

from satchel import cext
from satchel.errors import RequestError
from satchel.quant import FORMATS
from satchel.quant.native import compiled, library
from satchel.quant.native.library import SearchLibrary, search_library
from satchel.quant.recipes import NEEDS_IMPORTANCE
from satchel.quant.search import searches, step_loops, steps

SETS = [
    name
    for name in ("scalar", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon", "dotprod", "i8mm")
    if not search_library(name).reason
]
NO_C = SearchLibrary("", "it was not built")
SEARCHED = ["q4_0", "q4_1", "q2_0", "q5_k", "q4_k", "q6_k", "q2_k", "q3_k"]
TABLES = ["iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "iq2_xxs", "iq2_s", "iq3_s", "iq1_m"]
needs_c = pytest.mark.skipif(not SETS, reason="the C library of searches was not built")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[SearchLibrary, bool], None]]:
    """Lets all searches run on this library, with or without numba where it has none."""

    def choose(library: SearchLibrary, numba: bool = True) -> None:
        forget()
        monkeypatch.setattr(compiled, "search_library", lambda: library)
        if not numba:
            monkeypatch.setitem(sys.modules, "numba", None)  # an import of it fails

    yield choose
    monkeypatch.undo()
    forget()


def forget() -> None:
    for function in (compiled.compiled, compiled.whole, compiled.by_numba, compiled._note):
        function.cache_clear()


def loop(name: str, instruction_set: str) -> Loop:
    found = search_library(instruction_set).loop(name)
    assert found is not None
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def rows_of_every_kind() -> Any:
    """34 rows of 1024 values, which do not fill a batch of blocks: usual, tiny, huge, constant and empty
    ones.
    """
    rng = np.random.default_rng(22)
    x = trained_like(5)[:34].copy()
    x[20:30] *= np.exp(rng.uniform(-90, 11, (10, 1))).astype(np.float32)
    x[30], x[31], x[32, 300:700], x[33, ::7] = 0, -0.0, 0.25, -1e-42
    return x


def inputs(name: str) -> list[Any]:
    if name in ("mxfp4", "nvfp4"):  # what they can't hold is an error
        return [np.clip(np.nan_to_num(rows_of_every_kind()[:6]), -2000, 2000)]
    if name in TABLES:
        return [rows_of_every_kind()[14:34:3], numbers("extreme", 4, (3, 1024))]
    return [rows_of_every_kind(), numbers("extreme", 4, (12, 1024))]


def encoded(name: str) -> list[bytes]:
    encode = FORMATS[name].encode
    assert encode is not None
    w = np.random.default_rng(5).lognormal(0, 1.5, 1024).astype(np.float32)
    given = [w] if name in NEEDS_IMPORTANCE else [None, w]
    return [np.asarray(encode(x, each)).tobytes() for x in inputs(name) for each in given]


@needs_c
def test_every_entry_has_the_arguments_of_its_definition() -> None:
    fields = dict(cext.ffi.typeof("search_loops").fields)
    definitions = {f.__name__: f for f in SCALAR}
    definitions |= {name: getattr(step_loops, name) for name in STEPS}
    definitions |= {name: getattr(searches, name) for name in fields if hasattr(searches, name)}
    assert definitions.keys() == fields.keys() - {"set"}
    for name, function in definitions.items():
        assert len(inspect.signature(function).parameters) == len(fields[name].type.args), name
    for name in STEPS:
        own, plain = (list(inspect.signature(getattr(m, name)).parameters) for m in (step_loops, steps))
        assert own == plain


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", STEPS)
@np.errstate(all="ignore")
def test_steps_are_those_of_numpy(name: str, instruction_set: str) -> None:
    for kind in KINDS:
        calls = zip(step_arguments(name, kind), step_arguments(name, kind), strict=True)
        for (plain, expected), (given, found) in calls:
            getattr(steps, name)(*plain)
            loop(name, instruction_set)(*given)
            assert same(expected, found), kind


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("name", [n for n in STEPS if "fit" in n or "groups" in n])
@np.errstate(all="ignore")
def test_no_weights_are_equal_weights(name: str, instruction_set: str) -> None:
    for (plain, expected), (given, found) in zip(
        step_arguments(name, "usual"), step_arguments(name, "usual"), strict=True
    ):
        plain[1], given[1] = np.ones_like(plain[1]), None
        getattr(steps, name)(*plain)
        loop(name, instruction_set)(*given)
        assert same(expected, found)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("function", SCALAR, ids=lambda f: f.__name__)
@np.errstate(all="ignore")
def test_loops_are_those_of_plain_python(function: Loop, instruction_set: str) -> None:
    for kind in KINDS:
        (plain, expected), (given, found) = (scalar_arguments(function.__name__, kind) for _ in range(2))
        function(*plain)
        loop(function.__name__, instruction_set)(*given)
        assert same(expected, found), kind


@pytest.mark.parametrize("name", SEARCHED)
def test_searches_are_those_of_numpy(name: str, use: Callable[..., None]) -> None:
    use(NO_C, numba=False)
    expected = encoded(name)
    for instruction_set in SETS:
        use(search_library(instruction_set))
        assert encoded(name) == expected, instruction_set


@pytest.mark.parametrize("name", TABLES)
def test_every_set_gives_the_same_blocks(name: str, use: Callable[..., None]) -> None:
    found = []
    for instruction_set in SETS:
        use(search_library(instruction_set))
        found.append(encoded(name))
    assert all(each == found[0] for each in found)


# A sample by default: numba compiles each of them for about a second.
SAMPLE = ("scale_fit", "table_fit", "minima")


def numba_cases() -> list[Any]:
    names = [*STEPS, *(f.__name__ for f in SCALAR)]
    return [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.nightly) for n in names]


@pytest.mark.parametrize("name", numba_cases())
@np.errstate(all="ignore")
def test_numba_gives_the_bits_of_the_definition(name: str) -> None:
    pytest.importorskip("numba", reason="numba is not installed: nothing is compiled")
    if name in STEPS:
        by_numba, plain = compiled.by_numba(getattr(step_loops, name)), getattr(steps, name)
        calls = [(a, b) for k in KINDS for a, b in zip(*(step_arguments(name, k) for _ in "12"), strict=True)]
    else:
        (plain,) = (f for f in SCALAR if f.__name__ == name)
        by_numba = compiled.by_numba(plain)
        calls = [(scalar_arguments(name, k), scalar_arguments(name, k)) for k in KINDS]
    assert by_numba is not None
    for (arguments, expected), (given, found) in calls:
        plain(*arguments)
        by_numba(*given)
        assert same(expected, found)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*SEARCHED, *TABLES])
@needs_c
def test_numba_searches_as_c(name: str, use: Callable[..., None]) -> None:
    pytest.importorskip("numba", reason="numba is not installed: nothing is compiled")
    expected = encoded(name)
    use(NO_C)
    assert encoded(name) == expected


def test_without_c_and_numba_numpy_searches_and_says_so_once(
    use: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    use(NO_C, numba=False)
    with caplog.at_level(logging.WARNING):
        encoded("q6_k")
        encoded("q4_0")
    assert [r.getMessage() for r in caplog.records if r.name == "satchel.quant"] == [
        "the C library of searches is not installed, nor is numba: numpy searches for scales, far slower;"
        " pip install 'satchel[slow]'"
    ]
    assert compiled.means() == "numpy, slowly"


def test_without_c_and_numba_the_other_searches_say_what_to_install(use: Callable[..., None]) -> None:
    use(NO_C, numba=False)
    for name in ("iq4_nl", "iq3_s"):
        with pytest.raises(RequestError, match=r"pip install 'satchel\[slow\]', or choose q4_0 to q8_0"):
            encoded(name)


def test_numba_compiles_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba", reason="numba is not installed: nothing is compiled")
    asked: list[bool] = []
    real = numba.njit

    def refuse(function: object, *, cache: bool, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return real(function, cache=False, **options)

    monkeypatch.setattr(numba, "njit", refuse)
    found = compiled.by_numba.__wrapped__(step_loops.scale_refine)
    assert found is not None and asked == [True, False]


@needs_c
def test_arrays_of_another_type_or_layout_are_refused() -> None:
    x, out = np.ones((4, 8), np.float32), np.empty(8, np.float32)
    dots = loop("dots", "")
    dots(x, x, out)
    assert (out == 4).all()
    with pytest.raises(TypeError):
        dots(x.astype(np.float64), x, out)
    with pytest.raises(KeyError):
        dots(x.astype(np.int32), x, out)
    with pytest.raises((ValueError, BufferError)):
        dots(np.ones((8, 4), np.float32).T, x, out)


@needs_c
def test_a_library_of_another_build_or_without_the_set_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no set 'abacus'" in search_library("abacus").reason
    assert search_library("abacus").loop("dots") is None
    monkeypatch.setattr(cext, "SEARCH_HASH", 1)
    assert "another build" in search_library.__wrapped__().reason


def test_what_is_no_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "satchel_search.so").write_text("no library")
    monkeypatch.setattr(library, "search_file", lambda: tmp_path / "satchel_search.so")
    assert "satchel_search.so cannot be opened" in search_library.__wrapped__().reason


KEPT = """
import gc
import numpy as np
from satchel.quant.native.library import search_library
dots = search_library().loop("dots")
search_library.cache_clear()
gc.collect()
x, out = np.ones((4, 8), np.float32), np.empty(8, np.float32)
dots(x, x, out)
print(*out)
"""


@needs_c
def test_a_loop_outlives_what_found_it() -> None:
    # A call into a closed library ends the process.
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.split() == ["4.0"] * 8
