"""Inspects wheels that packaging/wheels.py made: `python packaging/check.py [--same FOLDER] [--gpu] [WHEEL
...]`, by default those of dist/. Nothing of a wheel is run, so a wheel for another system is checked like one
for this.

A wheel's name and its WHEEL file promise systems, and what is in it has to hold to that: processor, versions
of the C library and of the system, libraries that every such system has, the kernel sets of its target,
and all images of a GPU where it has one, each for the architecture that it is listed under (--gpu: it must
have them where its system has a driver, and their sizes are printed).
RECORD has to list exactly what is there. Each finding is a line; with any, the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import runpy
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath

import gpu_images
import release
import stubs
import wheels
from wheels import ROOT, TARGETS, Target

# Bytes of a wheel without GPU images.
MOST = {"satchel": 12_000_000, "satchel_model_40m": 40_000_000, stubs.PACKAGE: 20_000_000}
MOST_OF_GPU = 100_000_000  # of one with them: what PyPI takes
PACK = ROOT / "cext" / "gpu" / "pack.py"
TOOLS = {"auditwheel": "auditwheel", "lief": "lief", "twine": "twine"}  # module: package
LIBRARY = re.compile(r"satchel/cext/(?:lib)?satchel_(\w+)\.(so|dylib|dll)")
SEARCH = "search"  # the library of the quantizer's searches, which is no backend
SETS = re.compile(rb"sets of this library:((?: \w+)+)\0")  # cext/cpu/sets/isa.c
# Models, sources and what a build leaves beside its libraries.
FOREIGN = {".gguf", ".c", ".cu", ".cuh", ".cpp", ".hip", ".metal", ".cmake", ".pyc", ".pdb", ".lib", ".a"}
# A path of the machine that built it, such as __FILE__ and messages of a compiler leave.
ABSOLUTE = re.compile(rb"\0(/[\x20-\x7e]+\.(?:c|h|s|zig))\0")
ENTRIES = {SEARCH: "search_entry"}
ENTRY = "hal_backend_entry"  # of backends
CUDA_ELF = 190  # the machine of NVIDIA's ELF files
PTX_MOST = (8, 0)  # the version that drivers from 525 on read
# Libraries that every system of a kind has.
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
MUSL = {"libc.so"}
MACOS = {"/usr/lib/libSystem.B.dylib"}
WINDOWS = re.compile(r"(?:kernel32|ntdll|advapi32|api-ms-win-crt-[\w-]+)\.dll", re.I)
PROGRAMS = {"ws2_32.dll", "shell32.dll"}  # of programs: sockets, and the words of the command line
# How LIEF names a processor, and how tags do.
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
PROCESSORS = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}


@dataclass(frozen=True)
class Wheel:
    """What is in a wheel's file. tags: the platforms of its name."""

    path: Path
    name: str
    version: str
    tags: tuple[str, ...]
    files: dict[str, bytes]

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}.dist-info"

    @property
    def gpus(self) -> list[str]:
        """The vendors whose library the wheel has."""
        return sorted(set(library_names(self)) & set(gpu_images.VENDORS))

    @property
    def target(self) -> Target | None:
        """The target whose tag the name has; None for the model's wheel."""
        return next((one for one in TARGETS.values() if one.tag == ".".join(self.tags)), None)

    def paper(self, name: str) -> Message:
        """A file of the dist-info that has mail headers; empty where it is absent."""
        return message_from_bytes(self.files.get(f"{self.folder}/{name}", b""))


class Refused(Exception):
    """A file that is no wheel that could be checked."""


def main(words: list[str]) -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--same", type=Path, metavar="FOLDER", help="another build, which has to be equal")
    parser.add_argument(
        "--gpu", action="store_true", help="GPU images are missing where they could be; sizes"
    )
    parser.add_argument("wheels", nargs="*", type=Path, metavar="WHEEL", help="default: those of dist/")
    given = parser.parse_args(words)
    missing = sorted(TOOLS[name] for name in TOOLS if importlib.util.find_spec(name) is None)
    if missing:
        raise SystemExit(f"check: {', '.join(missing)}: not installed; run pip install '.[packaging]'")
    paths = given.wheels or sorted((ROOT / "dist").glob("*.whl"))
    if not paths:
        raise SystemExit(f"check: {ROOT / 'dist'}: no wheel; run python packaging/wheels.py, or name wheels")
    found, read = [], []
    for path in paths:
        try:
            wheel = opened(path)
        except Refused as error:
            found.append(f"{path.name}: {error}")
            continue
        read.append(wheel)
        here = [*inside(wheel), *tools(wheel), *(same(path, given.same) if given.same else ())]
        here += lacking(wheel) if given.gpu else ()
        found += [f"{path.name}: {finding}" for finding in here]
        print(row(wheel, len(here)), flush=True)
        for line in image_sizes(wheel) if given.gpu else ():
            print(line, flush=True)
    found += alike(read)
    print("".join(f"{finding}\n" for finding in found), end="", file=sys.stderr)
    return 1 if found else 0


def row(wheel: Wheel, findings: int) -> str:
    built = " ".join([*kernel_sets(wheel), *wheel.gpus]) or "-"
    return f"{len(wheel.path.read_bytes()):10,}  {wheel.path.name}  {built}  {findings or 'no'} findings"


# --- names, papers, sizes


def opened(path: Path) -> Wheel:
    """Reads a wheel. Refused where its name or its archive is damaged."""
    match = re.fullmatch(r"(\w+)-([\w.!+]+)-([\w.]+)-([\w.]+)-([\w.]+)\.whl", path.name)
    if match is None:
        raise Refused("a wheel's name is NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            files = {name: archive.read(name) for name in names}
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"not read: {error}") from None
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise Refused(f"entries of one name: {', '.join(doubles)}")
    if match[3] != "py3" or match[4] != "none":
        raise Refused(f"its name says {match[3]}-{match[4]}; expected py3-none, for every Python 3")
    return Wheel(path, match[1], match[2], tuple(match[5].split(".")), files)


def inside(wheel: Wheel) -> Iterator[str]:
    """All that can be seen without other tools than LIEF."""
    yield from papers(wheel)
    yield from record(wheel)
    most = MOST_OF_GPU if wheel.gpus else MOST.get(wheel.name, 0)
    size = wheel.path.stat().st_size
    if size > most:
        yield f"{size:,} bytes; a wheel of {wheel.name} has {most:,} at most"
    yield from places(wheel)
    if wheel.tags != ("any",):
        yield from contents(wheel)
    if wheel.name == stubs.PACKAGE:
        yield from programs(wheel)


def papers(wheel: Wheel) -> Iterator[str]:
    told = wheel.paper("WHEEL")
    tags = {f"py3-none-{tag}" for tag in wheel.tags}
    if set(told.get_all("Tag", [])) != tags:
        yield f"WHEEL has the tags {told.get_all('Tag', [])}; the name says {sorted(tags)}"
    if told.get("Root-Is-Purelib") != str(wheel.tags == ("any",)).lower():
        yield f"WHEEL says Root-Is-Purelib: {told.get('Root-Is-Purelib')}, for {wheel.tags}"
    metadata = wheel.paper("METADATA")
    name = str(metadata.get("Name")).replace("-", "_")
    if (name, metadata.get("Version")) != (wheel.name, wheel.version):
        yield f"METADATA is that of {metadata.get('Name')} {metadata.get('Version')}"
    model, _ = wheels.named(ROOT / wheels.MODELS)
    needed = any(need.startswith(model) for need in metadata.get_all("Requires-Dist", []))
    if needed != (wheel.name == "satchel"):
        yield f"METADATA {'requires' if needed else 'does not require'} {model}"


def record(wheel: Wheel) -> Iterator[str]:
    own = f"{wheel.folder}/RECORD"
    lines = wheel.files.get(own, b"").decode(errors="replace").splitlines()
    rows = dict(line.partition(",")[::2] for line in lines)
    if len(rows) != len(lines):
        yield "RECORD lists a file twice"
    for name in sorted(rows.keys() ^ wheel.files.keys()):
        yield f"{name}: {'in RECORD alone' if name in rows else 'not in RECORD'}"
    for name in sorted(rows.keys() & wheel.files.keys()):
        content = wheel.files[name]
        right = "," if name == own else f"sha256={wheels.digest(content)},{len(content)}"
        if rows[name] != right:
            yield f"{name}: RECORD says {rows[name]}; it is {right}"


def places(wheel: Wheel) -> Iterator[str]:
    """Entries that would be written elsewhere than in the package's folder."""
    for name in wheel.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            yield f"{name}: leads out of the folder"
        elif path.parts[0] not in (wheel.name, wheel.folder):
            yield f"{name}: expected below {wheel.name}/ or {wheel.folder}/"


# --- libraries


def library_names(wheel: Wheel) -> dict[str, str]:
    """The entries of libraries, by the backend's name or as "search"."""
    return {match[1]: name for name in wheel.files if (match := LIBRARY.fullmatch(name))}


def kernel_sets(wheel: Wheel) -> tuple[str, ...]:
    """The sets that the CPU's library says it has."""
    name = library_names(wheel).get("cpu")
    match = SETS.search(wheel.files[name]) if name else None
    return tuple(match[1].decode().split()) if match else ()


def contents(wheel: Wheel) -> Iterator[str]:
    """What belongs to the target of the wheel's tag, and what does not."""
    target, found = wheel.target, library_names(wheel)
    if target is None:
        yield f"no target of packaging/wheels.py has the tag {'.'.join(wheel.tags)}"
        return
    expected = {SEARCH, *target.backends, *(set(target.vendors) & set(found))}
    if set(found) != expected:
        yield f"libraries of {sorted(found)}; expected {sorted(expected)}"
    if kernel_sets(wheel) != target.sets:
        yield f"kernel sets {' '.join(kernel_sets(wheel)) or 'none'}; expected {' '.join(target.sets)}"
    for name in wheel.files:
        if PurePosixPath(name).suffix in FOREIGN:
            yield f"{name}: does not belong into a wheel"
    for backend, name in found.items():
        for match in ABSOLUTE.finditer(wheel.files[name]):
            yield f"{name}: has a path of the machine that built it: {match[1].decode()}"
        yield from (f"{name}: {finding}" for finding in library(backend, wheel.files[name], wheel.tags[0]))
        if backend in gpu_images.VENDORS:
            yield from (f"{name}: {finding}" for finding in images(backend, wheel.files[name]))


def images(vendor: str, content: bytes) -> Iterator[str]:
    """The GPU images in a library: whole, all of packaging/gpu_images.py, each for its architecture."""
    pack = runpy.run_path(str(PACK))
    at = content.find(pack["MAGIC"])
    if at < 0:
        yield "has no images"
        return
    try:
        found = {(name, arch): image for name, arch, image in pack["entries"](content[at:]) if image}
    except (struct.error, zlib.error, UnicodeDecodeError) as error:
        yield f"its images are damaged: {error}"
        return
    for name, arch in sorted(gpu_images.names(vendor) ^ found.keys()):
        yield f"{'an unknown' if (name, arch) in found else 'no'} image {name} for {arch}"
    for (name, arch), image in found.items():
        if vendor == "cuda" and (own := architecture(image)) != arch:
            yield f"the image {name} for {arch} is {own or 'neither machine code nor PTX'}"
        if vendor == "hip" and arch != "source":
            lost = [one for one in arch.split() if f"amdhsa--{one}".encode() not in image]
            yield from (f"the image {name} has no code object for {one}" for one in lost)


def architecture(image: bytes) -> str:
    """What an image of CUDA says that it is for, as lists of images name it, "" if it says nothing. PTX that
    is too new for the oldest driver has its version behind the name.
    """
    if image[:4] == b"\x7fELF" and len(image) >= 64:
        abi, machine, flags = image[8], *struct.unpack_from("<H28xI", image, 18)
        # From ABI version 8 on, which machine code for 10.0 and later has, the number is in the second byte.
        number, alone = (flags >> 8, flags & 0x8) if abi >= 8 else (flags, flags & 0x800)
        return f"sm_{number & 0xFF}{'a' if alone else ''}" if machine == CUDA_ELF else ""
    version = re.search(rb"^\.version (\d+)\.(\d+)", image, re.M)
    target = re.search(rb"^\.target sm_(\w+)", image, re.M)
    if not version or not target:
        return ""
    told = f"compute_{target[1].decode()}"
    new = (int(version[1]), int(version[2])) > PTX_MOST
    return f"{told} as PTX {version[1].decode()}.{version[2].decode()}" if new else told


def image_sizes(wheel: Wheel) -> Iterator[str]:
    """Number, bytes and bytes in the library of a wheel's images, by architecture."""
    pack = runpy.run_path(str(PACK))
    for vendor in wheel.gpus:
        content = wheel.files[library_names(wheel)[vendor]]
        at = content.find(pack["MAGIC"])
        count = pack["HEAD"].unpack_from(content, at)[1] if at >= 0 else 0
        entries = [
            pack["ENTRY"].unpack_from(content, at + pack["HEAD"].size + i * pack["ENTRY"].size)
            for i in range(count)
        ]
        rows = [
            {"arch": arch.rstrip(b"\0").decode(), "bytes": raw, "deflated": stored}
            for _, arch, _, _, _, stored, raw in entries
        ]
        yield from (f"            {vendor} {line}" for line in gpu_images.table(rows) if rows)


def lacking(wheel: Wheel) -> Iterator[str]:
    """The GPUs whose library a wheel lacks, though its system has a driver for them."""
    for vendor in wheel.target.vendors if wheel.target else ():
        if vendor not in wheel.gpus:
            yield f"no library of {vendor}: run packaging/wheels.py --gpu FOLDER"


def library(backend: str, content: bytes, tag: str) -> Iterator[str]:
    """A library against a platform's tag. Needs LIEF."""
    import lief

    binary = lief.parse(list(content)) if content else None
    if isinstance(binary, lief.ELF.Binary):
        kind, machine, rules = "linux", binary.header.machine_type, elf(binary, tag)
    elif isinstance(binary, lief.MachO.Binary):
        kind, machine, rules = "macosx", binary.header.cpu_type, macho(binary, tag)
    elif isinstance(binary, lief.PE.Binary):
        kind, machine, rules = "win", binary.header.machine, pe(binary)
    else:
        yield "neither ELF nor Mach-O nor PE"
        return
    if kind not in tag:
        yield f"a library of {kind}, in a wheel for {tag}"
        return
    if not tag.endswith(PROCESSORS.get(machine.name.lower(), ())):
        yield f"compiled for {machine.name}, in a wheel for {tag}"
    exported = {symbol.name.removeprefix("_") for symbol in binary.exported_functions}
    entry = ENTRIES.get(backend, ENTRY)
    if entry not in exported:
        yield f"does not export {entry}"
    yield from rules


def elf(binary, tag: str) -> Iterator[str]:  # type: ignore[no-untyped-def] # LIEF's types are not everywhere
    usual = MUSL if tag.startswith("musl") else GLIBC
    foreign = {name for name in binary.libraries if name not in usual and not name.startswith("ld-linux-")}
    if foreign:
        yield f"needs {', '.join(sorted(foreign))}, which not every Linux has"
    for name in ("RPATH", "RUNPATH"):
        if any(entry.tag.name == name for entry in binary.dynamic_entries):
            yield f"has an {name}"
    oldest = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    for needed in binary.symbols_version_requirement:
        for name in (version.name for version in needed.get_auxiliary_symbols()):
            number = tuple(int(part) for part in re.findall(r"\d+", name))
            if not oldest or not name.startswith("GLIBC_") or number > (int(oldest[1]), int(oldest[2])):
                yield f"needs {name} of {needed.name}, which {tag} does not promise"


def macho(binary, tag: str) -> Iterator[str]:  # type: ignore[no-untyped-def]
    match = re.match(r"macosx_(\d+)_(\d+)_", tag)
    promised = (int(match[1]), int(match[2])) if match else (0, 0)
    least = tuple(binary.build_version.minos[:2]) if binary.has_build_version else None
    if binary.has_version_min:  # the older command
        least = tuple(binary.version_min.version[:2])
    if least != promised:
        yield f"built for macOS {least}, and the tag says {promised}"
    foreign = {one.name for one in binary.libraries} - MACOS - {getattr(binary, "name", "")}
    own = {one.name for one in binary.commands if one.command.name == "ID_DYLIB"}
    if foreign - own:
        yield f"needs {', '.join(sorted(foreign - own))}, which not every Mac has"
    if tag.endswith("arm64") and not binary.has_code_signature:
        yield "not signed: a Mac with an Arm processor loads no such library"


def pe(binary) -> Iterator[str]:  # type: ignore[no-untyped-def]
    foreign = {one.name for one in binary.imports if not WINDOWS.fullmatch(one.name)}
    if foreign:
        yield f"needs {', '.join(sorted(foreign))}, which not every Windows has"


# --- programs of `satchel bundle`


def programs(wheel: Wheel) -> Iterator[str]:
    """The program of each target: none lacks, all are of one version, and each needs nothing beside it."""
    found = {name.split("/")[1]: name for name in wheel.files if f"/{stubs.PROGRAM}" in name}
    for target in sorted(set(found) ^ set(stubs.TARGETS)):
        yield f"{'an unknown' if target in found else 'no'} program for {target}"
    version = {content[at : at + len(stubs.MARK) + 8] for content, at in marked(wheel)}
    if len(version) > 1 or len(list(marked(wheel))) != len(found):
        yield "programs of several versions, or one that `satchel bundle` does not know"
    for target in sorted(set(found) & set(stubs.TARGETS)):
        content = wheel.files[found[target]]
        for match in ABSOLUTE.finditer(content):
            yield f"{found[target]}: has a path of the machine that built it: {match[1].decode()}"
        yield from (f"{found[target]}: {finding}" for finding in program(content, target))


def marked(wheel: Wheel) -> Iterator[tuple[bytes, int]]:
    """Each program that has the mark which its version follows, and where."""
    for name, content in wheel.files.items():
        if f"/{stubs.PROGRAM}" in name and (at := content.find(stubs.MARK)) >= 0:
            yield content, at


def program(content: bytes, target: str) -> Iterator[str]:
    """A program against its target's name. Needs LIEF."""
    import lief

    binary = lief.parse(list(content)) if content else None
    processor, _, system = target.partition("-")
    if isinstance(binary, lief.ELF.Binary):
        kind, machine = "linux", binary.header.machine_type
        foreign = set(binary.libraries) | ({binary.interpreter} if binary.has_interpreter else set())
    elif isinstance(binary, lief.MachO.Binary):
        kind, machine = "macos", binary.header.cpu_type
        foreign = {one.name for one in binary.libraries} - MACOS
        yield from macho(binary, TARGETS[stubs.TARGETS[target]].tag)
    elif isinstance(binary, lief.PE.Binary):
        kind, machine = "windows", binary.header.machine
        foreign = {one.name for one in binary.imports if not WINDOWS.fullmatch(one.name)}
        foreign = {name for name in foreign if name.lower() not in PROGRAMS}
    else:
        yield "neither ELF nor Mach-O nor PE"
        return
    if kind != system or machine.name.lower() not in PROCESSORS[processor]:
        yield f"a program of {kind} for {machine.name}"
    if foreign:
        yield f"needs {', '.join(sorted(foreign))}"


# --- other programs, other wheels


def tools(wheel: Wheel) -> Iterator[str]:
    """What twine and, of wheels for Linux, auditwheel find."""
    yield from said("twine", "check", "--strict", str(wheel.path))
    if wheel.tags[0].startswith(("manylinux", "musllinux")):
        # An empty search path: this machine's libraries are not the target's.
        command = [sys.executable, "-m", "auditwheel", "show", "--ldpaths", "/nowhere", str(wheel.path)]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        text = " ".join((shown.stderr + shown.stdout).split())
        # auditwheel expects Alpine's name of musl's library. The loader there takes musl's own name as well.
        musl = wheel.tags[0].startswith("musl") and text.endswith("will need to be eliminated: libc.so")
        if f'platform tag: "{wheel.tags[0]}"' not in text and not musl:
            yield f"auditwheel does not find it consistent with {wheel.tags[0]}: {text[-400:]}"


def said(module: str, *words: str) -> Iterator[str]:
    """What a program prints where it fails."""
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{module}: {' '.join((done.stdout + done.stderr).split())}"


def same(path: Path, folder: Path) -> Iterator[str]:
    """Whether another build's wheel of that name has the same bytes."""
    other = folder / path.name
    if not other.is_file():
        yield f"{folder} has no such wheel to compare with"
    elif (theirs := release.digest(other)) != (own := release.digest(path)):
        yield f"differs from the one in {folder}: SHA-256 {own} and {theirs}"


def alike(read: Iterable[Wheel]) -> Iterator[str]:
    """Files that differ between systems but are no library and no paper."""
    first: dict[tuple[str, str], Wheel] = {}
    for wheel in read:
        for name, content in wheel.files.items():
            if LIBRARY.fullmatch(name) or name.startswith(f"{wheel.folder}/"):
                continue
            before = first.setdefault((wheel.name, name), wheel)
            if before.files[name] != content:
                yield f"{wheel.path.name}: {name} differs from that of {before.path.name}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
