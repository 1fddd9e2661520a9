"""The Metal backend without a Mac: its host code runs against mocks of the Objective-C runtime and of Metal
(objc.c, metal.c, work.c and indirect.c), which end the process at the first error; the kernels' text is
compiled as C++, with address spaces where there is clang, and runs on this processor.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from once import made_once

from satchel.runtime.device.libraries import libraries

ROOT = Path(__file__).parents[2]
HERE, CEXT = Path(__file__).parent, ROOT / "cext"
LEAST = 40  # tests of ops that must have run
WRONG = 86  # how the mock ends a process
COMPILE = runpy.run_path(str(HERE / "compile.py"))


def built() -> bool:
    return any(f.name == "metal" for f in libraries())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the mock, libMetal.so, and the libraries that it compiles."""
    if not built():
        pytest.skip("metal: its library was not built")
    if not shutil.which("gcc") or platform.machine() not in ("x86_64", "aarch64") or sys.platform != "linux":
        pytest.skip("metal: the test's own Metal needs gcc, on Linux, x86_64 or aarch64")
    if not any(shutil.which(c) for c in ("clang++-19", "clang++", "g++")):
        pytest.skip("metal: the kernels' text is compiled by clang++ or g++")
    return made_once(tmp_path_factory, "metal", make_mock)


def make_mock(made: Path) -> None:
    """Builds the mock and its kernels, so that processes find them compiled."""
    sources = [
        *(HERE / f"{name}.c" for name in ("objc", "metal", "work", "indirect")),
        CEXT / "emulated" / "fibers.c",
    ]
    places = [f"-I{CEXT / p}" for p in ("emulated", "kernels", "include", "gpu")]
    flags = [
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        *places,
    ]
    subprocess.run(["gcc", *flags, *sources, "-lm", "-lpthread", "-o", made / "libMetal.so"], check=True)
    first = run(made, "-c", OPEN)
    assert first.returncode == 0, first.stderr


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python process of its own: a process opens Metal only once."""
    env = {**os.environ, "SATCHEL_METAL_OBJC": str(folder / "libMetal.so")}
    env["SATCHEL_METAL_FRAMEWORK"] = str(folder / "libMetal.so")
    env |= {
        "MOCK_METAL_FOLDER": str(folder),
        "MOCK_METAL_COMPILE": shlex.join((sys.executable, str(HERE / "compile.py"))),
        **more,
    }
    return subprocess.run(
        [sys.executable, *words], env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )


def suite(folder: Path, chosen: str, *tests: str, **more: str) -> int:
    """The number of passed tests of the suite for GPU backends."""
    done = run(
        folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen, *tests, **more
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("every", ["6", pytest.param("1", marks=pytest.mark.nightly)])
def test_every_op_and_nothing_is_left(every: str, folder: Path) -> None:
    """every: one case of an op in so many."""
    tests = "tests/cext/test_gpu_kernels.py"
    assert suite(folder, "metal and test_op_equals", tests, EVERY_CASE=every) >= LEAST


def test_products_by_matrix_units(folder: Path) -> None:
    """On a model of simdgroup_matrix: every format, shapes at a tile's edges; the device chooses the
    units.
    """
    assert suite(folder, "metal", "tests/cext/test_matrix_units.py") == 3


USUAL = """
import sys
sys.path[:0] = ["tests/support", "tests/cext"]
from test_matrix_units import LEAST, opened, usual
with opened("metal") as device:
    print(device.info().variant, *(usual(device, "linear", n) for n in (LEAST - 1, LEAST)))
"""


@pytest.mark.parametrize(
    ("setting", "variant", "many"),
    [
        ({"MOCK_METAL_FAMILY": "7"}, "metal 7.0", "matrix_linear"),
        ({"MOCK_METAL_FAMILY": "6"}, "metal 6.0", "linear"),
        ({"MOCK_METAL_FAMILY": "0"}, "metal 0.0", "linear"),
        ({"SATCHEL_MATRIX_UNITS": "0"}, "metal 8.0", "linear"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_multiplies_many_columns(folder: Path, setting: dict[str, str], variant: str, many: str) -> None:
    """GPUs from the family Apple7 on have matrix units; others compile one text less."""
    done = run(folder, "-c", USUAL, **setting)
    assert done.stdout.split() == [*variant.split(), "linear", many], done.stderr


def test_faults_are_told(folder: Path) -> None:
    """Tests of invalid values leave their objects open until the process ends."""
    tests = "tests/cext/test_gpu_kernels.py"
    assert suite(folder, "metal and test_an_index", tests, MOCK_METAL_LEAKS="1") > 10


@pytest.mark.nightly
def test_whole_models(folder: Path) -> None:
    assert suite(folder, "metal and (norms_of_heads or closing_gives)", "tests/gpu/test_gpu_models.py") == 2


@pytest.mark.nightly
def test_batches_of_whole_models(folder: Path) -> None:
    assert suite(folder, "metal and a_batch_gives", "tests/gpu/test_gpu_models.py") == 1


# --- what a Mac may be like

OPEN = """
from satchel.runtime.device.libraries import find_backend
with find_backend("metal").open() as device:
    print(device.info().name)
"""


@pytest.mark.parametrize("setting", ["MOCK_METAL_NONE", "MOCK_METAL_OLD"])
def test_no_gpu_that_will_do(folder: Path, setting: str) -> None:
    assert "the driver sees no device" in run(folder, "-c", OPEN, **{setting: "1"}).stderr


def test_a_kernel_that_takes_fewer_threads_is_named(folder: Path) -> None:
    said = run(folder, "-c", COPIES, MOCK_METAL_THREADS="32", MOCK_METAL_LEAKS="1").stderr
    assert "kernel metal_fill: 256 threads a group, this GPU takes 32 of it" in said


def test_what_does_not_fit_a_buffer_is_said(folder: Path) -> None:
    said = run(folder, "-c", COPIES, MOCK_METAL_BUFFER="8192", MOCK_METAL_LEAKS="1").stderr
    assert "10000 bytes: a buffer of this GPU has at most 8192" in said


def test_without_metal_the_reason_is_given() -> None:
    if not built():
        pytest.skip("metal: its library was not built")
    env = {**os.environ, "SATCHEL_METAL_OBJC": "/nowhere/libobjc.A.dylib"}
    done = subprocess.run([sys.executable, "-c", OPEN], env=env, capture_output=True, text=True, check=False)
    assert "/nowhere/libobjc.A.dylib cannot be opened: the driver is not installed" in done.stderr


# --- memory

COPIES = """
import numpy as np
from satchel.runtime.device.libraries import find_backend
rng = np.random.default_rng(5)
with find_backend("metal").open() as device:
    a = device.alloc(10000, 2)
    x = rng.integers(0, 256, 10000, dtype=np.uint8)
    got = np.zeros_like(x)
    a.read_into(0, got)
    assert not got.any()
    a.write(0, x)
    for to, at, n in [(0, 5000, 5000), (1, 5003, 4097), (8, 404, 100), (9999, 17, 1), (7, 107, 64)]:
        a.copy(to, at, n)
        x[to:to + n] = x[at:at + n]
        a.read_into(0, got)
        assert (got == x).all(), (to, at, n)
print("alike")
"""


def test_bytes_arrive_at_any_place(folder: Path) -> None:
    done = run(folder, "-c", COPIES)
    assert done.stdout == "alike\n" and done.returncode == 0, done.stderr


IN_PLACE = """
import sys
sys.path[:0] = ["tests/support"]
from pathlib import Path
from tiny_file import write_model
from satchel.runtime.api.model import Model
path = write_model(Path(sys.argv[1]) / "m.gguf", "llama", "q8_0")
with Model.load(path, device="metal", context=64) as model:
    found = model.logits([5, 6, 7])
print(found.shape[0])
"""


def test_weights_are_used_in_the_mapped_file(folder: Path, tmp_path: Path) -> None:
    done = run(folder, "-c", IN_PLACE, str(tmp_path), MOCK_METAL_TELL="1")
    assert done.returncode == 0, done.stderr
    size = (tmp_path / "m.gguf").stat().st_size
    wrapped = [int(n) for n in re.findall(r"wrapped (\d+) bytes, seen twice", done.stderr)]
    assert len(wrapped) == 1 and 0 <= wrapped[0] - size < 4096


# --- the mock forgives nothing

PRELUDE = r"""
import ctypes, os
lib = ctypes.CDLL(os.environ["SATCHEL_METAL_OBJC"])
P, N = ctypes.c_void_p, ctypes.c_ulong
class Size(ctypes.Structure):
    _fields_ = [("w", N), ("h", N), ("d", N)]
lib.sel_registerName.restype = lib.objc_getClass.restype = lib.MTLCopyAllDevices.restype = P
lib.objc_autoreleasePoolPush.restype = P
def send(o, name, *arguments, result=P, types=()):
    f = ctypes.CFUNCTYPE(result, P, P, *types)(("objc_msgSend", lib))
    return f(o, lib.sel_registerName(name.encode()), *arguments)
def text(s):
    return send(lib.objc_getClass(b"NSString"), "stringWithUTF8String:", s, types=(ctypes.c_char_p,))
lib.objc_autoreleasePoolPush()
device = send(lib.MTLCopyAllDevices(), "objectAtIndex:", 0, types=(N,))
def buffer(n=4096):
    return send(device, "newBufferWithLength:options:", n, 0, types=(N, N))
def pipeline():
    source = open(os.environ["MSL"], "rb").read()
    options = send(send(lib.objc_getClass(b"MTLCompileOptions"), "alloc"), "init")
    send(options, "setFastMathEnabled:", FAST, types=(ctypes.c_byte,), result=None)
    error = P()
    how = "newLibraryWithSource:options:error:"
    made = send(device, how, text(source), options, ctypes.byref(error), types=(P, P, P))
    if not made:
        said = send(send(error, "localizedDescription"), "UTF8String", result=ctypes.c_char_p)
        raise SystemExit(said.decode())
    f = send(made, "newFunctionWithName:", text(b"touch"), types=(P,))
    d = send(send(lib.objc_getClass(b"MTLComputePipelineDescriptor"), "alloc"), "init")
    send(d, "setComputeFunction:", f, types=(P,), result=None)
    how = "newComputePipelineStateWithDescriptor:options:reflection:error:"
    return send(device, how, d, 0, None, None, types=(P, N, P, P))
def encoder():
    global commands
    commands = send(send(device, "newCommandQueue"), "commandBuffer")
    return send(commands, "computeCommandEncoder")
def launch(e, b, threads=32, told=True, local=16, groups=1):
    address = ctypes.c_uint64(send(b, "gpuAddress", result=ctypes.c_uint64))
    send(e, "setComputePipelineState:", pipeline(), types=(P,), result=None)
    if told:
        send(e, "useResources:count:usage:", ctypes.byref(P(b)), 1, 3, types=(P, N, N), result=None)
    send(e, "setBytes:length:atIndex:", ctypes.byref(address), 8, 0, types=(P, N, N), result=None)
    send(e, "setThreadgroupMemoryLength:atIndex:", local, 0, types=(N, N), result=None)
    sizes = Size(groups, 1, 1), Size(threads, 1, 1)
    send(e, "dispatchThreadgroups:threadsPerThreadgroup:", *sizes, types=(Size, Size), result=None)
def finish(e):
    send(e, "endEncoding", result=None)
    send(commands, "commit", result=None)
    send(commands, "waitUntilCompleted", result=None)
FAST = 0
"""

MSL = """#include <metal_stdlib>
using namespace metal;
typedef struct { int thread_, threads, lane, wave, waves, group[3]; threadgroup char *local; } self;
[[kernel, max_total_threads_per_threadgroup(64)]] void touch(
    constant ulong &where [[buffer(0)]], threadgroup char *local [[threadgroup(0)]],
    uint at [[thread_index_in_threadgroup]]) {
    ((device uint *)where)[at] = at;
}
"""

WRONGS = {
    "an unknown selector": ("send(buffer(), 'lenght')", r"-\[MTLBuffer lenght\]: unrecognized selector"),
    "an unknown class": ("lib.objc_getClass(b'MTLBufer')", "there is no class MTLBufer"),
    "a message to nil": ("send(None, 'release')", "a message to nil"),
    "a double release": (
        "b = buffer(); send(b, 'release', result=None); send(b, 'release', result=None)",
        "the object has been released by all",
    ),
    "use after the end": (
        "b = buffer(); send(b, 'release', result=None); send(b, 'contents')",
        "released by all",
    ),
    "a leak": ("buffer()", "1 of MTLBuffer"),
    "no pool": ("lib.objc_autoreleasePoolPop(P(0))", "a pool is popped that was not pushed"),
    "a wrong object": (
        "send(encoder(), 'setComputePipelineState:', device, types=(P,))",
        "MTLDevice, expected MTLComputePipelineState",
    ),
    "a group too big": ("launch(encoder(), buffer(), threads=96)", "96 threads of a group, it takes 64"),
    "no groups": ("launch(encoder(), buffer(), groups=0)", "kernel touch: no groups"),
    "too much local memory": ("launch(encoder(), buffer(), local=32784)", "32784 bytes at index 0"),
    "local memory in odd pieces": ("launch(encoder(), buffer(), local=24)", "a multiple of 16"),
    "too many bytes": (
        "send(encoder(), 'setBytes:length:atIndex:', P(0), 4097, 0, types=(P, N, N))",
        "4097 bytes at index 0",
    ),
    "binding 31": (
        "send(encoder(), 'setBytes:length:atIndex:', P(0), 4, 31, types=(P, N, N))",
        "4 bytes at index 31",
    ),
    "a buffer nobody was told of": (
        "e = encoder(); launch(e, buffer(), told=False); finish(e)",
        "was not told of it",
    ),
    "no end of encoding": (
        "launch(encoder(), buffer()); send(commands, 'commit', result=None)",
        "an encoder is open",
    ),
    "a second commit": (
        "e = encoder(); launch(e, buffer()); finish(e); send(commands, 'commit', result=None)",
        "committed",
    ),
    "waiting for what was not committed": (
        "encoder(); send(commands, 'waitUntilCompleted', result=None)",
        "it was not committed",
    ),
    "memory that is not whole pages": (
        "how = 'newBufferWithBytesNoCopy:length:options:deallocator:'\n"
        "send(device, how, P(4096 + 16), 4096, 0, None, types=(P, N, N, P))",
        "whole pages are wanted",
    ),
    "fast mathematics": ("FAST = 1; pipeline()", "compiled with fast mathematics"),
}


def mock(folder: Path, code: str, msl: str = MSL, **more: str) -> subprocess.CompletedProcess[str]:
    text = folder / f"{os.getpid()}.metal"
    text.write_text(msl)
    return run(folder, "-c", PRELUDE + code, MSL=str(text), **more)


@pytest.mark.parametrize("case", WRONGS)
def test_what_is_wrong_is_caught(folder: Path, case: str) -> None:
    code, said = WRONGS[case]
    done = mock(folder, code)
    assert done.returncode == WRONG and re.search(said, done.stderr), done.stderr


def test_what_is_right_is_not(folder: Path) -> None:
    code = "b = buffer(); e = encoder(); launch(e, b); finish(e)\n"
    code += "x = ctypes.cast(send(b, 'contents'), ctypes.POINTER(ctypes.c_uint));"
    code += " assert [x[i] for i in range(32)] == list(range(32))"
    done = mock(folder, code, MOCK_METAL_LEAKS="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("((device uint *)where)[at] = at", "double x = at", "double"),
        ("device uint *", "uint *", "explicit address space"),
        (
            "threadgroup char *local [[threadgroup(0)]]",
            "threadgroup char *local [[threadgroupp(0)]]",
            "knows no",
        ),
        ("[at] = at", "[at] = undeclared", "undeclared"),
    ],
)
def test_a_text_that_metal_refuses_is_refused(folder: Path, was: str, becomes: str, said: str) -> None:
    done = mock(folder, "pipeline()", MSL.replace(was, becomes), MOCK_METAL_LEAKS="1")
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_an_address_of_one_space_is_none_of_another(folder: Path) -> None:
    if not any(shutil.which(c) for c in ("clang++-19", "clang++")):
        pytest.skip("metal: only clang checks address spaces")
    text = MSL.replace("((device uint *)where)[at] = at", "device char *x = local; x[0] = 1")
    done = mock(folder, "pipeline()", text, MOCK_METAL_LEAKS="1")
    assert done.returncode == 1 and "threadgroup char" in done.stderr, done.stderr
