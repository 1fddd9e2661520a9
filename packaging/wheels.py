"""Builds wheels for several systems on one Linux machine: `python packaging/wheels.py [TARGET ...]`, by
default all of them and the bundled model's. `packaging/check.py` inspects what it makes.

zig (PyPI: ziglang) compiles and links the C libraries for each target, against the C library and the system
version that the wheel's tag promises. CMake's own rules say which libraries there are, scikit-build-core
which Python files; those are the same in every wheel. The bundled model is a wheel of its own,
satchel-model-40m, which the others require: it is most of the bytes, and the same everywhere.

GPUs: macOS gets Metal, whose kernels are compiled on the Mac. With --gpu FOLDER, the wheels of systems that
have a driver for it get the CUDA and HIP libraries, with the images that packaging/gpu_images.py left there.

A wheel's bytes follow from the committed files, the compiler and zlib: it is built from a copy of what git
tracks, entries are sorted and have one time (SOURCE_DATE_EPOCH, or else 1980), and paths of this machine are
mapped away.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import gmtime

import gpu_images

ROOT = Path(__file__).resolve().parents[1]
MODELS = "models"  # the folder of the model's own package
X86 = ("scalar", "avx2", "avxvnni", "avx512", "avx512bf16")
ARM = ("neon", "dotprod", "i8mm")
ZIP_BEGINS = 315532800  # 1980, in seconds since 1970
# The GPU backends need compilers of their vendors; their kernels come prebuilt or not at all.
OPTIONS = ("SATCHEL_STRICT=ON", "SATCHEL_CUDA=OFF", "SATCHEL_HIP=OFF", "SATCHEL_SYCL=OFF")
NO_IMAGES = (
    "SATCHEL_CUDA_IMAGES=",
    "SATCHEL_HIP_IMAGES=",
)  # a build folder that is used again has the last ones

Files = dict[str, bytes]  # by path in the wheel


@dataclass(frozen=True)
class Target:
    """A system that wheels are built for."""

    zig: str  # its name for zig, with the oldest version of the C library or of the system
    tag: str  # the platform of the wheel's tag
    system: str  # CMake's name of the system
    processor: str
    sets: tuple[str, ...]  # kernel sets of the CPU library, each of which is built, or the build fails
    vendors: tuple[str, ...] = ()  # of GPUs whose driver the system has; their images are wanted by --gpu

    @property
    def backends(self) -> tuple[str, ...]:
        """The libraries of each wheel; those of `vendors` come on top."""
        return ("cpu", "metal", "null") if self.system == "Darwin" else ("cpu", "null")


@dataclass(frozen=True)
class Build:
    """How wheels are built. tree: the copied sources. gpu: the folder of images, or None."""

    tree: Path
    jobs: int = 1
    gpu: Path | None = None
    bill: bool = False  # with a bill of materials (sbom.py)

    def vendors(self, target: Target) -> tuple[str, ...]:
        """The vendors whose images go into the target's wheel."""
        return target.vendors if self.gpu else ()


def linux(zig: str, tag: str, processor: str, sets: tuple[str, ...], vendors: tuple[str, ...] = ()) -> Target:
    return Target(f"{processor}-linux-{zig}", tag, "Linux", processor, sets, vendors)


GLIBC = "manylinux_2_17_{0}.manylinux2014_{0}"
LINUX_X86 = (*X86, "amx")
TARGETS = {
    "manylinux-x86_64": linux("gnu.2.17", GLIBC.format("x86_64"), "x86_64", LINUX_X86, ("cuda", "hip")),
    "manylinux-aarch64": linux("gnu.2.17", GLIBC.format("aarch64"), "aarch64", ARM),
    # NVIDIA's and AMD's drivers are linked with glibc.
    "musllinux-x86_64": linux("musl", "musllinux_1_2_x86_64", "x86_64", LINUX_X86),
    "musllinux-aarch64": linux("musl", "musllinux_1_2_aarch64", "aarch64", ARM),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64", "Darwin", "arm64", ARM),
    "macos-x86_64": Target("x86_64-macos.10.15", "macosx_10_15_x86_64", "Darwin", "x86_64", X86),
    "windows-x86_64": Target("x86_64-windows-gnu", "win_amd64", "Windows", "AMD64", X86, ("cuda",)),
    "windows-arm64": Target("aarch64-windows-gnu", "win_arm64", "Windows", "arm64", ARM),
}


def main(words: list[str]) -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("-o", "--output", type=Path, default=ROOT / "dist", help="folder of the wheels")
    add("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="files compiled at a time")
    add("--work", type=Path, metavar="FOLDER", help="keep what is compiled, for the next build")
    add("--tests", type=Path, metavar="FOLDER", help="C test programs, as TARGET/NAME in it")
    add("--gpu", type=Path, metavar="FOLDER", help="images of gpu_images.py, for systems with such drivers")
    add("--sbom", action="store_true", help="bills of materials in the wheels; takes the extra release")
    add("targets", nargs="*", metavar="TARGET", help=f"model, {', '.join(TARGETS)}")
    given = parser.parse_args(words)
    for name in given.targets:
        if name != "model" and name not in TARGETS:
            parser.error(f"{name}: expected model or one of {', '.join(TARGETS)}")
    if given.gpu:
        wanted = {v for name in given.targets or TARGETS if name != "model" for v in TARGETS[name].vendors}
        try:
            for vendor in sorted(wanted):
                gpu_images.check(given.gpu, vendor)
        except gpu_images.ImageError as error:
            parser.error(str(error))
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = (given.work or Path(scratch)).resolve()
        build = Build(copied(work / "source"), given.jobs, given.gpu, given.sbom)
        for name in given.targets or ["model", *TARGETS]:
            shutil.rmtree(work / name / "python", ignore_errors=True)
            shutil.rmtree(work / name / "stage", ignore_errors=True)
            if name == "model":
                made = model_wheel(build, work / name, given.output)
            else:
                made = wheel(TARGETS[name], build, work / name, given.output)
            print(f"{made.stat().st_size / 1e6:6.2f} MB  {made.name}", flush=True)
            if given.tests and name != "model":
                test_program(TARGETS[name], build, work / name, given.tests / name)
    return 0


def wheel(target: Target, build: Build, work: Path, output: Path) -> Path:
    """Builds a target's libraries and the wheel around them. work: the target's folder."""
    tree = build.tree
    files, papers = python_part(tree, work / "python", "{'wheel.cmake': 'false'}")
    files = {name: content for name, content in files.items() if not name.startswith(f"satchel/{MODELS}/")}
    files.update(libraries(target, build, work))
    name, version = named(tree / MODELS)
    papers["METADATA"] = requiring(papers["METADATA"], f"{name}=={version.partition('.')[0]}.*")
    if build.bill:
        import sbom  # takes a library of the extra release

        papers |= sbom.of_program([sbom.Tool(*tool) for tool in compilers(target, build)], epoch())
    return write(output, *named(tree), target.tag, files, papers)


def compilers(target: Target, build: Build) -> list[tuple[str, str]]:
    """Name and version of each compiler of a target's libraries."""
    found = [("zig", metadata.version("ziglang"))]
    for vendor in build.vendors(target):
        assert build.gpu is not None
        found += gpu_images.compilers(build.gpu, vendor)
    return found


def model_wheel(build: Build, work: Path, output: Path) -> Path:
    """The wheel of the bundled model and its papers. Its version names its bytes, whenever it is built."""
    files, papers = python_part(build.tree / MODELS, work / "python", "{}")
    name, version = named(build.tree / MODELS)
    if build.bill:
        import sbom

        papers |= sbom.of_model(version, ZIP_BEGINS)
    return write(output, name, version, "any", files, papers, ZIP_BEGINS)


def write(
    output: Path, name: str, version: str, platform: str, files: Files, papers: Files, when: int | None = None
) -> Path:
    """Writes the wheel of these files and papers (the dist-info), with WHEEL and RECORD. platform: tags with
    dots between, any for one without libraries.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    folder = f"{stem}.dist-info"
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in platform.split("."))
    pure = str(platform == "any").lower()
    how = f"Wheel-Version: 1.0\nGenerator: satchel packaging/wheels.py\nRoot-Is-Purelib: {pure}\n{tags}"
    entries = {**files, **{f"{folder}/{file}": content for file, content in papers.items()}}
    entries[f"{folder}/WHEEL"] = how.encode()
    rows = [f"{file},sha256={digest(entries[file])},{len(entries[file])}\n" for file in sorted(entries)]
    entries[f"{folder}/RECORD"] = f"{''.join(rows)}{folder}/RECORD,,\n".encode()
    path = output / f"{stem}-py3-none-{platform}.whl"
    part = path.with_suffix(".part")
    time = gmtime(epoch() if when is None else when)[:6]
    with zipfile.ZipFile(part, "w") as archive:
        # The papers stand last, as PEP 427 recommends.
        for file in sorted(entries, key=lambda file: (file.startswith(f"{folder}/"), file)):
            entry = zipfile.ZipInfo(file, time)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # as on Unix: rw-r--r--
            archive.writestr(entry, entries[file], zipfile.ZIP_DEFLATED, 9)
    part.replace(path)
    return path


def digest(content: bytes) -> str:
    """A file's digest as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def epoch() -> int:
    """The time of entries. Zip files know none before 1980."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), ZIP_BEGINS)


def named(project: Path) -> tuple[str, str]:
    """Name and version."""
    with (project / "pyproject.toml").open("rb") as file:
        table = tomllib.load(file)["project"]
    return table["name"], table["version"]


def requiring(paper: bytes, requirement: str) -> bytes:
    """METADATA with one more requirement."""
    head, blank, text = paper.partition(b"\n\n")
    return head + f"\nRequires-Dist: {requirement}".encode() + blank + text


# --- what is in a wheel


def copied(folder: Path) -> Path:
    """Copies what git tracks, so that a wheel has nothing else. Times are kept, so that objects of files that
    have not changed are used again.
    """
    shutil.rmtree(folder, ignore_errors=True)
    done = run(["git", "ls-files", "-z"], ROOT)
    for name in filter(None, done.split("\0")):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place, follow_symlinks=False)
    return folder


def python_part(project: Path, work: Path, settings: str) -> tuple[Files, Files]:
    """The files and papers of the wheel that scikit-build-core makes, without WHEEL and RECORD."""
    code = f"import sys; from scikit_build_core import build; build.build_wheel(sys.argv[1], {settings})"
    run([sys.executable, "-c", code, str(work)], project)
    files, papers = Files(), Files()
    (made,) = work.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        for name in archive.namelist():
            folder, _, rest = name.partition("/")
            if not folder.endswith(".dist-info"):
                files[name] = archive.read(name)
            elif rest not in ("WHEEL", "RECORD"):
                papers[rest] = archive.read(name)
    return files, papers


def libraries(target: Target, build: Build, work: Path) -> Iterator[tuple[str, bytes]]:
    """What CMake installs for a target: libraries, headers, and the Python files that it makes."""
    folder, stage = work / "build", work / "stage"
    configure(target, build, folder, f"CMAKE_INSTALL_PREFIX={stage}")
    run(["cmake", "--build", str(folder), "--parallel", str(build.jobs)], build.tree)
    run(["cmake", "--install", str(folder)], build.tree)
    for path in sorted(stage.rglob("*")):
        if path.is_file() and path.suffix not in (".pdb", ".lib"):
            yield path.relative_to(stage).as_posix(), path.read_bytes()


def test_program(target: Target, build: Build, work: Path, output: Path) -> None:
    """Builds the C test program of the CPU kernels in the target's build folder, which has the kernels."""
    folder, name = work / "build", "satchel_cext_test"
    # Arm's runs where no musl is installed. On x86 the installed musl's own functions are tested.
    linked = {"aarch64-linux-musl": "-static", "x86_64-linux-musl": "-dynamic"}.get(target.zig, "")
    configure(target, build, folder, "SATCHEL_TESTS=ON", f"CMAKE_EXE_LINKER_FLAGS={linked}")
    run(["cmake", "--build", str(folder), "--target", name, "--parallel", str(build.jobs)], build.tree)
    output.mkdir(parents=True, exist_ok=True)
    for suffix in ("", ".exe"):
        if (made := folder / "cext" / "tests" / f"{name}{suffix}").is_file():
            shutil.copy(made, output)


def configure(target: Target, build: Build, folder: Path, *more: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = gpu_images.cmake_options(build.gpu, build.vendors(target)) if build.gpu else []
    defined = (
        "CMAKE_BUILD_TYPE=Release",
        f"CMAKE_TOOLCHAIN_FILE={toolchain(target, build.tree, folder)}",
        f"Python_EXECUTABLE={sys.executable}",
        f"SATCHEL_SETS={','.join(target.sets)}",
        "SATCHEL_CCACHE=",  # zig keeps objects itself
        *OPTIONS,
        *NO_IMAGES,
        *images,
        *more,
    )
    words = [f"-D{one}" for one in defined]
    run(["cmake", "-S", str(build.tree), "-B", str(folder), "-G", "Ninja", *words], build.tree)


def toolchain(target: Target, tree: Path, folder: Path) -> Path:
    """Writes a CMake toolchain for a target into the folder, and the programs that it names."""
    import ziglang

    zig = Path(ziglang.__file__).with_name("zig")
    # Paths of this machine are not to be in a library; debug information and the sanitizer of undefined
    # behaviour are zig's default.
    plain = f'"-ffile-prefix-map={tree}=." "-ffile-prefix-map={folder}=." -fno-sanitize=undefined -g0'
    for name, words in (("cc", f"cc -target {target.zig} {plain}"), ("ar", "ar"), ("ranlib", "ranlib")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{zig}" {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    lines = {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_C_COMPILER": folder / "cc",
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
        "CMAKE_SKIP_RPATH": "ON",
        "CMAKE_INSTALL_NAME_TOOL": "true",  # asked for, and without an rpath never used
        "CMAKE_MODULE_LINKER_FLAGS_INIT": "-s",  # no symbols beyond those of the interface
        "CMAKE_USER_MAKE_RULES_OVERRIDE": folder / "rules.cmake",
    }
    # A module is a bundle on macOS, which zig does not link; a dynamic library loads as well.
    rules = "set(CMAKE_SHARED_MODULE_CREATE_C_FLAGS -dynamiclib)\n" if target.system == "Darwin" else ""
    (folder / "rules.cmake").write_text(rules, encoding="utf-8")
    path = folder / "toolchain.cmake"
    path.write_text("".join(f'set({name} "{value}")\n' for name, value in lines.items()), encoding="utf-8")
    return path


def run(command: list[str], folder: Path) -> str:
    """What a program prints, run in the folder; where it fails, this program ends with it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        failed = f"wheels: this failed ({done.returncode}): {' '.join(command)}"
        raise SystemExit("\n".join([*said[-60:], failed]))
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
