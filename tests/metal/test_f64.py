"""float64 emulated with integers (cext/metal/f64.metal) follows IEEE: each operation gives the processor's
bits, on random values of all magnitudes, on close ones, and at the limits.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
Bits = NDArray[np.uint64]
TIMES = 20000

ALL = """
#include "metal_stdlib"
msl_words msl_given;
using namespace metal;
%s
typedef void each(const ulong *a, const ulong *b, ulong *out, int n);
#define EACH(name, result) \\
    extern "C" __attribute__((visibility("default"))) void name(                                   \\
        const ulong *a, const ulong *b, ulong *out, int n) {                                       \\
        for (int i = 0; i < n; i++) { \\
            f64 x = f64_from_bits(a[i]), y = f64_from_bits(b[i]); \\
            int e = 0; \\
            out[i] = (ulong)(result); \\
            (void)x, (void)y, (void)e; \\
        } \\
    }
EACH(add, (x + y).bits)
EACH(subtract, (x - y).bits)
EACH(multiply, (x * y).bits)
EACH(divide, (x / y).bits)
EACH(root, sqrt(x).bits)
EACH(rounded, rint(x).bits)
EACH(to_float, as_type<uint>((float)x))
EACH(from_float, f64(as_type<float>((uint)a[i])).bits)
EACH(from_long, f64((long)a[i]).bits)
EACH(from_ulong, f64(a[i]).bits)
EACH(to_int, (uint)(int)x)
EACH(order, (ulong)(x < y) | (ulong)(x <= y) << 1 | (ulong)(x > y) << 2 | (ulong)(x >= y) << 3 |
                (ulong)(x == y) << 4 | (ulong)(x != y) << 5)
EACH(fraction, frexp(x, &e).bits)
EACH(exponent, (frexp(x, &e), (ulong)(long)e))
EACH(scaled, ldexp(x, (int)((long)b[i] %% 2200)).bits)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = next((c for c in ("g++", "clang++-19", "clang++") if shutil.which(c)), None)
    if not compiler:
        pytest.skip("the text is compiled by g++ or clang++")
    folder = tmp_path_factory.mktemp("f64")
    (folder / "f64.cpp").write_text(ALL % (ROOT / "cext" / "metal" / "f64.metal").read_text())
    words = [compiler, "-std=c++14", "-O1", "-shared", "-fPIC", "-Wall", f"-I{Path(__file__).parent}"]
    subprocess.run([*words, folder / "f64.cpp", "-o", folder / "f64.so"], check=True)
    return ctypes.CDLL(str(folder / "f64.so"))


def numbers(rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Pairs: random bits; close to each other; few fraction bits, so that ties occur; ends of all ranges."""
    a = rng.integers(0, 1 << 64, TIMES, np.uint64, endpoint=False)
    b = rng.integers(0, 1 << 64, TIMES, np.uint64, endpoint=False)
    near = a[: TIMES // 4] ^ rng.integers(0, 1 << 56, TIMES // 4, np.uint64)
    b[: TIMES // 4] = near & ~np.uint64(0x7F << 56) | a[: TIMES // 4] & np.uint64(0x7F << 56)
    middle = slice(TIMES // 4, TIMES * 3 // 4)  # of exponents that meet: 2^-70 to 2^70
    for x in (a, b):
        size = rng.integers(1023 - 70, 1023 + 70, x[middle].size).astype(np.uint64) << np.uint64(52)
        x[middle] = x[middle] & np.uint64(0x800FFFFFFFFFFFFF) | size
        x[TIMES // 2 : TIMES * 3 // 4] &= ~np.uint64((1 << 40) - 1)
    ends = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
        -5e-324,
        2.2250738585072014e-308,
        2.225073858507201e-308,
    ]
    ends += [
        1.7976931348623157e308,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        4503599627370496.5,
        3.4028235677973366e38,
        1.1754943e-38,
    ]
    ends += [7e-46, 7.1e-46, 2147483647.0, 1 - 2.0**-53, 1 + 2.0**-52]
    x, y = np.meshgrid(np.array(ends).view(np.uint64), np.array(ends).view(np.uint64))
    return np.concatenate([a, x.ravel()]), np.concatenate([b, y.ravel()])


def same(found: Bits, wanted: Bits, nan: NDArray[np.bool_]) -> None:
    good = (found == wanted) | nan
    assert good.all(), [(hex(int(f)), hex(int(w))) for f, w in zip(found[~good], wanted[~good], strict=True)][
        :5
    ]


def call(library: ctypes.CDLL, name: str, a: Bits, b: Bits) -> Bits:
    out = np.zeros_like(a)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, out)]
    getattr(library, name)(*pointers, ctypes.c_int(len(a)))
    return out


BINARY: dict[str, Callable[..., NDArray[np.float64]]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "root": lambda x, y: np.sqrt(x), "rounded": lambda x, y: np.rint(x),
    "fraction": lambda x, y: np.frexp(x)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_every_bit_is_that_of_the_processor(library: ctypes.CDLL, name: str) -> None:
    a, b = numbers(np.random.default_rng(11))
    with np.errstate(all="ignore"):
        wanted = BINARY[name](a.view(np.float64), b.view(np.float64))
    found = call(library, name, a, b)
    nan = np.isnan(wanted) & np.isnan(found.view(np.float64))
    same(found, wanted.view(np.uint64), nan)


def test_conversions(library: ctypes.CDLL) -> None:
    a, b = numbers(np.random.default_rng(12))
    x = a.view(np.float64)
    with np.errstate(all="ignore"):
        single = x.astype(np.float32)
        few = np.ascontiguousarray(a.view(np.uint32)[::2]).view(np.float32)
        wide = few.astype(np.float64)
    found = call(library, "to_float", a, b)
    same(
        found,
        single.view(np.uint32).astype(np.uint64),
        np.isnan(single) & np.isnan(found.astype(np.uint32).view(np.float32)),
    )
    found = call(library, "from_float", a, b)
    same(found, wide.view(np.uint64), np.isnan(wide) & np.isnan(found.view(np.float64)))
    for shift in (0, 9, 10, 11, 40, 63):
        whole = a >> np.uint64(shift)
        never = np.zeros(a.size, np.bool_)
        same(call(library, "from_ulong", whole, b), whole.astype(np.float64).view(np.uint64), never)
        signed = a.view(np.int64) >> shift
        same(
            call(library, "from_long", signed.view(np.uint64), b),
            signed.astype(np.float64).view(np.uint64),
            never,
        )
    small = np.abs(x) < 2**31
    same(
        call(library, "to_int", a[small], b[small]),
        x[small].astype(np.int32).view(np.uint32).astype(np.uint64),
        never[small],
    )


def test_order(library: ctypes.CDLL) -> None:
    a, b = numbers(np.random.default_rng(13))
    x, y = a.view(np.float64), b.view(np.float64)
    wanted = sum(
        (c.astype(np.uint64) << np.uint64(i))
        for i, c in enumerate((x < y, x <= y, x > y, x >= y, x == y, x != y))
    )
    same(call(library, "order", a, b), np.asarray(wanted, np.uint64), np.zeros(a.size, np.bool_))


def test_powers_of_two(library: ctypes.CDLL) -> None:
    a, b = numbers(np.random.default_rng(14))
    x = a.view(np.float64)
    by = np.fmod(b.view(np.int64), 2200)
    with np.errstate(all="ignore"):
        wanted = np.ldexp(x, by.astype(np.int32))
    found = call(library, "scaled", a, b)
    same(found, wanted.view(np.uint64), np.isnan(wanted) & np.isnan(found.view(np.float64)))
    finite = np.isfinite(x)
    exponents = np.frexp(x[finite])[1].astype(np.int64).view(np.uint64)
    same(call(library, "exponent", a[finite], b[finite]), exponents, np.zeros(int(finite.sum()), np.bool_))
