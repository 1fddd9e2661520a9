"""Malformed and unusual GGUF files, built byte by byte: rows G01-G25 of the project's list, llama.cpp's case
names.

Each must load or give one ModelError line, with memory in proportion to the file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from satchel.errors import ModelError
from satchel.formats.gguf import open_gguf

U8, I8, U16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12
T_F32, T_F16, T_Q4_0, T_Q8_0, T_Q4_K, T_I8, T_F64 = 0, 1, 2, 8, 12, 24, 28
MAX64 = (1 << 64) - 1


def u32(n: int) -> bytes:
    return struct.pack("<I", n & 0xFFFFFFFF)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n & MAX64)


def text(raw: bytes | str, length: int | None = None) -> bytes:
    raw = raw.encode() if isinstance(raw, str) else raw
    return u64(len(raw) if length is None else length) + raw


def kv(key: bytes | str, kind: int = U8, payload: bytes = b"\x07") -> bytes:
    return text(key) + u32(kind) + payload


def align(n: int) -> bytes:
    return kv("general.alignment", U32, u32(n))


def array(element: int, count: int, payload: bytes = b"") -> bytes:
    return kv("a", ARR, u32(element) + u64(count) + payload)


def info(name: bytes | str, dims: Iterable[int], kind: int = T_F32, offset: int = 0) -> bytes:
    """A tensor's entry, dimensions innermost first as in the file."""
    dims = list(dims)
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def head(n_tensors: int, n_kv: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + u32(version) + u64(n_tensors) + u64(n_kv)


def file(
    kvs: Iterable[bytes] = (), tensors: Iterable[bytes] = (), data: int = 0, *, to: int = 32, version: int = 3
) -> bytes:
    kvs, tensors = list(kvs), list(tensors)
    whole = head(len(tensors), len(kvs), version) + b"".join(kvs) + b"".join(tensors)
    return whole + bytes(-len(whole) % to) + bytes(range(256)) * (data // 256) + bytes(range(data % 256))


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("../../evil.gguf")
        member.size = 24
        archive.addfile(member, io.BytesIO(head(0, 0)))
    return out.getvalue()


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../evil.gguf", bytes(1 << 20))
    return out.getvalue()


TWO = [info("x", [8]), info("y", [8], offset=32)]

Raw = bytes | Callable[[], bytes]  # a file's bytes; a large one is made when it is written


def made(raw: Raw) -> bytes:
    return raw() if callable(raw) else raw


# id, file, part of the error
BAD: list[tuple[str, Raw, str]] = [
    ("G01-empty", b"", "an empty file"),
    *((f"G01-{n}-bytes", head(0, 0)[:n], "got") for n in (1, 3)),
    *((f"G01-{n}-bytes", head(0, 0)[:n], "at least 24 bytes") for n in (4, 8, 23)),
    ("G02-HEADER_BAD_MAGIC", head(0, 0, magic=b"LMAO"), "expected 'GGUF', got 'LMAO'"),
    ("G02-ggjt", b"tjgg" + head(0, 0)[4:], "old GGJT"),
    ("G02-ggjt-swapped", b"ggjt" + head(0, 0)[4:], "old GGJT"),
    ("G02-ggla", b"algg" + head(0, 0)[4:], "old GGLA"),
    ("G02-big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    ("G03-HEADER_BAD_VERSION_0", head(0, 0, 0), "expected 2 or 3, got 0"),
    ("G03-HEADER_BAD_VERSION_1", head(0, 0, 1), "got 1, which was given up"),
    ("G03-v1-short-strings", head(0, 1, 1) + u32(3) + b"key" + u32(U8) + b"\x01", "version at byte 4"),
    ("G03-HEADER_BAD_VERSION_FUTURE", head(0, 0, 4), "got 4; update"),
    ("G03-version-max", head(0, 0, 0xFFFFFFFF), "got 4294967295"),
    ("G04-HEADER_BAD_N_TENSORS", head(MAX64, 0), "number of tensors at byte 8"),
    ("G04-2^63", head(1 << 63, 0) + bytes(100), "number of tensors"),
    ("G04-more-than-fit", head(5, 0) + bytes(4 * 25), "at most 4, got 5"),
    ("G04-one-and-no-entry", head(1, 0) + bytes(24), "number of tensors"),
    ("G05-HEADER_BAD_N_KV", head(0, MAX64), "number of keys at byte 16"),
    ("G05-2^61+1", head(0, (1 << 61) + 1) + bytes(100), "number of keys"),
    ("G05-more-than-fit", head(0, 9) + bytes(8 * 14), "at most 8, got 9"),
    ("G05-one-less-than-said", head(0, 2) + kv("a") + kv("b")[:-1] + b"", "number of keys"),
    *(
        (f"G06-key-length-{name}", head(0, 1) + u64(n) + bytes(1000), f"length of key at byte 24: .*got {n}")
        for name, n in (("2^64-1", MAX64), ("2^63", 1 << 63), ("remaining+1", 1001), ("1GiB", 1 << 30))
    ),
    ("G06-KV_BAD_KEY_SIZE", head(0, 1) + u64(MAX64) + b"abcdefghijkl", "length of key"),
    *(
        (f"G06-string-length-{name}", file([kv("k", STR, u64(n) + bytes(500))]), f"length of k at .*got {n}")
        for name, n in (("2^64-1", MAX64), ("2^63", 1 << 63), ("remaining+1", 600), ("1GiB", 1 << 30))
    ),
    ("G06-string-in-array", file([array(STR, 2, text("ok") + u64(MAX64))]), "length of string 1 of a"),
    ("G06-string-array-ends-early", head(0, 1) + array(STR, 2, text("0123456789")), "string 1|a at byte|end"),
    ("G07-KV_EMPTY_KEY", file([kv("")]), "1 to 65535 bytes, got 0"),
    ("G07-KV_DUPLICATE_KEY", file([kv("a"), kv("b"), kv("a")]), "each key once"),
    ("G07-nul", file([kv(b"a\x00b")]), "printable"),
    ("G07-newline", file([kv("a\nb")]), "printable"),
    ("G07-escape", file([kv("a\x1b[2Jb")]), "printable"),
    ("G07-invalid-utf8", file([kv(b"a\xff")]), "UTF-8"),
    ("G07-64KiB", file([kv("k" * 65536)]), "got 65536"),
    ("G08-KV_BAD_TYPE", file([kv("a", 13)]), "type of a at byte 33: expected a type from 0 to 12, got 13"),
    ("G08-type-255", file([kv("a", 255)]), "got 255"),
    ("G08-type-2^31", file([kv("a", 1 << 31)]), "got 2147483648"),
    ("G08-nested", file([array(ARR, 1, u32(U8) + u64(1) + b"\x01")]), "array of arrays"),
    *((f"G08-{n}-levels", file([array(ARR, 1, (u32(ARR) + u64(1)) * n)]), "arrays") for n in (8, 10**5)),
    ("G09-bad-element-then-end", head(0, 1) + text("a") + u32(ARR) + u32(99) + bytes(8), "element type of a"),
    ("G09-element-type-cut", head(0, 1) + text("a") + u32(ARR) + b"\x08", "element type of a"),
    *(
        (f"G10-{name}", file([array(kind, n, bytes(64))]), f"length of a at byte 41: .*got {n}")
        for name, kind, n in (
            ("2^63-bytes", U8, 1 << 63),
            ("2^60-doubles", F64, 1 << 60),
            ("2^60-strings", STR, 1 << 60),
            ("2^61-u64-wraps", U64, 1 << 61),
            ("2^30-bools", BOOL, 1 << 30),
            ("2^64-1-bools", BOOL, MAX64),
        )
    ),
    ("G10-bool-2", file([kv("a", BOOL, b"\x02")]), "bool of 0 or 1, got 2"),
    ("G10-bool-array-255", file([array(BOOL, 3, b"\x00\x01\xff")]), "bools of 0 or 1"),
    ("G10-invalid-utf8-value", file([kv("a", STR, text(b"ok\xc3"))]), "a at byte 47: expected UTF-8"),
    ("G11-TENSORS_BAD_N_DIMS", file([], [info("x", [1] * 5)], 64), "dimensions of x .*at most 4, got 5"),
    ("G11-dims-max", file([], [text("x") + u32(MAX64) + bytes(64)]), "got 4294967295"),
    ("G12-TENSORS_BAD_SHAPE", file([], [info("x", [-1])], 64), "dimensions from 0 to 2"),
    ("G12-2^63-1", file([], [info("x", [(1 << 63) - 1], T_F32)], 64), "below 2"),
    ("G12-TENSORS_NE_TOO_BIG", file([], [info("x", [1 << 32, 1 << 32], T_I8)], 64), "below 2"),
    ("G12-product-wraps-small", file([], [info("x", [1 << 32, 1 << 32, 1, 2], T_I8)], 64), "below 2"),
    ("G12-TENSORS_NBYTES_TOO_BIG", file([], [info("x", [1 << 61, 2], T_F32)], 64), "below 2"),
    ("G12-cve-2026-33298", file([], [info("x", [1 << 32, (1 << 30) + 1], T_F32)], 1024), "below 2"),
    ("G12-zero-and-huge", file([], [info("x", [0, 1 << 62, 1 << 62])], 64), "below 2"),
    (
        "G13-DATA_MEM_SIZE_OVERFLOW",
        file([], [info("x", [(1 << 62) - 32], T_I8), info("y", [(1 << 62)], T_I8, (1 << 62) - 32)], 64),
        "tensor x at byte 96: expected data up to byte 9223372036854775872",
    ),
    (
        "G13-sum-wraps-to-zero",
        file([], [info("x", [(1 << 63) - 32], T_I8), info("y", [(1 << 63) - 32], T_I8, (1 << 63) - 32)], 64),
        "tensor x",
    ),
    ("G14-TENSORS_NBYTES_PAD_WRAP", file([], [info("x", [(1 << 63) - 1], T_I8)], 64), "expected data up to"),
    *((f"G15-removed-{n}", file([], [info("x", [256], n)], 512), "ggml removed") for n in (4, 5, 31, 32, 33)),
    *((f"G15-removed-{n}", file([], [info("x", [256], n)], 512), "ggml removed") for n in (36, 37, 38)),
    ("G15-TENSORS_BAD_TYPE", file([], [info("x", [256], 43)], 512), "got 43, which this version does not"),
    ("G15-type-2004", file([], [info("x", [256], 2004)], 512), "got 2004, which this version does not"),
    ("G15-type-255", file([], [info("x", [256], 255)], 512), "got 255"),
    ("G15-type-minus-1", file([], [info("x", [256], -1)], 512), "got 4294967295"),
    ("G16-k-quant-255", file([], [info("x", [255, 2], T_Q4_K)], 512), "multiple of 256 .*got 255"),
    ("G16-row-1", file([], [info("x", [1, 32], T_Q4_0)], 512), "multiple of 32 .*got 1"),
    ("G16-scalar-of-blocks", file([], [info("x", [], T_Q8_0)], 512), "multiple of 32 .*got 1"),
    ("G17-64-bytes", file([], [info("n" * 64, [1])], 32), "1 to 63 bytes, got 64"),
    ("G17-TENSORS_BAD_NAME_SIZE", file([], [info("n" * 65, [1])], 32), "1 to 63 bytes, got 65"),
    ("G17-2^20-bytes", file([], [info("n" * (1 << 20), [1])], 32), "got 1048576"),
    ("G17-TENSORS_DUPLICATE_NAME", file([], [info("x", [8]), info("x", [8], 0, 32)], 64), "each name once"),
    ("G17-empty", file([], [info("", [8])], 32), "got 0"),
    ("G17-nul", file([], [info(b"a\x00b", [8])], 32), "printable"),
    ("G17-invalid-utf8", file([], [info(b"\x80", [8])], 32), "UTF-8"),
    ("G17-length-2^64-1", file([], [u64(MAX64) + bytes(64)], 32), "length of tensor name"),
    ("G18-TENSORS_BAD_OFFSET", file([], [info("x", [8], T_F32, 1)], 64), "expected offset 0 .*got 1"),
    ("G18-overlap", file([], [TWO[0], info("y", [8], 0, 0)], 64), "tensor y .*expected offset 32 .*got 0"),
    ("G18-gap", file([], [TWO[0], info("y", [8], 0, 64)], 96), "expected offset 32 .*got 64"),
    ("G18-descending", file([], [info("x", [8], 0, 32), info("y", [8])], 64), "expected offset 0 .*got 32"),
    ("G18-past-the-end", file([], [info("x", [8], 0, 1 << 40)], 64), "expected offset 0"),
    ("G18-offset-wraps", file([], [info("x", [8], 0, MAX64 - 31)], 64), "expected offset 0"),
    ("G18-size-past-the-end", file([], [info("x", [1 << 20])], 64), "expected data up to byte"),
    (
        "G19-DATA_NOT_ENOUGH_DATA",
        file([], [info("x", [16])], 63),
        "expected data up to byte 128, got a file of 127",
    ),
    (
        "G19-cut-in-second",
        file([], TWO, 48),
        "tensor y at byte 128: expected data up to byte 160, got a file of 144",
    ),
    ("G19-no-data", head(2, 0) + b"".join(TWO), "expected data up to"),
    *(
        (f"G20-{n}", file([align(n)]), "general.alignment: expected a power of two")
        for n in (0, 3, 1 << 31, -1)
    ),
    ("G20-KV_BAD_ALIGN", file([align(13)]), "power of two"),
    ("G20-TENSORS_BAD_ALIGN", file([align(13)], TWO, 64), "power of two"),
    ("G20-DATA_BAD_ALIGN", file([align(13)], TWO, 64, to=1), "power of two"),
    ("G20-string", file([kv("general.alignment", STR, text("32"))]), "uint32, got string"),
    ("G20-KV_WRONG_TYPE_ALIGN", file([kv("general.alignment", U64, u64(32))]), "uint32, got uint64"),
    ("G20-negative", file([kv("general.alignment", I32, u32(-32))]), "uint32, got int32"),
    ("G20-bool", file([kv("general.alignment", BOOL, b"\x01")]), "uint32, got bool"),
    ("G20-array", file([kv("general.alignment", ARR, u32(U32) + u64(1) + u32(32))]), "uint32, got an array"),
    (
        "G20-TENSORS_INCONSISTENT_ALIGN",
        file([align(1)], [info("x", [1]), info("y", [1], 0, 32)], 64),
        "offset 4",
    ),
    ("G20-DATA_INCONSISTENT_ALIGN", file([align(64)], TWO, 96, to=64), "expected offset 64 .*got 32"),
    ("G21-keys-missing", head(0, 1), "number of keys"),
    (
        "G23-more-than-a-million-keys",
        lambda: head(0, 1 << 21) + bytes(30 << 20),
        "at most 1048576, got 2097152",
    ),
    ("G25-gzip", gzip.compress(bytes(1 << 20)), "gzip archive"),
    ("G25-bzip2", bz2.compress(bytes(1 << 16)), "bzip2 archive"),
    ("G25-zip-slip", zipped(), "zip archive"),
    ("G25-tar-slip", tar(), "tar archive"),
    (
        "G25-lfs-pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "Git LFS pointer",
    ),
    ("G25-safetensors", u64(20) + b'{"a":{"dtype":"F32"}}' + bytes(16), "safetensors"),
    ("G25-text", b"Once upon a time there was a file.", "got 'Once'"),
    ("G25-terminal-escape", b"\x1b[2J" + bytes(40), r"got '\\x1b\[2J'"),
]

# id, file, names of tensors
GOOD: list[tuple[str, bytes, list[str]]] = [
    ("G21-HEADER_EMPTY", head(0, 0), []),
    ("G21-empty-v2", head(0, 0, 2), []),
    ("G21-data-without-tensors", file([kv("a")], data=4096), []),
    ("G21-data-after-last-tensor", file([], TWO, 4096), ["x", "y"]),
    ("KV_SUCCESS", file([kv("a", n, bytes(8)[:size]) for n, size in ((U8, 1),)]), []),
    ("TENSORS_SUCCESS", file([], TWO, 64), ["x", "y"]),
    ("TENSORS_CUSTOM_ALIGN", file([align(1)], [info("x", [1]), info("y", [1], 0, 4)], 8, to=1), ["x", "y"]),
    ("DATA_SUCCESS", file([kv("a")], [info("x", [32], T_Q8_0)], 34), ["x"]),
    ("DATA_CUSTOM_ALIGN", file([align(64)], [TWO[0], info("y", [8], 0, 64)], 96, to=64), ["x", "y"]),
    ("G07-longest-key", file([kv("k" * 65535)]), []),
    ("G10-empty-arrays", file([array(STR, 0), kv("b", ARR, u32(F64) + u64(0))]), []),
    ("G11-no-dimensions", file([], [info("x", [])], 4), ["x"]),
    (
        "G12-TENSORS_ZERO_DIM",
        file([], [info("x", [0, 5]), info("y", [4, 0]), info("z", [2])], 8),
        ["x", "y", "z"],
    ),
    ("G17-63-bytes", file([], [info("n" * 63, [1])], 4), ["n" * 63]),
    ("G18-tight", file([], TWO, 64), ["x", "y"]),
    *(
        (f"G20-align-{n}", file([align(n)], [info("x", [1])], 4, to=n), ["x"])
        for n in (2, 4, 8, 4096, 1 << 21)
    ),
]

PEER_NAMES = {
    "HEADER": "BAD_MAGIC BAD_VERSION_0 BAD_VERSION_1 BAD_VERSION_FUTURE BAD_N_TENSORS BAD_N_KV EMPTY",
    "KV": "BAD_KEY_SIZE EMPTY_KEY BAD_TYPE DUPLICATE_KEY BAD_ALIGN WRONG_TYPE_ALIGN SUCCESS",
    "TENSORS": "BAD_NAME_SIZE BAD_N_DIMS BAD_SHAPE ZERO_DIM NE_TOO_BIG NBYTES_TOO_BIG NBYTES_PAD_WRAP "
    "BAD_TYPE BAD_OFFSET DUPLICATE_NAME BAD_ALIGN INCONSISTENT_ALIGN SUCCESS CUSTOM_ALIGN",
    "DATA": "NOT_ENOUGH_DATA BAD_ALIGN INCONSISTENT_ALIGN MEM_SIZE_OVERFLOW SUCCESS CUSTOM_ALIGN",
}


def peak_of(call: Callable[[], object]) -> int:
    """The peak of bytes that a call allocates."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("raw", "match"), [pytest.param(*case[1:], id=case[0]) for case in BAD])
def test_malformed_file_gives_one_line_and_little_memory(raw: Raw, match: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    size = path.write_bytes(made(raw))

    def refuse() -> None:
        with pytest.raises(ModelError, match=match) as caught:
            open_gguf(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert message.isprintable() and len(message) < len(str(path)) + 400

    assert peak_of(refuse) < 4 * size + (1 << 20)


@pytest.mark.parametrize(("raw", "names"), [pytest.param(*case[1:], id=case[0]) for case in GOOD])
def test_odd_file_loads(raw: bytes, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with open_gguf(path) as model:
        assert list(model.tensors) == names
        for name, info in model.tensors.items():
            blocks = (*info.shape[:-1], info.shape[-1] // 32) if info.type_id == T_Q8_0 else info.shape
            assert model.array(name).shape == blocks
            assert model.raw(name).tobytes() == raw[info.offset : info.offset + info.nbytes]


def test_every_name_of_the_peer_is_covered() -> None:
    ids = " ".join(case[0] for case in (*BAD, *GOOD))
    wanted = [f"{stage}_{name}" for stage, names in PEER_NAMES.items() for name in names.split()]
    assert [name for name in wanted if name not in ids] == []


def test_every_cut_of_a_whole_file_is_refused(tmp_path: Path) -> None:
    """No prefix of a file that needs all of its bytes loads, and none raises another error."""
    whole = file([kv("a"), array(STR, 2, text("x") + text("yz")), kv("s", STR, text("é"))], TWO, 64)
    path = tmp_path / "m.gguf"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError):
            open_gguf(path)


@pytest.mark.parametrize(("kind", "count"), [("keys", 100_000), ("keys", 1_000_000), ("tensors", 200_000)])
def test_g23_so_many_entries_load_in_linear_memory(kind: str, count: int, tmp_path: Path) -> None:
    if kind == "keys":
        raw = head(0, count) + b"".join(text(f"key.{i:07d}") + u32(U32) + u32(i) for i in range(count))
    else:
        entries = (info(f"t{i:07d}", [8], T_F32, 32 * i) for i in range(count))
        raw = head(count, 0) + b"".join(entries)
        raw += bytes(-len(raw) % 32) + bytes(32 * count)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with open_gguf(path) as model:
        if kind == "keys":
            assert len(model.metadata) == count and model.metadata[f"key.{count - 1:07d}"] == count - 1
        else:
            assert len(model.tensors) == count
            assert np.array_equal(model.array("t0199999"), np.zeros(8, np.float32))
