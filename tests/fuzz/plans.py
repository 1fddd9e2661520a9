"""The fuzz target `plans`: plan tables for the CPU backend's plain kernels under sanitizers.

tests/cext/fuzz_plans.c is the target; libFuzzer needs clang. The initial inputs are one step of every op,
from the kernel tests' cases. fuzz.py runs it like the other targets; the build is kept in FOLDER's parent.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from length import Length

ROOT = Path(__file__).resolve().parents[2]
CEXT = ROOT / "cext"
LONGEST = 1 << 14  # bytes of an input
CASES = 3  # of an op, the smallest
BYTES = 512  # of a buffer's contents; the rest repeats them
PANELS = 4  # times the size of a weight that is in the device's own order has room
SLOWEST = 20  # seconds
OPTIONS = (
    *(
        "-std=c11",
        "-O1",
        "-g1",
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Wno-unused-function",
    ),
    *("-ffp-contract=off", "-fno-omit-frame-pointer", "-D_GNU_SOURCE", "-DCPU_ISA=scalar"),
)
WATCHED = ("-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=all")
# Its products are long: with all instrumentation they take clang a minute and a half, with this a second.
PARTLY = ("-O0", "-fsanitize=address")
LONG = (
    60  # seconds of fuzzing from which on a program that is optimized, which takes long to build, is quicker
)


def sources() -> list[Path]:
    """The backend's files; fmaf.c is for one compiler alone, probe.c a program of the build."""
    found = [path for path in (CEXT / "cpu").rglob("*.c") if path.name not in ("fmaf.c", "probe.c")]
    return [*sorted(found), *sorted((CEXT / "host").glob("*.c")), ROOT / "tests" / "cext" / "fuzz_plans.c"]


def newest() -> float:
    """The time of the newest C file."""
    found = [*CEXT.rglob("*.[ch]"), *CEXT.rglob("*.inc"), *sources(), CEXT / "build_ffi.py", Path(__file__)]
    return max(path.stat().st_mtime for path in found)


def build(folder: Path, level: str) -> Path:
    """The program, rebuilt where a source is newer. level: -O0 or -O1."""
    program = folder / "plans"
    if program.exists() and program.stat().st_mtime > newest():
        return program
    include = folder / "cmake" / "cext" / "include"  # the rest of the headers is made as CMake configures
    vendors = [f"-DSATCHEL_{vendor}=OFF" for vendor in ("CUDA", "HIP", "SYCL")]
    chosen = ["-DSATCHEL_SETS=scalar", *vendors, f"-DPython_EXECUTABLE={sys.executable}"]
    configured = ["cmake", "-S", ROOT, "-B", folder / "cmake", *chosen]
    subprocess.run(configured, check=True, stdout=subprocess.DEVNULL)
    made = [sys.executable, CEXT / "build_ffi.py", CEXT / "include" / "hal.h", CEXT / "quant"]
    subprocess.run([*made, include / "_hal.py", include], check=True, stdout=subprocess.DEVNULL)
    places = [include, CEXT / "include", CEXT / "host", CEXT / "quant", CEXT / "cpu"]
    common = [*OPTIONS, level, *(f"-I{place}" for place in places)]

    def compiled(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        how = PARTLY if source.name.startswith("product_") else WATCHED
        subprocess.run(["clang", *common, *how, "-c", source, "-o", target], check=True)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources()))
    linked = ["clang", "-fsanitize=fuzzer,address,undefined", *objects, "-lm", "-lpthread", "-o", program]
    subprocess.run(linked, check=True)
    return program


def seeds(folder: Path) -> int:
    """Writes one file per case; returns their number."""
    sys.path[:0] = [str(ROOT / "tests" / "support")]
    from kernel_cases import OP_NAMES
    from one_step import cases_of

    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for op in OP_NAMES:
        cases = sorted(cases_of(op), key=lambda case: sum(array.nbytes for array, _ in case.inputs))
        for number, data in enumerate(_inputs(op, cases)):
            (folder / f"{op}-{number}").write_bytes(data)
            count += 1
    return count


def _inputs(op: str, cases: Sequence[object]) -> Iterator[bytes]:
    import numpy as np
    from one_step import Case, plan_of

    from satchel import cext
    from satchel.runtime.plan import PACKED

    done = 0
    for case in cases:
        assert isinstance(case, Case)
        segment, contents = plan_of(op, case, 0)
        if done == CASES:  # once more, with weights in the device's own order
            views = segment.view_table
            weights = [i for i in range(2, len(views)) if views[i]["ndim"] > 1]
            views["format"][weights] |= PACKED
            views["stride"][weights] = 0
        described = np.zeros(len(segment.buffers), cext.dtype_of("hal_bufdesc"))
        described["size"] = [b.size * (PANELS if done == CASES else 1) for b in segment.buffers]
        described["usage"] = [b.usage for b in segment.buffers]
        tables = [segment.step_table, segment.view_table, described, segment.op_table]
        counts = [*(len(table) for table in tables), len(segment.args), len(contents[0]), 0]
        parts = [struct.pack("=4B2HI", *counts), *(table.tobytes() for table in tables)]
        parts += [segment.args, bytes(contents[0])]
        parts += [struct.pack("=H", min(BYTES, len(raw))) + raw[:BYTES] for raw in contents]
        data = b"".join(parts)
        if len(data) <= LONGEST:
            yield data
            done += 1
        if done > CASES:
            return


def main(length: Length, folder: Path) -> None:
    """Fuzzes for so long; exits as libFuzzer does. A breaking input is kept in the current folder."""
    if shutil.which("clang") is None:
        sys.exit("fuzz: plans: clang is missing: apt-get install clang libclang-rt-14-dev")
    level = "-O1" if length.amount >= LONG and not length.counted else "-O0"
    place = folder.resolve().parent / f"plans-build{level}"
    program = build(place, level)
    seeds(place / "seeds")
    limits = [
        f"-max_len={LONGEST}",
        f"-timeout={SLOWEST}",
        "-rss_limit_mb=2048",
    ]
    # A too large allocation must fail as it does without a sanitizer, not end the program.
    environment = os.environ | {"ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1"}
    command = [str(program), *limits, *length.arguments(folder, place / "seeds")]
    os.execve(program, command, environment)
