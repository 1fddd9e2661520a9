"""cext/quant/*.h against quant/formats/*.py: unpack and quantize bit for bit, dot products by value; each
header compiles alone.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from satchel.quant import FORMATS, Format
from satchel.quant.format import Blocks

HEADERS = Path(__file__).resolve().parents[3] / "cext" / "quant"
BUILD_FFI = HEADERS.parent / "build_ffi.py"
INTEGERS = ("i8", "i16", "i32", "i64")  # indices and the like: no weights
ENCODED = (
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q4_k",
    "q5_k",
    "q6_k",
    "f32",
    "f16",
    "bf16",
    "f8_e4m3",
    "f8_e5m2",
)
# In these formats a code is a multiple of this fraction of d.
UNITS = {"iq1_s": 8, "iq2_xxs": 8, "iq2_xs": 8, "iq2_s": 8, "iq3_xxs": 4}
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
QUANTIZERS = ("f16", "bf16", "fp8", "a8_32", "a8_256", "bf16x2")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
# Builds whose arithmetic could differ: no optimization, fused multiply-add, the compiler's own halves.
BUILDS = {"plain": ("-O0",), "native": ("-O3", "-march=native", "-ffp-contract=fast")}
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler here: cc, gcc or clang")


def source() -> str:
    """Exported wrappers of the static inline functions."""
    lines = ["#include <stddef.h>"]
    lines += [f'#include "{name}.h"' for name in FORMATS]
    for name, fmt in FORMATS.items():
        lines.append(
            f"void c_{name}_unpack(const block_{name} *b, float *out, int n) "
            f"{{ for (int i = 0; i < n; i++) {name}_unpack(b + i, out + (size_t)i * {fmt.block}); }}"
        )
        if name in QUANTIZERS:
            lines.append(
                f"void c_{name}_quantize(const float *x, block_{name} *out, int n) "
                f"{{ {name}_quantize(x, out, n); }}"
            )
        if fmt.act is not None:
            lines.append(
                f"float c_{name}_dot(const block_{name} *w, const block_{fmt.act} *a, int n) "
                f"{{ return {name}_dot(w, a, n); }}"
            )
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the headers that the build generates."""
    folder = tmp_path_factory.mktemp("generated")
    header = HEADERS.parent / "include" / "hal.h"
    subprocess.run([sys.executable, BUILD_FFI, header, HEADERS, folder / "_hal.py", folder], check=True)
    return folder


@pytest.fixture(scope="module", params=list(BUILDS))
def library(
    request: pytest.FixtureRequest, generated: Path, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("no C compiler here: cc, gcc or clang")
    folder = tmp_path_factory.mktemp("headers")
    (folder / "all.c").write_text(source())
    command = [COMPILER, "-std=c11", *STRICT, *BUILDS[request.param], "-fPIC", "-shared", f"-I{HEADERS}"]
    command.append(f"-I{generated}")
    subprocess.run([*command, "all.c", "-o", "all.so", "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def call(library: ctypes.CDLL, name: str, *arrays: npt.NDArray[np.generic], count: int) -> None:
    getattr(library, name)(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), ctypes.c_int(count))


@needs_compiler
@pytest.mark.parametrize("header", sorted(path.name for path in HEADERS.glob("*.h")))
@pytest.mark.parametrize("language", ["c", "c++"])
def test_compiles_alone(header: str, language: str, generated: Path, tmp_path: Path) -> None:
    assert COMPILER is not None
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("no C++ compiler here: c++")
    compiler, standard = ("c++", "c++17") if language == "c++" else (COMPILER, "c11")
    unit = tmp_path / ("unit.cpp" if language == "c++" else "unit.c")
    unit.write_text(f'#include "{header}"\nint main(void) {{ return 0; }}\n')
    command = [
        compiler,
        f"-std={standard}",
        *STRICT,
        f"-I{HEADERS}",
        f"-I{generated}",
        "-fsyntax-only",
        str(unit),
    ]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_has_its_header(name: str) -> None:
    assert (HEADERS / f"{name}.h").is_file()


def some_blocks(fmt: Format, count: int) -> npt.NDArray[np.generic]:
    """Random bytes, with NaN, infinite and subnormal scales."""
    raw = np.random.default_rng(fmt.id).integers(0, 256, (count, fmt.block_bytes), dtype=np.uint8)
    raw[:2] = 0
    raw[2:4] = 255
    return raw.view(fmt.dtype)[:, 0]


@pytest.mark.parametrize("name", list(FORMATS))
def test_unpack_equals_decode(library: ctypes.CDLL, name: str) -> None:
    fmt = FORMATS[name]
    blocks = some_blocks(fmt, 5000)
    got = np.full(5000 * fmt.block, 7, np.float32)
    call(library, f"c_{name}_unpack", blocks, got, count=5000)
    want = fmt.decode(blocks)
    both = np.isnan(got) & np.isnan(want)
    assert np.array_equal(got.view(np.uint32)[~both], want.view(np.uint32)[~both])


def inputs(block: int) -> npt.NDArray[np.float32]:
    """Rows of every magnitude, ties, zeros, opposite extremes, and blocks with NaN or infinity."""
    rng = np.random.default_rng(17)
    x = rng.standard_normal((600, block)) * 10.0 ** rng.integers(-46, 38, (600, 1))
    with np.errstate(over="ignore"):
        x = np.clip(x, -3e38, 3e38).astype(np.float32)
    x[:100] = rng.integers(-254, 255, (100, block)) / 2
    x[100:110] = rng.integers(0, 2**32, (10, block), dtype=np.uint32).view(np.float32)
    x[110] = 0
    x[111] = -0.0
    if block > 1:
        x[112, 3], x[112, 7] = 300, -300
        x[113, 3], x[113, 7] = -300, 300
        x[114, block - 1], x[115, 0], x[116, 9] = np.nan, -np.inf, np.inf
    return x


@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantize_equals_encode(library: ctypes.CDLL, name: str) -> None:
    fmt = FORMATS[name]
    assert fmt.encode is not None
    x = inputs(max(fmt.block, 64))
    want = fmt.encode(x, None)
    got = np.full(want.nbytes, 0xAA, np.uint8)
    call(library, f"c_{name}_quantize", x, got, count=want.size)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.act])
def test_dot_equals_the_decoded_product(library: ctypes.CDLL, name: str) -> None:
    """The integer dot equals the product of the decoded operands, except for float32's last bits."""
    fmt = FORMATS[name]
    act = FORMATS[str(fmt.act)]
    assert act.encode is not None
    rng = np.random.default_rng(3)
    w = blocks_of(fmt, rng, rng.standard_normal((20, 1024)))
    a = act.encode(rng.standard_normal((20, 1024)).astype(np.float32), None)
    function = getattr(library, f"c_{name}_dot")
    function.restype = ctypes.c_float
    left, right = fmt.decode(w).astype(np.float64), act.decode(a).astype(np.float64)
    for row in range(20):
        got = function(
            ctypes.c_void_p(w[row].ctypes.data), ctypes.c_void_p(a[row].ctypes.data), ctypes.c_int(w.shape[1])
        )
        size = float(np.abs(left[row] * right[row]).sum())
        assert abs(got - float(left[row] @ right[row])) <= 2e-6 * size


def has_one_scale(fmt: Format) -> bool:
    """One `d` for each block of the activations."""
    known = fmt.act is not None and "d" in (fmt.dtype.names or ())
    return known and fmt.block > 1 and fmt.block == FORMATS[str(fmt.act)].block


def blocks_of(fmt: Format, rng: np.random.Generator, x: npt.NDArray[np.float64]) -> Blocks:
    """Rows as blocks: encoded, or random codes under scales of any size."""
    if fmt.encode is not None and fmt.name in ENCODED:
        return fmt.encode(x.astype(np.float32), None)
    shape = (len(x), x.shape[1] // fmt.block)
    out = np.frombuffer(rng.bytes(shape[0] * shape[1] * fmt.block_bytes), fmt.dtype).copy().reshape(shape)
    for field in {"d", "dmin", "m"} & set(out.dtype.names or ()):
        out[field] = rng.standard_normal(shape)
    if fmt.name == "iq1_m":
        out["scales"] = out["scales"] & 0xFFF | np.array([0, 0, 0, 0x3000], np.uint16)
    if fmt.name == "mxfp4":
        out["e"] = 127 + out["e"] % 8
    return out


def scales(w: Blocks, **kept: float) -> Blocks:
    """The blocks with other scales; 0 where none is given."""
    out = w.copy()
    for field in {"d", "dmin", "m"} & set(out.dtype.names or ()):
        out[field] = kept.get(field, 0)
    return out


def parts_of(fmt: Format, w: Blocks, a: Blocks) -> list[list[tuple[int, float]]]:
    """The integer sums and scales per block of a row, in the order of summation."""
    codes, unit = a["qs"].astype(np.int64), UNITS.get(fmt.name, 1)
    low = "dmin" if "dmin" in w.dtype.names else "m"
    given = {"d": scales(w, d=1.0)} | ({low: scales(w, **{low: 1.0})} if low in w.dtype.names else {})
    terms = []
    for field, blocks in given.items():
        whole = (unit * fmt.decode(blocks)).reshape(codes.shape).astype(np.int64)
        sums = (whole * codes).sum(axis=-1)
        factors = np.float32(1 / unit) * w[field].astype(np.float32) * a["d"].astype(np.float32)
        terms.append(list(zip(sums.tolist(), factors.tolist(), strict=True)))
    return [list(block) for block in zip(*terms, strict=True)]


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if has_one_scale(fmt)])
def test_dot_adds_its_blocks_in_their_order(library: ctypes.CDLL, name: str) -> None:
    """Exact integers per block and fused multiply-adds: every faster product keeps this order."""
    fused = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fused.restype, fused.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    fmt, rng = FORMATS[name], np.random.default_rng(5)
    act = FORMATS[str(fmt.act)]
    assert act.encode is not None
    w = blocks_of(fmt, rng, rng.standard_normal((8, 1024)) + 1)
    a = act.encode((rng.standard_normal((8, 1024)) + 0.5).astype(np.float32), None)
    function = getattr(library, f"c_{name}_dot")
    function.restype = ctypes.c_float
    for row in range(8):
        want = 0.0
        bare = a[row].copy()
        bare["d"] = 1
        for i, block in enumerate(parts_of(fmt, w[row], bare if "m" in w.dtype.names else a[row])):
            if "m" in w.dtype.names:  # codes and minimum are one number before the activations' scale
                (total, scale), (sum_of_a, low) = block
                both = fused(total, scale, float(np.float32(sum_of_a) * np.float32(low)))
                want = fused(both, float(a[row]["d"][i]), want)
                continue
            for total, scale in block:
                want = fused(total, scale, want)
        got = function(
            ctypes.c_void_p(w[row].ctypes.data), ctypes.c_void_p(a[row].ctypes.data), ctypes.c_int(w.shape[1])
        )
        assert got == want


def test_a_record_tells_its_format() -> None:
    """The ops' definitions take arrays, whose dtype alone identifies the block format."""
    records = [fmt.dtype for fmt in FORMATS.values()]
    assert not [a for i, a in enumerate(records) if a in records[:i]]


def test_headers_declare_what_the_formats_say() -> None:
    """SATCHEL_WEIGHT_ and SATCHEL_ACTIVATION_ lines, from which the kernels' tables are generated."""
    text = "".join(p.read_text() for p in sorted(HEADERS.glob("*.h")))
    declared = {m[0]: m[1:] for m in re.findall(r"SATCHEL_WEIGHT_(\w+) (\d+), (\d+), (\w+)", text)}
    only = {m[0]: m[1:] for m in re.findall(r"SATCHEL_ACTIVATION_(\w+) (\d+), (\d+)", text)}
    for name, (number, block, act) in declared.items():
        fmt = FORMATS[name]
        assert (fmt.id, fmt.block, fmt.act or "f32") == (int(number), int(block), act) and fmt.weights
    for name, (number, block) in only.items():
        assert (FORMATS[name].id, FORMATS[name].block, FORMATS[name].weights) == (
            int(number),
            int(block),
            False,
        )
    assert {*declared, *only} == {name for name in FORMATS if name not in INTEGERS}
