"""Compiles the GPU kernels to images that CMake puts into a library. Needs neither nvcc nor ROCm nor a GPU.

    python packaging/gpu_images.py FOLDER [cuda] [hip] [-j N] [--only ARCH,...]

FOLDER gets cuda.images and hip.images (cext/gpu/pack.py has the layout), and for each a list of what is in it
with sizes and compilers (cuda.json). CMake takes the folder by -DSATCHEL_CUDA_IMAGES=FOLDER and
-DSATCHEL_HIP_IMAGES=FOLDER, and refuses images of other sources.

CUDA: NVRTC from PyPI, in two versions. Machine code made by 12.9 runs with every driver from 525 on ("minor
version compatibility" of CUDA 12), but PTX runs only with drivers that know its version, so 12.0 makes that.
HIP: clang++ with lld. Equal sources and compilers give equal bytes.

What is compiled stays in FOLDER/parts, so a run that was broken off goes on where it was, and one after a
change compiles what includes a changed file. Machines can share the work: each makes --only some
architectures, and one takes all their parts into its FOLDER/parts. A machine without a registry takes NVRTC
where FOLDER/nvrtc-VERSION has it. An archive made by --only is for trying one card; packaging/check.py
refuses a wheel with it.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEXT = ROOT / "cext"
VENDORS = ("cuda", "hip")
# The newest NVRTC of CUDA 12, and its first. SHA-256 of the wheels: x86-64, aarch64 (there is none of 12.0).
NEWEST, FIRST = "12.9.86", "12.0.76"
HASHES = {
    NEWEST: (
        "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
        "096d4de6bda726415dfaf3198d4f5c522b8e70139c97feef5cd2ca6d4cd9cead",
    ),
    FIRST: ("8dd4458a7d8bf8fd2b01a34a9069856d53a9b4c0af2037b77c12b270daf9c828",),
}
DRIVER = 12000  # what cuDriverGetVersion gives from NVIDIA's driver 525 on
CUDA_ARCHITECTURES = ("75", "80", "86", "89", "90a", "100", "120")
PTX = ("portable", "75")  # the source and the architecture of the fallback
HIP_ARCHITECTURES = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201")
CLANGS = tuple(f"clang++-{n}" for n in (19, 20, 21, 22, 18))
SPECIFIC = 90  # sources from here on are for sm_90a alone
MANY = 1000  # above all architectures
SECONDS = 3600  # for one compilation


class ImageError(Exception):
    """Why an image cannot be made, and what to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """One image: a source compiled for one architecture."""

    name: str  # of the source
    least: int  # as pack.py takes it
    arch: str  # sm_80, compute_75, gfx942, source
    compiler: str  # and its version
    key: str  # over all that the image depends on: what the source includes, compiler, options
    command: tuple[str, ...]  # that writes it; "{out}" stands for the file

    def file(self, folder: Path) -> Path:
        return folder / "parts" / f"{self.name}.{self.arch}.{self.key}"


# --- sources


def digest(vendor: str) -> str:
    """64 bits, as hex digits, over the sources that a vendor's images are compiled from."""
    folders = {vendor, "kernels", "include", "quant"}
    files = [
        p for f in folders for p in (CEXT / f).rglob("*") if p.suffix in (".cu", ".cuh", ".h", ".hip", ".txt")
    ]
    files = [p for p in files if p.name != "CMakeLists.txt"] + [
        CEXT / "build_ffi.py",
        ROOT / "quant" / "grids.py",
    ]
    text = "".join(f"{p.relative_to(ROOT).as_posix()} {_sha(p.read_bytes())}\n" for p in sorted(files))
    return _sha(text.encode())[:16]


def read_by(source: Path, places: Sequence[Path]) -> list[Path]:
    """A source and what it includes, each file once, in the order of the preprocessor. places: the folders of
    -I. What none of them has is the compiler's own.
    """
    found, left = {source: None}, [source]
    while left:
        path = left.pop()
        included = re.findall(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', path.read_text(), re.M)
        files = (
            next((p / name for p in (path.parent, *places) if (p / name).is_file()), None)
            for name in included
        )
        new = [f for f in files if f is not None and f not in found]
        found.update(dict.fromkeys(new))
        left += reversed(new)
    return list(found)


def key_of(source: Path, places: Sequence[Path], *more: str) -> str:
    """64 bits, as hex digits, over a source with what it includes, its compiler's version and options."""
    read = (f"{p.name} {_sha(p.read_bytes())}" for p in read_by(source, places))
    return _sha(" ".join([*read, *more]).encode())[:16]


def check(folder: Path, vendor: str) -> None:
    """Raises ImageError unless the folder has images of the present sources."""
    found = folder / f"{vendor}.json"
    make = f"make them by `python packaging/gpu_images.py {folder} {vendor}`"
    if not found.is_file() or not found.with_suffix(".images").is_file():
        raise ImageError(f"{folder}: it has no {vendor}.images with its {vendor}.json: {make}")
    made_of, now = json.loads(found.read_text())["sources"], digest(vendor)
    if made_of != now:
        raise ImageError(f"{found}: the images are of the sources {made_of}, and these are {now}: {make}")


def cmake_options(folder: Path, vendors: Iterable[str] = VENDORS) -> list[str]:
    """CMake's definitions for libraries with the images of a folder, which serve every target."""
    for vendor in vendors:
        check(folder, vendor)
    return [f"SATCHEL_{vendor.upper()}_IMAGES={folder.resolve()}" for vendor in vendors]


def names(vendor: str) -> set[tuple[str, str]]:
    """(name, arch) of each image of a whole archive. Needs no compiler."""
    if vendor == "hip":
        return {("portable", " ".join(HIP_ARCHITECTURES)), ("portable", "source")}
    out = {(source.name, f"sm_{arch}") for source in cuda_sources() for arch in wanted(source)}
    return out | {(PTX[0], f"compute_{PTX[1]}")}


def compilers(folder: Path, vendor: str) -> list[tuple[str, str]]:
    """Name and version of what compiled the images of a folder."""
    told = {row["compiler"] for row in json.loads((folder / f"{vendor}.json").read_text())["images"]}
    found = [re.fullmatch(r"(.+?)(?: version)? (\d[\d.]*).*", one) for one in sorted(told)]
    return [(match[1], match[2]) for match in found if match]


def generate(folder: Path) -> Path:
    """The headers that the kernels include and CMake would make, in a folder of their own."""
    out = folder / "include"
    command = [CEXT / "build_ffi.py", CEXT / "include" / "hal.h", CEXT / "quant", folder / "_hal.py", out]
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    names = [
        p.name
        for p in sorted((CEXT / "kernels").glob("*.k.h"))
        if re.search(r"^KERNEL\(", p.read_text(), re.M)
    ]
    (out / "kernels.h").write_text("".join(f'#include "{name}"\n' for name in names))
    return out


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- CUDA


def nvrtc(version: str, folder: Path) -> Path:
    """Where NVRTC of a version lies in the folder once `install` has put it there."""
    return folder / f"nvrtc-{version}" / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"


def install(compiler: str, folder: Path) -> None:
    """Installs the NVRTC that a part names, from PyPI's wheel, unless the folder has it. ImageError if that
    fails.
    """
    version = compiler.removeprefix("NVRTC ")
    library = nvrtc(version, folder)
    if not library.is_file():
        wanted = folder / f"nvrtc-{version}.txt"
        hashes = " ".join(f"--hash=sha256:{h}" for h in HASHES[version])
        wanted.write_text(f"nvidia-cuda-nvrtc-cu12=={version} {hashes}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*pip, "--require-hashes", "--target", folder / f"nvrtc-{version}", "-r", wanted],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode or not library.is_file():
            said = (done.stderr.strip().splitlines() or ["pip installed no library"])[-1]
            raise ImageError(f"{compiler} (nvidia-cuda-nvrtc-cu12 of PyPI) cannot be had here: {said}")


@dataclass(frozen=True, slots=True)
class Source:
    """A line of sources.txt."""

    name: str
    least: int  # ten times the lowest compute capability that it is written for
    but: range  # those that are left out
    only: tuple[str, ...]  # architectures that it is for alone; (): for all that are left
    options: tuple[str, ...]


def cuda_sources() -> list[Source]:
    lines = (CEXT / "cuda" / "sources.txt").read_text().splitlines()
    out = []
    for name, which, *options in (line.split() for line in lines if line and not line.startswith("#")):
        only = tuple(which.split(",")) if "," in which else ()
        least, sign, other = re.split(r"([~<])", which) if re.search("[~<]", which) else (which, "", "0")
        but = range(int(other), int(other) + {"": 0, "~": 1, "<": MANY}[sign])
        out.append(Source(name, int(only[0] if only else least), but, only, tuple(options)))
    return out


def wanted(source: Source, architectures: Sequence[str] = CUDA_ARCHITECTURES) -> list[str]:
    """The architectures that a source is compiled for. Machine code runs on later ones of its major: that of
    8.0 on 8.6 and 8.9, of 10.0 on 10.3, of 12.0 on 12.1. So of each major the lowest is enough.
    """
    if source.only:
        return list(source.only)
    out: dict[int, str] = {}
    for arch in architectures:
        number = int(arch.rstrip("a"))
        fits = number >= source.least and number not in source.but
        if fits and (source.least < SPECIFIC or arch == f"{SPECIFIC}a"):
            out.setdefault(number // 10, arch)
    return list(out.values())


def cuda_parts(folder: Path) -> list[Part]:
    include, out = generate(folder / "generated"), list[Part]()
    places = [*(CEXT / f for f in ("cuda/include", "cuda", "kernels", "include", "quant")), include]
    for source in cuda_sources():
        name, targets = source.name, [(f"sm_{arch}", NEWEST) for arch in wanted(source)]
        targets += [(f"compute_{PTX[1]}", FIRST)] if name == PTX[0] else []
        for arch, version in targets:
            flags = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", *source.options]
            file = CEXT / "cuda" / f"{name}.cu"
            command = [sys.executable, __file__, "--compile", nvrtc(version, folder), file, "{out}", *flags]
            command += [f"-I{p}" for p in places]
            key = key_of(file, places, version, *flags)
            out.append(Part(name, source.least, arch, f"NVRTC {version}", key, tuple(map(str, command))))
    return out


def compile_cuda(library: str, source: str, out: str, *flags: str) -> None:
    """Runs NVRTC, in a process of its own: two versions share a library's name."""
    lib = ctypes.CDLL(library)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def text(what: str) -> bytes:
        done(lib[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        done(lib[f"nvrtcGet{what}"](program, data))
        return data.raw

    def done(code: int) -> None:
        if code:
            lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise SystemExit(f"NVRTC: {lib.nvrtcGetErrorString(code).decode()}")

    name = Path(source).name.encode()
    done(lib.nvrtcCreateProgram(ctypes.byref(program), Path(source).read_bytes(), name, 0, None, None))
    given = (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
    if lib.nvrtcCompileProgram(program, len(flags), given):
        raise SystemExit(text("ProgramLog").decode(errors="replace").strip(" \n\0"))
    machine = any(f.startswith("--gpu-architecture=sm_") for f in flags)
    data = text("CUBIN" if machine else "PTX")
    kept = Path(out).with_suffix(".new")
    kept.write_bytes(data)
    kept.replace(out)


# --- HIP


def clang() -> str:
    """A clang++ that makes code for AMD's GPUs."""
    for name in ("amdclang++", *CLANGS):
        if found := shutil.which(name):
            return found
    raise ImageError("HIP: there is no clang++ of 18 or newer: apt-get install clang-19 lld-19")


def hip_parts(folder: Path) -> list[Part]:
    include, compiler = generate(folder / "generated"), clang()
    version = subprocess.run(
        [compiler, "--version"], check=True, capture_output=True, text=True
    ).stdout.splitlines()[0]
    flags = [
        "-x",
        "hip",
        "-std=c++17",
        "-O3",
        "-ffp-contract=off",
        "-Wall",
        "-Werror",
        "-Wno-unused-function",
    ]
    flags += ["--offload-device-only", "-nogpuinc", "-nogpulib", "-ffreestanding", "-nostdlibinc"]
    places = [CEXT / "hip" / "include", *(CEXT / f for f in ("hip", "kernels", "include", "quant")), include]
    source = CEXT / "hip" / "portable.hip"
    key = key_of(source, places, version, *flags)

    def part(arch: str, *more: str) -> Part:
        ends = ["-o", "{out}", str(source)]
        command = [compiler, *flags, *(f"-I{p}" for p in places), *more, *ends]
        return Part("portable", 0, arch, version, key, tuple(command))

    objects = [
        part(a, f"--offload-arch={a}", "--no-gpu-bundle-output", f"-DIMAGE=image_{a}")
        for a in HIP_ARCHITECTURES
    ]
    text = part("source", "-DPORT_AS_TEXT", f"--offload-arch={HIP_ARCHITECTURES[0]}", "-E", "-P")
    return [*objects, text]


# --- all of them

PARTS: dict[str, Callable[[Path], list[Part]]] = {"cuda": cuda_parts, "hip": hip_parts}


def compiled(part: Part, folder: Path) -> tuple[bytes, float]:
    """The image, and the seconds that it took; 0 where an earlier run has made it."""
    out, start = part.file(folder), time.monotonic()
    if out.is_file():
        return out.read_bytes(), 0.0
    command = [word.replace("{out}", str(out)) for word in part.command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        out.unlink(missing_ok=True)
        said = (done.stderr or done.stdout).strip()[:4000]
        raise ImageError(f"{part.name} for {part.arch}: {part.compiler} gives no image:\n{said}")
    for old in set(out.parent.glob(f"{part.name}.{part.arch}.*")) - {out}:
        old.unlink()
    return out.read_bytes(), time.monotonic() - start


def images_of(vendor: str, parts: list[Part], data: list[bytes]) -> list[tuple[str, int, str, bytes]]:
    """What goes into the archive: each of CUDA's images, from which the host takes one; AMD's code objects as
    one bundle, from which its driver does, and the text for its run-time compiler.
    """
    if vendor == "cuda":
        return [(p.name, p.least, p.arch, image) for p, image in zip(parts, data, strict=True)]
    rows, objects = [], []
    for part, image in zip(parts, data, strict=True):
        if part.arch == "source":
            rows.append((part.name, 0, part.arch, image + b"\0"))
        else:
            objects.append((f"hipv4-amdgcn-amd-amdhsa--{part.arch}", image))
    if objects:
        bundle = runpy.run_path(str(CEXT / "hip" / "bundle.py"))["bundle"](objects)
        names = " ".join(part.arch for part in parts if part.arch != "source")
        rows.insert(0, ("portable", 0, names, bundle))
    return rows


def chosen(parts: list[Part], only: Sequence[str]) -> list[Part]:
    """The parts of these architectures. ImageError for one that no part has."""
    known = sorted({part.arch for part in parts})
    if wrong := sorted(set(only) - set(known)):
        raise ImageError(f"--only {','.join(wrong)}: expected some of {', '.join(known)}")
    return [part for part in parts if not only or part.arch in only]


def make(vendor: str, folder: Path, jobs: int, say: Callable[[str], None], only: Sequence[str] = ()) -> None:
    """Writes the vendor's archive and its list. only: the architectures, as Part has them; default: all.
    ImageError for what cannot be compiled, after everything else was.
    """
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    parts, driver = chosen(PARTS[vendor](folder), only), DRIVER if vendor == "cuda" else 0
    if vendor == "cuda":
        for compiler in sorted({part.compiler for part in parts if not part.file(folder).is_file()}):
            install(compiler, folder)
    failed: list[str] = []

    def one(part: Part) -> bytes:
        try:
            data, seconds = compiled(part, folder)
        except ImageError as error:
            failed.append(str(error))
            say(f"{part.name:17} {part.arch:11} failed")
            return b""
        say(f"{part.name:17} {part.arch:11} {len(data):10,} bytes {seconds:7.1f} s")
        return data

    with ThreadPoolExecutor(jobs) as pool:
        data = list(pool.map(one, parts))
        if failed:
            raise ImageError("\n".join(failed))
        pack = runpy.run_path(str(CEXT / "gpu" / "pack.py"))
        small = dict(zip(data, pool.map(pack["deflated"], data), strict=True))  # by image
    images = images_of(vendor, parts, data)
    archive = pack["pack"](driver, images, lambda image: small.get(image) or pack["deflated"](image))
    rows = [
        {
            "name": p.name,
            "arch": p.arch,
            "compiler": p.compiler,
            "bytes": len(d),
            "deflated": len(small[d]),
        }
        for p, d in zip(parts, data, strict=True)
    ]
    listed = {"sources": digest(vendor), "sha256": _sha(archive), "bytes": len(archive), "images": rows}
    (folder / f"{vendor}.images").write_bytes(archive)
    (folder / f"{vendor}.json").write_text(json.dumps(listed, indent=2) + "\n")
    for line in table(rows):
        say(line)
    say(f"{folder / vendor}.images: {len(archive):,} bytes")


def table(rows: Sequence[dict[str, object]]) -> list[str]:
    """The sizes by architecture."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        of = sums.setdefault(str(row["arch"]), [0, 0, 0])
        for i, n in enumerate((1, row["bytes"], row["deflated"])):
            of[i] += int(str(n))
    sums["all"] = [sum(column) for column in zip(*sums.values(), strict=True)]
    return [
        f"{arch:11} {n:3} images {raw / 1e6:6.2f} MB, {small / 1e6:5.2f} deflated"
        for arch, (n, raw, small) in sums.items()
    ]


def main(words: Sequence[str]) -> None:
    if words[:1] == ["--compile"]:
        compile_cuda(*words[1:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("vendors", nargs="*", metavar="cuda|hip", help="default: both")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time")
    parser.add_argument(
        "--check", action="store_true", help="only say whether the folder has images of these sources"
    )
    parser.add_argument("--only", default="", metavar="ARCH,...", help="such as sm_90a,compute_75")
    given = parser.parse_args(words)
    only = [arch for arch in given.only.split(",") if arch]
    if wrong := set(given.vendors) - set(VENDORS):
        parser.error(f"{', '.join(sorted(wrong))}: expected cuda or hip")
    try:
        for vendor in given.vendors or VENDORS:
            if given.check:
                check(given.folder, vendor)
            else:
                make(vendor, given.folder, given.jobs, lambda line: print(line, flush=True), only)
    except ImageError as error:
        raise SystemExit(f"gpu_images.py: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
