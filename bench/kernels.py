"""Speed of the CPU backend's matrix products: GB/s and share of the read bandwidth at one token, GFLOP/s at
many.

    python bench/kernels.py [--sets avx512,avx2] [--formats q4_k,q6_k] [--threads 2] [--tokens 512]
                            [--k 2048] [--n 8192]

The bandwidth is measured first, with the same number of threads: the highest rate at which numpy sums 512 MB.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from satchel import cext
from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device, Exec
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array
from satchel.runtime.plan import BufferSpec, Segment

SETS = "avx512,avx2,scalar,i8mm,neon"
STEP, OUT, WEIGHT, CONST = 4, 5, 0, 1


def best(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def read_bandwidth(threads: int) -> float:
    """Read bandwidth in bytes per second."""
    parts = [np.ones((512 << 20) // 8 // threads, np.int64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = best(lambda: list(pool.map(np.sum, parts)))
    return sum(p.nbytes for p in parts) / seconds


def view(buffer: int, format: str, rows: int, width: int) -> tuple[object, ...]:
    known = FORMATS[format]
    return (buffer, known.id, 0, known.row_bytes(width), -1, 2, (rows, width, 1, 1))


def product(device: Device, format: str, t: int, n: int, k: int, copies: int) -> Exec:
    """`copies` products of (t, k) activations with (n, k) weights of their own."""
    act = (FORMATS[format].act if FORMATS[format].block > 1 else None) or "f32"
    operands = [(act, t, k, CONST), ("f32", t, n, OUT), *((format, n, k, WEIGHT) for _ in range(copies))]
    described = [BufferSpec("step", STEP, 32)]
    described += [
        BufferSpec(f"b{i}", u, r * FORMATS[f].row_bytes(w)) for i, (f, r, w, u) in enumerate(operands)
    ]
    buffers = [device.alloc(b.size, b.usage) for b in described]
    rng = np.random.default_rng(1)
    encode = FORMATS[act].encode
    x: Array = rng.standard_normal((t, k)).astype(np.float32)
    buffers[1].write(0, encode(x, None) if encode else x)
    views = []
    for i, (f, r, w, _) in enumerate(operands[2:]):
        buffers[3 + i].write(0, np.full(described[3 + i].size, 0x11, np.uint8))
        views += [view(2, "f32", t, n), view(1, act, t, k), view(3 + i, f, r, w)]
    ops = np.zeros(1, cext.dtype_of("hal_op"))
    ops["name"] = b"linear"
    steps = np.array([(0, 2, 3 * i, 0) for i in range(copies)], cext.dtype_of("hal_step"))
    table = np.array(views, cext.dtype_of("hal_view"))
    return device.compile(Segment("", (), (), steps, table, ops, b"", tuple(described)), buffers)


def seconds_of(device: Device, format: str, t: int, n: int, k: int, copies: int) -> float:
    program = product(device, format, t, n, k, copies)
    block = cext.ffi.new("uint8_t[]", 32)
    took = best(lambda: program.run(block, 32))
    buffers = program.buffers
    program.close()
    for buffer in buffers:
        buffer.close()
    return took / copies


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--formats", default="f32,f16,bf16,q8_0,q4_0,q4_1,q5_0,q5_1,q4_k,q5_k,q6_k")
    for name, default in (("threads", 0), ("tokens", 512), ("k", 2048), ("n", 8192)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    limit = 0.0
    print("| set | format | threads | T=1 GB/s | share | T=1 us | T GFLOP/s |\n|---|---|---|---|---|---|---|")
    for name in o.sets.split(","):
        os.environ["SATCHEL_CPU"] = name
        try:
            device = find_backend("cpu").open(threads=o.threads)
        except DeviceError:
            continue
        with device:
            threads = device.info().threads
            limit = limit or read_bandwidth(threads)
            for format in o.formats.split(","):
                size = o.n * FORMATS[format].row_bytes(o.k)
                one = seconds_of(device, format, 1, o.n, o.k, max(1, (256 << 20) // size))
                many = seconds_of(device, format, o.tokens, min(o.n, 512), o.k, 1)
                flops = 2 * o.tokens * min(o.n, 512) * o.k / many / 1e9
                rate = size / one
                row = (name, format, threads, f"{rate / 1e9:.1f}", f"{rate / limit:.0%}", f"{one * 1e6:.0f}")
                print("|", " | ".join(map(str, row)), f"| {flops:.0f} |", flush=True)
    print(f"\nread bandwidth: {limit / 1e9:.1f} GB/s; products of {o.n} x {o.k} weights, {o.tokens} tokens")


if __name__ == "__main__":
    main()
