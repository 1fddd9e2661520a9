"""Packed weights: each weight is packed once, from the file's bytes, before a step reads it; the file's pages
are released; --no-repack uses the file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file

from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import GGUF, TensorSource, open_gguf, write_gguf
from satchel.quant import BY_ID, FORMATS
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.runtime.compiler import compile, optimize
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.lower import probe, state_layout
from satchel.runtime.compiler.verify import PlanError, verify_plan
from satchel.runtime.device.device import Info, open_device
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.graph import Graph, Type
from satchel.runtime.layers.arch import Cache
from satchel.runtime.placement.dryrun import dry_run
from satchel.runtime.plan import ALIGN, PACKED, Bucket
from satchel.runtime.sampling import GREEDY
from satchel.runtime.weights import weights as loading
from satchel.runtime.weights.packing import (
    PACKED_BUFFER,
    PackedWeight,
    PackedWeights,
    file_places,
    packable,
    packed_by,
)
from satchel.runtime.weights.weights import bind, in_order, parts_of

HAVE = {f.name for f in libraries() if not f.reason}
LINUX = sys.platform == "linux"
HEADER = Path(__file__).parents[3] / "cext" / "include" / "hal.h"
PANEL = 16
needs_cpu = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")
needs_null = pytest.mark.skipif("null" not in HAVE, reason="the null backend is not installed")


class Refusing:
    """Why a fake device does a node or not: whatever the test says."""

    def __init__(self) -> None:
        self.probed: list[Any] = []

    def __call__(self, segment: Any) -> str:
        self.probed.append(segment)
        return ""


class FakeBuffer:
    def __init__(self, device: FakeDevice, size: int) -> None:
        self.device, self.size, self.data = device, size, np.zeros(size, np.uint8)

    def write(self, offset: int, data: Any) -> None:
        flat = np.frombuffer(data, np.uint8)
        self.data[offset : offset + len(flat)] = flat

    def pack(self, offset: int, format: int, matrices: tuple[int, int, int], data: Any) -> None:
        """As panels: whole rows in order, as many as fill the last panel are zero."""
        stack, rows, _ = matrices
        size = self.device.packed(format, *matrices)
        assert 0 <= offset <= self.size - size and offset % ALIGN == 0 and data.ctypes.data % 32 == 0
        lines = data.reshape(stack, rows, -1)
        full = np.zeros((stack, -(-rows // PANEL) * PANEL, lines.shape[-1]), np.uint8)
        full[:, :rows] = lines
        self.data[offset : offset + full.nbytes] = full.reshape(-1)
        self.device.calls.append((offset, format, matrices, size))


class FakeDevice:
    """Packs Q8_0 and F16 in panels of 16 rows. extra: bytes that a weight takes beyond its parts'."""

    def __init__(self, can_wrap: bool = True, extra: int = 0, free: int = 1 << 40) -> None:
        self.name, self.can_wrap, self.extra, self.free = "fake", can_wrap, extra, free
        self.calls: list[tuple[int, int, tuple[int, int, int], int]] = []
        self.refusal, self.overrides_of = Refusing(), lambda segment: ()

    def packed(self, format: int, stack: int, rows: int, columns: int) -> int:
        fmt = BY_ID[format]
        if fmt.name not in ("q8_0", "f16"):
            return 0
        padded = stack * -(-rows // PANEL) * PANEL * fmt.row_bytes(columns)
        return -(-padded // ALIGN) * ALIGN + self.extra

    def info(self) -> Info:
        return Info("fake", "", self.free, self.free, 0, 1, 0)

    def alloc(self, size: int, usage: int) -> FakeBuffer:
        return FakeBuffer(self, size)

    def wrap(self, memory: Any) -> FakeBuffer:
        made = FakeBuffer(self, len(memory))
        made.data = np.frombuffer(memory, np.uint8)
        return made


def write(
    path: Path, shapes: dict[str, tuple[int, ...]], format: str, alignment: int = 32
) -> dict[str, bytes]:
    """A file of random tensors; gives their bytes."""
    rng = np.random.default_rng(1)
    encode, data = FORMATS[format].encode, {}
    assert encode
    sources = []
    for name, shape in shapes.items():
        kind = format if len(shape) > 1 else "f32"
        values = rng.standard_normal(shape).astype(np.float32)
        blocks = values if kind == "f32" else encode(values, None)
        data[name] = np.ascontiguousarray(blocks).tobytes()
        sources.append(TensorSource(name, shape, kind, blocks))
    write_gguf(path, {"general.architecture": "llama", "general.alignment": alignment}, sources)
    return data


SHAPES = {"embed": (96, 64), "norm": (64,), "experts": (3, 40, 64), "small": (5, 32), "big": (1000, 64)}


def asked(gguf: GGUF, device: Any) -> PackedWeights:
    matrices = {n: Type(i.shape, i.format) for n, i in gguf.tensors.items() if len(i.shape) > 1}
    return PackedWeights(packed_by(device, matrices))


def unpacked(device: FakeDevice, place: Any, packed: PackedWeight, buffer: Any) -> bytes:
    """The file's bytes out of a fake buffer's panels."""
    row = BY_ID[packed.format].row_bytes(packed.columns)
    rows = -(-packed.rows // PANEL) * PANEL
    data = buffer.data[place.offset : place.offset + packed.stack * rows * row]
    return bytes(data.reshape(packed.stack, rows, row)[:, : packed.rows].tobytes())


@pytest.mark.parametrize("can_wrap", [True, False])
@pytest.mark.parametrize("extra", [0, 64])  # a size that is no sum of its parts' is packed whole
@pytest.mark.parametrize("chunk", [1 << 10, 32 << 20])
@pytest.mark.parametrize(("format", "alignment"), [("q8_0", 32), ("f16", 64), ("f16", 8)])
def test_every_byte_comes_to_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_wrap: bool, extra: int, chunk: int, format: str,
    alignment: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(loading, "PART", chunk)
    data = write(tmp_path / "x.gguf", SHAPES, format, alignment)
    device = FakeDevice(can_wrap, extra)
    seen: list[tuple[int, int]] = []
    with open_gguf(tmp_path / "x.gguf") as gguf:
        packed = asked(gguf, device)
        assert set(packed) == {"embed", "experts", "small", "big"}
        weights = bind(gguf, device, packed, lambda *at: seen.append(at))  # type: ignore[arg-type]
        for name, want in data.items():
            place = weights.place(name)
            buffer = weights.buffers[place.buffer]
            assert place.packed == (packed[name].size if name in packed else 0)
            assert (place.buffer == PACKED_BUFFER) == (name in packed)
            if name in packed:
                assert unpacked(device, place, packed[name], buffer) == want
            else:
                assert buffer.data[place.offset : place.offset + len(want)].tobytes() == want  # type: ignore[attr-defined]
        size = weights.buffers[PACKED_BUFFER].size
        assert size == sum(-(-p.size // ALIGN) * ALIGN for p in packed.values())
        assert seen[-1][0] == seen[-1][1] == sum(map(len, data.values()))
        assert seen == sorted(seen)
        del weights, buffer
    parts = len(device.calls)
    assert parts == 4 if extra or chunk > 1 << 20 else parts > 4


@pytest.mark.parametrize(
    ("can_wrap", "missing", "forgets"), [(True, 0, False), (True, 1, True), (False, 1, False)]
)
def test_the_system_forgets_what_was_copied_where_both_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_wrap: bool, missing: int, forgets: bool
) -> None:
    data = write(tmp_path / "x.gguf", SHAPES, "q8_0")
    told: list[tuple[int, int]] = []
    monkeypatch.setattr("satchel.formats.gguf.reader.Part.forget", lambda part, *span: told.append(span))
    device = FakeDevice(can_wrap)
    with open_gguf(tmp_path / "x.gguf") as gguf:
        packed = asked(gguf, device)
        device.free = sum(len(data[n]) + packed[n].size for n in packed) - missing
        weights = bind(gguf, device, packed)  # type: ignore[arg-type]
        spans = sorted((gguf.tensors[n].offset, gguf.tensors[n].nbytes) for n in packed)
        del weights
    assert sorted(told) == (spans if forgets else [])


@pytest.mark.skipif(not LINUX, reason="no other system gives pages of a file back")
def test_a_file_that_is_forgotten_is_read_again(tmp_path: Path) -> None:
    data = write(tmp_path / "x.gguf", SHAPES, "q8_0")
    with open_gguf(tmp_path / "x.gguf") as gguf:
        part = gguf.parts[0]
        os.fsync(part._file.descriptor)  # what is not on the disk yet is not given back
        part.forget(0, part.size)
        assert {n: gguf.raw(n).tobytes() for n in data} == data
    part.forget(0, 10)  # closed: there is nothing to give back


def test_large_tensors_come_first_and_the_rest_in_file_order(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", {"a": (64, 32), "b": (4096, 32), "c": (32, 32), "d": (8192, 32)}, "q8_0")
    with open_gguf(tmp_path / "x.gguf") as gguf:
        assert [i.name for i in in_order(gguf, asked(gguf, FakeDevice()))] == ["d", "b", "a", "c"]
        assert [i.name for i in in_order(gguf, PackedWeights({}))] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("rows", [1, 255, 256, 257, 5000])
def test_parts_are_the_whole(stack: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PART", 20_000)
    device: Any = FakeDevice()
    number = FORMATS["q8_0"].id
    whole = PackedWeight(number, stack, rows, 64, device.packed(number, stack, rows, 64))
    parts = list(parts_of(device, whole, stack * rows * 68))
    assert sum(p.size for p in parts) == whole.size
    assert sum(p.stack * p.rows for p in parts) == stack * rows
    if len(parts) > 1:
        assert all(p.rows % 256 == 0 or p.rows == rows % 256 for p in parts)
        assert max(p.rows * 68 for p in parts) <= max(20_000, 256 * 68)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_matrices_of_products_are_packable_and_nothing_else(arch: str, tied: bool) -> None:
    w = tiny.weights(arch, "q8_0", tied=tied)
    found = packable(tiny.build(arch, w, Cache(64)))
    assert set(found) == {name for name, shape in w.shapes.items() if len(shape) > 1}
    assert all(found[name] == w.type(name) for name in found)


def test_a_weight_with_another_reader_stays() -> None:
    from types import SimpleNamespace

    from satchel.runtime import ops
    from satchel.runtime.graph import TOKENS

    g = Graph()
    x = g.node("input", (), Type((TOKENS, 64)), "x")
    w, v = (g.node("weight", (), Type((64, 64), "f32"), n) for n in "wv")
    y = ops.add(ops.linear(x, w), ops.linear(x, v))
    rows = g.node("input", (), Type((TOKENS,), "i32"), "rows")
    forward: Any = SimpleNamespace(roots=lambda output: (ops.mul(y, ops.gather_rows(v, rows)),))
    assert set(packable(forward)) == {"w"}


def test_probe_and_plan_have_the_same_form(tmp_path: Path) -> None:
    """supports() is asked about the same packed weight that compile() gets: format, stride and shape."""
    w = tiny.weights("llama", "q8_0", mixed=True)
    device: Any = FakeDevice()
    forward = tiny.build("llama", w, Cache(64))
    packed = PackedWeights(packed_by(device, packable(forward)))
    assert {w.formats[name] for name in packed} == {"q8_0"}, "Q4_0 stays as it is here"
    from satchel.runtime.compiler.target import DeviceTarget

    optimized = optimize(
        forward.roots("tokens"), Context((DeviceTarget(device, packed),), lambda node: "fake")
    )
    path = tiny_file.write_model(tmp_path / "t.gguf", "llama")
    with open_gguf(path) as gguf:
        places = file_places(gguf, True, packed)
    plan = compile(optimized, Bucket(4, 1), {"fake": places}, state_layout(optimized))

    def forms(segment: Any) -> set[tuple[Any, ...]]:
        views = segment.view_table
        rows = zip(views["format"], views["stride"], views["offset"], views["shape"].tolist(), strict=True)
        return {(int(f), int(s), tuple(shape)) for f, s, at, shape in rows if f & PACKED and at % ALIGN == 0}

    planned = set().union(*map(forms, plan.segments))
    asked_about = set().union(*map(forms, device.refusal.probed))
    assert planned and planned <= asked_about and all(stride == 0 for _, stride, _ in planned)
    (segment,) = plan.segments
    segment.view_table["stride"][np.flatnonzero(segment.view_table["format"] & PACKED)[0]] = 4
    with pytest.raises(PlanError, match="packed"):
        verify_plan(plan)


def test_the_flag_is_the_header_s() -> None:
    shift = re.search(r"HAL_PACKED = 1 << (\d+)", HEADER.read_text())
    assert shift and 1 << int(shift[1]) == PACKED > max(BY_ID)


def test_a_probe_without_packed_weights_has_strides() -> None:
    g = Graph()
    node = g.node("linear", (g.node("weight", (), Type((4, 32), "q8_0"), "w"),), Type((4, 4)), "n")
    with_it, without = probe(node, "d", {"w": 640}), probe(node, "d")
    assert with_it.buffers[1].size == 640 and without.buffers[1].size == 4 * 34
    assert without.view_table["stride"][1] == 34 and not (without.view_table["format"] & PACKED).any()


# --- the installed backends


@needs_null
def test_the_null_device_s_order_is_the_complement() -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, 3 * 8 * 2 * 34).astype(np.uint8)
    with find_backend("null").open() as opened:
        size = opened.packed(8, 3, 8, 64)
        assert size == len(data) and opened.packed(2, 3, 8, 64) == 0
        buffer = opened.alloc(size + 64, 0)
        buffer.pack(64, 8, (3, 8, 64), data)
        out = np.empty(size, np.uint8)
        buffer.read_into(64, out)
        np.testing.assert_array_equal(out, ~data)
        for at, format in ((128, 8), (0, 2)):
            with pytest.raises(DeviceError, match="cannot be packed"):
                buffer.pack(at, format, (3, 8, 64), data)


def test_a_backend_without_the_entries_packs_nothing() -> None:
    with find_backend("numba").open() as opened:
        assert opened.packed(8, 1, 64, 64) == 0


@needs_cpu
@pytest.mark.parametrize("format", ["q8_0", "q4_k", "q6_k", "bf16", "f16"])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_packed_and_mapped_give_the_same_bits(tmp_path: Path, arch: str, format: str) -> None:
    path = tiny_file.write_model(tmp_path / "t.gguf", arch, format)
    ids = [int(i) for i in np.random.default_rng(5).integers(0, 250, 40)]
    with Model.load(path) as packed, Model.load(path, repack=False) as mapped:
        assert packed.engine.packed["cpu"] and not mapped.engine.packed["cpu"]
        np.testing.assert_array_equal(packed.logits(ids), mapped.logits(ids))
        replies = [m.generate(ids, max_tokens=8, sampling=GREEDY, ignore_eos=True) for m in (packed, mapped)]
        assert replies[0].read() == replies[1].read()


@pytest.mark.parametrize("name", sorted({"cpu", "remote"} & HAVE))
def test_a_dry_run_counts_what_a_load_takes(tmp_path: Path, name: str) -> None:
    path = tiny_file.write_model(tmp_path / "t.gguf")
    for repack in (True, False):
        with open_gguf(path) as gguf, find_backend(name).open() as opened:
            (share,) = dry_run(gguf, [opened], Options(repack=repack)).shares()
            stay = sum(t.nbytes for t in gguf.tensors.values() if len(t.shape) == 1)
            all_bytes = sum(t.nbytes for t in gguf.tensors.values())
        with Model.load(path, device=name, repack=repack) as model:
            assert share.packed == sum(p.size for p in model.engine.packed[name].values())
        assert share.weights == (share.packed + stay if repack else all_bytes)
        assert bool(share.packed) == repack


def resident(path: Path) -> int:
    """Bytes of the mapped file that are in this process's page tables."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 70 MB in Q8_0: random blocks, in a llama of three layers."""
    path = tmp_path_factory.mktemp("medium") / "medium.gguf"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("WIDTH", 1024), ("FFN", 4096), ("HEAD_DIM", 256), ("VOCAB", 16384)):
            patch.setattr(tiny, name, value)
        return tiny_file.write_model(path, "llama")


@needs_cpu
@pytest.mark.skipif(not LINUX, reason="/proc is read")
def test_the_file_s_pages_go(medium: Path) -> None:
    with Model.load(medium) as model:
        assert resident(medium) < 2 << 20
        assert model.generate([1, 2, 3], max_tokens=2, sampling=GREEDY, ignore_eos=True).read() is not None
        assert resident(medium) < 2 << 20
    with Model.load(medium, repack=False):
        assert resident(medium) > 0.9 * medium.stat().st_size


PEAK = """
import sys
from satchel.runtime.api.model import Model
def peak(): return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
Model.load(sys.argv[1], context=32).close()
before = peak()
model = Model.load(sys.argv[2], context=32)
print(peak() - before, model.device.info().threads)
"""


@needs_cpu
@pytest.mark.skipif(not LINUX, reason="/proc is read")
def test_loading_never_holds_the_weights_twice(medium: Path, tmp_path: Path) -> None:
    """Peak memory over that of a model of nothing: the file and 15 %, the parts in flight, the vocabulary."""
    small = tiny_file.write_model(tmp_path / "small.gguf")
    out = subprocess.run(
        [sys.executable, "-c", PEAK, small, medium], capture_output=True, text=True, check=True
    )
    assert int(out.stdout.split()[0]) < 1.15 * medium.stat().st_size


def test_weights_come_beside_other_work(tmp_path: Path) -> None:
    """Progress is told in the caller's thread, after the other work; what that raises ends the loading."""
    data = write(tmp_path / "x.gguf", SHAPES, "q8_0")
    here, seen = threading.get_ident(), list[Any]()

    def progress(done: int, total: int) -> None:
        seen.append((threading.get_ident() == here, done, total))

    def fail() -> None:
        raise RequestError("no")

    with open_gguf(tmp_path / "x.gguf") as gguf:
        device: Any = FakeDevice()
        packed = asked(gguf, device)
        made = loading.bind_beside(gguf, device, packed, progress, lambda: seen.append("other"))
        assert seen[0] == "other" and seen[-1] == (True, *[sum(map(len, data.values()))] * 2)
        assert all(mine for mine, _, _ in seen[1:]) and made.place("big").packed
        with pytest.raises(RequestError, match="no"):
            loading.bind_beside(gguf, device, packed, progress, fail)
        device.can_wrap, device.alloc = False, None
        with pytest.raises(TypeError):
            loading.bind_beside(gguf, device, packed, None, lambda: None)
        del made
    assert not [t for t in threading.enumerate() if t.name.startswith("satchel-load")]


@needs_cpu
def test_a_bad_vocabulary_is_said_at_its_first_use(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "bad.gguf", tokenizer__ggml__merges=["no-pair"])
    from satchel.errors import ModelError

    for _ in range(3):
        with Model.load(path) as model:
            assert model.generate
            for _ in range(2):
                with pytest.raises(ModelError, match="no-pair"):
                    model.tokenize("hello")


# --- threads, precision, profile


@needs_cpu
@pytest.mark.parametrize(
    ("given", "threads"), [((0, 3), 3), ((2, 0), 2), ((1, 3), 3), ((3, 1), 1), ((1, 1), 1)]
)
def test_threads_of_answers_and_prompts(given: tuple[int, int], threads: int) -> None:
    with open_device(find_backend("cpu"), *given) as opened:
        assert opened.info().threads in (threads, max(given))


@needs_cpu
def test_what_is_no_precision_or_thread_count_is_refused(medium: Path) -> None:
    for wrong in ({"precision": "half"}, {"threads_batch": -1}):
        with pytest.raises(RequestError, match=r"half|threads"):
            Model.load(medium, **wrong)  # type: ignore[arg-type]


@needs_cpu
def test_fast_precision_answers(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "t.gguf", "llama", "q4_k")
    ids = [int(i) for i in np.random.default_rng(5).integers(0, 250, 20)]
    with Model.load(path, precision="fast") as fast, Model.load(path) as exact:
        a, b = fast.logits(ids), exact.logits(ids)
        assert np.square(a - b).sum() < 1e-2 * np.square(b).sum()


@needs_cpu
def test_times_are_counted_where_asked(tmp_path: Path) -> None:
    path = tiny_file.write_model(tmp_path / "t.gguf")
    for profile in (True, False):
        with Model.load(path, profile=profile) as model:
            model.logits([1, 2, 3, 4])
            (program,) = model.engine._programs.values()
            ((run, _, _),) = program._execs
            if profile:
                times = run.times()
                assert len(times) == program.n_steps and sum(times) > 0 and min(times) >= 0
            else:
                with pytest.raises(DeviceError, match="profile"):
                    run.times()
