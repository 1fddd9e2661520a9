"""packaging/phones.py: the layouts that it writes, what its inspection finds, Android's headers; and the
libraries for phones themselves, where they were built. No phone runs them here.
"""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import phones  # noqa: E402

BUILT = Path(os.environ.get("SATCHEL_PHONES") or ROOT / "dist" / "phones")
# What a kernel or Android's C library lays out: expressions of C and their values, by processor.
EVERYWHERE = {
    "sizeof(pthread_t)": 8,
    "sizeof(pthread_mutex_t)": 40,
    "sizeof(pthread_cond_t)": 48,
    "sizeof(pthread_attr_t)": 56,
    "offsetof(struct sigaction, sa_sigaction)": 8,
    "offsetof(struct sigaction, sa_mask)": 16,
    "sizeof(struct sigaction)": 32,
    "offsetof(siginfo_t, si_addr)": 16,
    "sizeof(siginfo_t)": 128,
    "offsetof(struct rusage, ru_nivcsw)": 136,
    "sizeof(struct rusage)": 144,
    "sizeof(cpu_set_t)": 128,
    "offsetof(struct tm, tm_gmtoff)": 40,
    "offsetof(struct stat, st_size)": 48,
}
BY_PROCESSOR = {
    "aarch64": {"sizeof(struct stat)": 128, "offsetof(struct stat, st_mode)": 16, "SYS_futex": 98},
    "x86_64": {"sizeof(struct stat)": 144, "offsetof(struct stat, st_mode)": 24, "SYS_futex": 202},
}
INCLUDED = ("pthread.h", "sched.h", "signal.h", "stddef.h", "time.h")
INCLUDED += ("sys/resource.h", "sys/stat.h", "sys/syscall.h")


@pytest.mark.parametrize("processor", BY_PROCESSOR)
def test_androids_headers_have_the_systems_layouts(processor: str, tmp_path: Path) -> None:
    clang = shutil.which("clang") or shutil.which("clang-19")
    if clang is None:
        pytest.skip("no clang: apt-get install clang")
    source = tmp_path / "layouts.c"
    wanted = EVERYWHERE | BY_PROCESSOR[processor]
    source.write_text(
        "".join(f"#include <{name}>\n" for name in INCLUDED)
        + "".join(f'_Static_assert({what} == {n}, "{what}");\n' for what, n in wanted.items())
    )
    headers = ["-nostdlibinc", "-isystem", str(phones.HEADERS)]
    command = [clang, "-target", f"{processor}-linux-android{phones.API}", "-std=c11", *headers]
    done = subprocess.run([*command, "-fsyntax-only", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_stand_ins_have_the_functions_that_the_headers_declare() -> None:
    has = phones.functions_of_android()
    assert {"pthread_create", "signal", "__errno", "mmap", "__tls_get_addr"} <= has["libc.so"]
    assert has["libdl.so"] == {"dlopen", "dlsym", "dlclose", "dlerror"}
    assert "fmaf" in has["libm.so"]
    assert not has["libc.so"] & has["libm.so"]
    text = "".join(path.read_text() for path in phones.HEADERS.rglob("*.h"))
    declared = re.findall(r"^(?!typedef)[A-Za-z].*\).*;$", text, re.M)
    assert sum(map(len, has.values())) == len(declared) + 1  # __tls_get_addr


def test_a_library_of_two_processors_is_taken_apart_again() -> None:
    arm, x86 = b"!<arch>\narm", b"!<arch>\nx86_64"
    both = phones.fat([(phones.ARM64, arm), (phones.X86_64, x86)])
    assert phones.slice_of(both, phones.ARM64) == arm
    assert phones.slice_of(both, phones.X86_64) == x86
    assert phones.slice_of(both, (7, 3)) == b""
    assert phones.slice_of(arm, phones.ARM64) == arm
    offsets = [struct.unpack_from(">I", both, 8 + 20 * i + 8)[0] for i in (0, 1)]
    assert all(offset % 8 == 0 for offset in offsets)


def test_the_list_of_the_xcframework_names_a_folder_for_each_system() -> None:
    rows: Any = plistlib.loads(plistlib.dumps(phones.listed()))["AvailableLibraries"]
    assert [(row["LibraryIdentifier"], row["SupportedArchitectures"]) for row in rows] == [
        ("ios-arm64", ["arm64"]),
        ("ios-arm64_x86_64-simulator", ["arm64", "x86_64"]),
    ]
    assert [row.get("SupportedPlatformVariant") for row in rows] == [None, "simulator"]


def test_objects_of_a_library_are_found_by_both_kinds_of_names() -> None:
    def entry(name: bytes, content: bytes) -> bytes:
        head = name.ljust(16) + b"0".ljust(32) + str(len(content)).encode().ljust(10) + b"`\n"
        return head + content + b"\n" * (len(content) % 2)

    archive = b"!<arch>\n" + entry(b"#1/12", b"__.SYMDEF\0\0\0xyz") + entry(b"#1/8", b"a.o\0\0\0\0\0code")
    archive += entry(b"b.o/", b"odd") + entry(b"c.o/", b"even")
    assert list(phones.members(archive)) == [("a.o", b"code"), ("b.o/", b"odd"), ("c.o/", b"even")]
    with pytest.raises(SystemExit, match="expected a static library"):
        list(phones.members(b"MZ"))


def test_what_was_not_built_is_a_finding(tmp_path: Path) -> None:
    (finding,) = phones.findings(tmp_path)
    assert finding.endswith("Satchel.xcframework: not there: run python packaging/phones.py")


@pytest.fixture(scope="module")
def built() -> Path:
    pytest.importorskip("lief", reason="the package lief is not installed")
    if not (BUILT / phones.AAR).exists():
        pytest.skip(f"{BUILT}: no libraries for phones: python packaging/phones.py")
    return BUILT


def test_the_libraries_are_what_phones_take(built: Path) -> None:
    assert list(phones.findings(built)) == []


def test_a_library_for_another_system_is_found(built: Path) -> None:
    framework = built / phones.XCFRAMEWORK
    content = (framework / "ios-arm64" / "libsatchel.a").read_bytes()
    (device,), simulator = phones.APPLE.values()
    assert list(phones.archive_findings(content, device, simulated=False)) == []
    assert any("expected IOS_SIMULATOR" in one for one in phones.archive_findings(content, device, True))
    assert any("for ARM64" in one for one in phones.archive_findings(content, simulator[1], False))
    assert list(phones.android_findings(content, phones.ANDROID[0])) == ["no ELF"]
