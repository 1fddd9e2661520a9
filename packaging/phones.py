"""Builds libsatchel for phones: `python packaging/phones.py [-o FOLDER]` writes Satchel.xcframework (iOS and
its simulator, static) and satchel.aar (Android, with headers for the NDK's CMake); `--check FOLDER` inspects
both.

zig (PyPI: ziglang) compiles them. It has headers of Apple's systems and none of Android's C library, so those
that libsatchel includes stand in packaging/android/include, and empty libraries with the names of their
functions take the place of the phone's when it is linked. No phone has run any of this: inspection (LIEF)
shows the processor, the oldest system, the needed libraries and functions, and the size of pages, and nothing
else.
"""

from __future__ import annotations

import argparse
import json
import os
import plistlib
import re
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import wheels
from wheels import ROOT, Target

XCFRAMEWORK, AAR = "Satchel.xcframework", "satchel.aar"
IOS = "15.0"  # the oldest system
API = 29  # Android 10: the first that has thread-local storage as ELF knows it
PAGE = 16384  # bytes of the largest page that Android has
NAMESPACE = "http://schemas.android.com/apk/res/android"
HEADERS = ROOT / "packaging" / "android" / "include"
MOST = 8_000_000  # bytes of a library of one processor
# CMake's own rules for phones ask for Apple's and Google's kits: the systems count as macOS and Linux here.
ALONE = ("SATCHEL_EMBED=ON", "CMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "CMAKE_HAVE_LIBC_PTHREAD=ON")


@dataclass(frozen=True)
class Phone:
    """A processor of a system. abi: its name in the result. cpu: of Mach-O, type and subtype."""

    target: Target
    abi: str
    cpu: tuple[int, int] = (0, 0)


def _ios(zig: str, processor: str, sets: tuple[str, ...], abi: str, cpu: tuple[int, int]) -> Phone:
    return Phone(Target(zig, "", "Darwin", processor, sets), abi, cpu)


ARM64, X86_64 = (0x0100000C, 0), (0x01000007, 3)
# The folders of the xcframework: the slices of a library, each for a processor.
APPLE = {
    "ios-arm64": (_ios(f"aarch64-ios.{IOS}", "arm64", wheels.ARM, "arm64", ARM64),),
    "ios-arm64_x86_64-simulator": (
        _ios(f"aarch64-ios.{IOS}-simulator", "arm64", wheels.ARM, "arm64", ARM64),
        _ios(f"x86_64-ios.{IOS}-simulator", "x86_64", ("scalar", "avx2"), "x86_64", X86_64),
    ),
}
ANDROID = tuple(
    Phone(Target(f"{processor}-linux-android.{API}", "", "Linux", processor, sets), abi)
    for processor, abi, sets in (
        ("aarch64", "arm64-v8a", wheels.ARM),
        ("x86_64", "x86_64", ("scalar", "avx2")),  # the emulator's
    )
)


def main(words: list[str]) -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("-o", "--output", type=Path, default=ROOT / "dist" / "phones", help="folder to write")
    add("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="files compiled at a time")
    add("--work", type=Path, metavar="FOLDER", help="keep what is compiled, for the next build")
    add("--check", type=Path, metavar="FOLDER", help="inspect what was built there")
    given = parser.parse_args(words)
    if given.check:
        found = list(findings(given.check))
        print("".join(f"{finding}\n" for finding in found), end="", file=sys.stderr)
        return 1 if found else 0
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = (given.work or Path(scratch)).resolve()
        build = wheels.Build(ROOT, given.jobs)
        write_xcframework(build, work, given.output / XCFRAMEWORK)
        write_aar(build, work, given.output / AAR)
    for name in (XCFRAMEWORK, AAR):
        print(f"{size_of(given.output / name) / 1e6:6.2f} MB  {name}", flush=True)
    return 0


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file())


def public_headers() -> dict[str, bytes]:
    folder = ROOT / "cext" / "embed" / "include"
    return {name: (folder / name).read_bytes() for name in ("satchel.h", "satchel.hpp")}


# --- iOS


def write_xcframework(build: wheels.Build, work: Path, output: Path) -> None:
    """A folder for each system, of a library with a slice for each processor, and the list of them."""
    shutil.rmtree(output, ignore_errors=True)
    for name, phones in APPLE.items():
        slices = [(phone.cpu, static_library(phone, build, work / name / phone.abi)) for phone in phones]
        headers = output / name / "Headers"
        headers.mkdir(parents=True)
        library = fat(slices) if len(slices) > 1 else slices[0][1]
        (output / name / "libsatchel.a").write_bytes(library)
        for file, content in public_headers().items():
            (headers / file).write_bytes(content)
        shutil.copy(ROOT / "bindings" / "swift" / "module.modulemap", headers)
    (output / "Info.plist").write_bytes(plistlib.dumps(listed()))


def listed() -> dict[str, object]:
    """The xcframework's Info.plist."""
    rows = []
    for name, phones in APPLE.items():
        row: dict[str, object] = {
            "BinaryPath": "libsatchel.a",
            "HeadersPath": "Headers",
            "LibraryIdentifier": name,
            "LibraryPath": "libsatchel.a",
            "SupportedArchitectures": [phone.abi for phone in phones],
            "SupportedPlatform": "ios",
        }
        if name.endswith("-simulator"):
            row["SupportedPlatformVariant"] = "simulator"
        rows.append(row)
    return {
        "AvailableLibraries": rows,
        "CFBundlePackageType": "XFWK",
        "XCFrameworkFormatVersion": "1.0",
    }


def static_library(phone: Phone, build: wheels.Build, folder: Path) -> bytes:
    include = zig_folder() / "lib" / "libc" / "include" / "any-darwin-any"
    flags = f"CMAKE_C_FLAGS=-isystem {include}"
    wheels.configure(phone.target, build, folder, *ALONE, flags)
    made(folder, build, "satchel_embed_static")
    return (folder / "embed" / "libsatchel.a").read_bytes()


def made(folder: Path, build: wheels.Build, target: str) -> None:
    command = ["cmake", "--build", str(folder), "--target", target, "--parallel", str(build.jobs)]
    wheels.run(command, build.tree)


def zig_folder() -> Path:
    import ziglang

    return Path(ziglang.__file__).parent


def fat(slices: list[tuple[tuple[int, int], bytes]]) -> bytes:
    """A library of several processors: header, a row for each, the slices at multiples of 8."""
    head, body = 8 + 20 * len(slices), b""
    rows = struct.pack(">II", 0xCAFEBABE, len(slices))
    for cpu, content in slices:
        body += bytes(-(head + len(body)) % 8)
        rows += struct.pack(">IIIII", *cpu, head + len(body), len(content), 3)
        body += content
    return rows + body


# --- Android


def write_aar(build: wheels.Build, work: Path, output: Path) -> None:
    """A package of libraries and headers, by the layout that the NDK calls prefab."""
    module = "prefab/modules/satchel"
    version = wheels.named(ROOT)[1]
    files: dict[str, bytes] = {
        "AndroidManifest.xml": (
            f'<manifest xmlns:android="{NAMESPACE}" package="satchel.library">\n'
            f'  <uses-sdk android:minSdkVersion="{API}"/>\n</manifest>\n'
        ).encode(),
        "prefab/prefab.json": as_json({"schema_version": 2, "name": "satchel", "version": version}),
        f"{module}/module.json": as_json({"export_libraries": [], "library_name": "libsatchel"}),
        **{f"{module}/include/{name}": content for name, content in public_headers().items()},
    }
    for phone in ANDROID:
        place = f"{module}/libs/android.{phone.abi}"
        facts = {"abi": phone.abi, "api": API, "ndk": 26, "stl": "none", "static": False}
        files[f"{place}/abi.json"] = as_json(facts)
        files[f"{place}/libsatchel.so"] = shared_library(phone, build, work / phone.abi)
    with zipfile.ZipFile(output, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # its time is 1980, so that equal files make equal packages
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)


def as_json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def shared_library(phone: Phone, build: wheels.Build, folder: Path) -> bytes:
    wheels.configure(phone.target, build, folder, *ALONE, f"CMAKE_C_FLAGS=-isystem {HEADERS}")
    made(folder, build, "satchel_embed_static")
    # `zig cc` wants a C library of its own, so the linker is called.
    output, exports = folder / "libsatchel.so", ROOT / "cext" / "embed" / "exports.map"
    command = ["-shared", "-o", str(output), "-soname", "libsatchel.so", f"--version-script={exports}"]
    command += ["-z", f"max-page-size={PAGE}", "--no-undefined", "--strip-all", "--hash-style=both"]
    command += ["--whole-archive", str(folder / "embed" / "libsatchel.a"), "--no-whole-archive"]
    beside = [str(compiler_library(phone, folder)), *stand_ins(folder)]
    wheels.run([str(zig_folder() / "zig"), "ld.lld", *command, *beside], build.tree)
    return output.read_bytes()


def compiler_library(phone: Phone, folder: Path) -> Path:
    """zig's library of functions that compilers call, such as those of atomic operations on Arm."""
    source = folder / "empty.c"
    source.write_text("extern int nothing;\n", encoding="utf-8")
    options = ["-target", phone.target.zig, "-fcompiler-rt", "-OReleaseSmall", "-fPIC", "--name", "rt"]
    wheels.run([str(zig_folder() / "zig"), "build-lib", str(source), *options], folder)
    return folder / "librt.a"


def stand_ins(folder: Path) -> list[str]:
    """Writes libc.so, libm.so and libdl.so, which hold names of functions and no code; gives their paths."""
    place = folder / "stand-ins"
    paths = []
    place.mkdir(exist_ok=True)
    for name, functions in functions_of_android().items():
        source = place / f"{name}.S"
        lines = "".join(f".globl {f}\n.type {f}, %function\n{f}:\n" for f in sorted(functions))
        source.write_text(f".text\n{lines}", encoding="utf-8")
        command = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", str(place / name), str(source)]
        wheels.run([str(folder / "cc"), *command], ROOT)
        paths.append(str(place / name))
    return paths


def functions_of_android() -> dict[str, set[str]]:
    """What each of the phone's libraries has, of what packaging/android/include declares."""
    found: dict[str, set[str]] = {"libc.so": {"__tls_get_addr"}, "libm.so": set(), "libdl.so": set()}
    places = {"math.h": "libm.so", "dlfcn.h": "libdl.so"}
    for header in sorted(HEADERS.rglob("*.h")):
        names = re.findall(r"^[A-Za-z][\w ]*?[ *(]+(\w+)\(", header.read_text(encoding="utf-8"), re.M)
        found[places.get(header.name, "libc.so")] |= set(names)
    return found


# --- inspection


def findings(folder: Path) -> Iterator[str]:
    """What is wrong with what was built there, a line each. Needs LIEF."""
    for name in (XCFRAMEWORK, AAR):
        if not (folder / name).exists():
            yield f"{folder / name}: not there: run python packaging/phones.py"
            return
    framework = folder / XCFRAMEWORK
    if plistlib.loads((framework / "Info.plist").read_bytes()) != listed():
        yield "Info.plist does not list what this program builds"
    for name, phones in APPLE.items():
        content = (framework / name / "libsatchel.a").read_bytes()
        for phone in phones:
            simulated = name.endswith("-simulator")
            for finding in archive_findings(slice_of(content, phone.cpu), phone, simulated):
                yield f"{name}/{phone.abi}: {finding}"
    with zipfile.ZipFile(folder / AAR) as archive:
        for phone in ANDROID:
            path = f"prefab/modules/satchel/libs/android.{phone.abi}/libsatchel.so"
            for finding in android_findings(archive.read(path), phone):
                yield f"{AAR}/{phone.abi}: {finding}"


def slice_of(content: bytes, cpu: tuple[int, int]) -> bytes:
    """A processor's part of a library; empty where it has none."""
    if content[:4] != b"\xca\xfe\xba\xbe":
        return content
    (count,) = struct.unpack_from(">I", content, 4)
    for i in range(count):
        *found, at, size, _ = struct.unpack_from(">IIIII", content, 8 + 20 * i)
        if tuple(found) == cpu:
            return content[at : at + size]
    return b""


def members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each object of a static library, in the form that Apple's programs write."""
    if archive[:8] != b"!<arch>\n":
        raise SystemExit("phones: expected a static library, got another file")
    at = 8
    while at + 60 <= len(archive):
        name, size = archive[at : at + 16].decode().strip(), int(archive[at + 48 : at + 58])
        content = archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
        if name.startswith("#1/"):
            length = int(name[3:])
            name, content = content[:length].rstrip(b"\0").decode(), content[length:]
        if not name.startswith(("__.SYMDEF", "/")):
            yield name, content


def archive_findings(archive: bytes, phone: Phone, simulated: bool) -> Iterator[str]:
    """A static library against its processor and system, which all objects are for; it has all functions."""
    import lief

    if not archive:
        yield "no part for this processor"
        return
    if len(archive) > MOST:
        yield f"{len(archive):,} bytes; expected {MOST:,} at most"
    defined: set[str] = set()
    platform = "IOS_SIMULATOR" if simulated else "IOS"
    for name, content in members(archive):
        binary = lief.parse(list(content))
        if not isinstance(binary, lief.MachO.Binary):
            yield f"{name}: no Mach-O"
            continue
        if int(binary.header.cpu_type.value) != phone.cpu[0]:
            yield f"{name}: for {binary.header.cpu_type.name}"
        facts = binary.build_version if binary.has_build_version else None
        system = f"{facts.platform.name} {'.'.join(map(str, facts.minos[:2]))}" if facts else "no system"
        if system != f"{platform} {IOS}":
            yield f"{name}: for {system}; expected {platform} {IOS}"
        defined |= {s.name[1:] for s in binary.symbols if s.has_export_info or s.type.name == "SECTION"}
        defined |= {s.name[1:] for s in binary.exported_symbols}
    if lacking := exported() - defined:
        yield f"lacks {', '.join(sorted(lacking))}"


def exported() -> set[str]:
    """The functions of satchel.h."""
    text = (ROOT / "cext" / "embed" / "exports.map").read_text(encoding="utf-8")
    return set(re.findall(r"^ +(satchel_\w+);", text, re.M))


def android_findings(content: bytes, phone: Phone) -> Iterator[str]:
    import lief

    binary = lief.parse(list(content))
    if not isinstance(binary, lief.ELF.Binary):
        yield "no ELF"
        return
    if len(content) > MOST:
        yield f"{len(content):,} bytes; expected {MOST:,} at most"
    if binary.header.machine_type.name.lower() != phone.target.processor:
        yield f"for {binary.header.machine_type.name}"
    has = functions_of_android()
    if foreign := set(binary.libraries) - set(has):
        yield f"needs {', '.join(sorted(foreign))}"
    needed = {s.name for s in binary.imported_symbols if s.name}
    if unknown := needed - set().union(*(has[name] for name in binary.libraries if name in has)):
        yield f"needs functions that its libraries are not known to have: {', '.join(sorted(unknown))}"
    names = [entry.name for entry in binary.dynamic_entries if entry.tag.name == "SONAME"]
    if names != ["libsatchel.so"]:
        yield f"its name is {names}"
    loads = [s for s in binary.segments if s.type.name == "LOAD"]
    if any(s.alignment < PAGE or (s.virtual_address - s.file_offset) % PAGE for s in loads):
        yield f"its parts do not lie at multiples of {PAGE}, the size of a page"
    if list(binary.symbols_version_requirement):
        yield "asks for versions of symbols, which Android's libraries do not have"
    if (found := {s.name for s in binary.exported_functions}) != exported():
        yield f"exports {', '.join(sorted(found ^ exported()))} differently from satchel.h"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
