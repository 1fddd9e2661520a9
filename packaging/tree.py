"""A program's files without an installer: the virtual environment that images and the Debian package hold.

It lies in /opt/satchel/venv and borrows the system's Python: `bin/python3` is a link to /usr/bin/python3, and
nothing in it knows the folder where it was made. Packages come from wheels alone, by the exact versions and
hashes of requirements.lock; no compiler takes part. uv installs them, because it resolves for another Python
than the one that runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "packaging" / "requirements.lock"
VENV = Path("opt/satchel/venv")  # below the root that it is made for
# Requirements that a server does without, and all that only they need: numba computes where no library was
# built; tokenizers asks huggingface-hub for files that satchel's own store pulls.
WITHOUT = ("numba", "huggingface-hub")
EXTRAS = ("server",)
# The processor's libraries are in every tree; of a GPU's there is one where it is asked for.
GPU_LIBRARIES = ("libsatchel_cuda*", "libsatchel_hip*", "libsatchel_sycl*")
TOOLKIT = re.compile(r"lib(cudart|cublas|nvrtc|nvJitLink|cudnn|nvptxcompiler)\S*\.so[\d.]*")
USELESS = ("tests", "test", "__pycache__", "*.pyi", "*.pxd", "*.a", "numpy/_core/_simd.*", "numpy/f2py")

# `-P`: nothing runs because it lies in the current folder.
SCRIPT = """\
#!{python} -P
import sys

from satchel.cli.main import main

sys.exit(main())
"""


class TreeError(Exception):
    """A tree cannot be made; the text says what is missing and what to do."""


def python_of(root: Path) -> str:
    """The version of Python, such as 3.13, in a Debian root."""
    found = sorted((root / "usr" / "lib").glob("python3.*/os.py"))
    if len(found) != 1:
        raise TreeError(f"{root}: expected one Python 3 in usr/lib, found {[str(p.parent) for p in found]}")
    return found[0].parent.name.removeprefix("python")


def needed(
    site: Path, python: str, extras: Iterable[str] = EXTRAS, without: Iterable[str] = WITHOUT
) -> set[str]:
    """The packages that satchel with these extras needs, and what they need in turn."""
    from packaging.markers import default_environment
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    there = {canonicalize_name(found.name): found for found in distributions(path=[str(site)])}
    machine = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    waiting, seen = [("satchel", frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while waiting:
        name, wanted = one = waiting.pop()
        if one in seen or name in without or name not in there:
            continue
        seen.add(one)
        for text in there[name].requires or ():
            need = Requirement(text)
            here = need.marker is None or any(
                need.marker.evaluate({**machine, "extra": extra}) for extra in wanted or {""}
            )
            if here:
                waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    return {name for name, _ in seen}


def remove_others(site: Path, kept: Iterable[str]) -> list[str]:
    """Removes all packages but these, and returns the names of those that went."""
    from packaging.utils import canonicalize_name

    gone, kept = [], set(kept)
    for found in sorted(distributions(path=[str(site)]), key=lambda one: one.name):
        if canonicalize_name(found.name) in kept:
            continue
        gone.append(found.name)
        for file in found.files or ():
            Path(str(found.locate_file(file))).unlink(missing_ok=True)
    for folder in sorted((p for p in site.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return gone


def environment(
    root: Path,
    wheels: Sequence[Path],
    python: str,
    gpu: str = "",
    packages: str | None = None,
    machine: str = "x86_64",
) -> Path:
    """Makes the environment below a root, and returns its site-packages.

    wheels: satchel's own, and its model's. python: the version of the root's Python. gpu: the backend whose
    library stays, such as cuda. packages: lock file text of what they need; "" for none, None for
    requirements.lock.
    """
    if not any(wheel.name.startswith("satchel-") for wheel in wheels):
        raise TreeError(
            f"expected a wheel of satchel, got {[w.name for w in wheels]}: build it with `pip wheel .`"
        )
    venv = root / VENV
    site = venv / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    target = ["--target", str(site), "--python-version", python]
    target += ["--python-platform", f"{machine}-manylinux_2_36", "--no-deps", "--only-binary", ":all:"]
    text = LOCK.read_text(encoding="utf-8") if packages is None else packages
    if text.strip():
        uv([*target, "--require-hashes", "-r", "-"], text)
    # A wheel that was built here is tagged for this machine, not for all: it is unpacked whatever its tag.
    for wheel in wheels:
        unpack_wheel(wheel, site)
    remove_others(site, needed(site, python) | {"satchel", "satchel-model-40m"})
    scripts(venv)
    (venv / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n", encoding="utf-8"
    )
    shutil.rmtree(site / "bin", ignore_errors=True)
    prune(site)
    choose_gpu(site / "satchel" / "cext", gpu)
    return site


def uv(words: list[str], text: str) -> None:
    program = shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if program is None:
        raise TreeError("expected uv on PATH, found none: pip install 'satchel[release]'")
    # Copies: links would share files, and their modes, with uv's cache.
    command = [program, "pip", "install", "--quiet", "--link-mode", "copy", *words]
    done = subprocess.run(command, input=text, text=True, check=False, stderr=subprocess.PIPE)
    if done.returncode:
        raise TreeError(f"uv pip install failed ({done.returncode}): {done.stderr.strip()}")


def unpack_wheel(wheel: Path, site: Path) -> None:
    """A pure wheel's files are those of site-packages; one with a .data folder is refused."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        if data := [name for name in archive.namelist() if ".data/" in name]:
            raise TreeError(f"{wheel.name}: expected no .data folder, found {data[0]}")
        archive.extractall(site)


def scripts(venv: Path) -> None:
    """bin/satchel, and the links that make a virtual environment."""
    bin_ = venv / "bin"
    bin_.mkdir()
    (bin_ / "python3").symlink_to("/usr/bin/python3")
    (bin_ / "python").symlink_to("python3")
    script = bin_ / "satchel"
    script.write_text(
        SCRIPT.format(python=f"/{VENV.as_posix()}/bin/python3"),
        encoding="utf-8",
    )
    script.chmod(0o755)


def prune(site: Path) -> None:
    """Removes what no program needs: tests, stubs, compiled caches. Licences stay."""
    for pattern in USELESS:
        for path in sorted(site.rglob(pattern), reverse=True):
            if path.is_dir() and "satchel" not in path.relative_to(site).parts[:1]:
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()


def choose_gpu(folder: Path, gpu: str) -> None:
    """Keeps one GPU's library, or none. No part of a toolkit may be in a tree: users have the driver, which
    brings all that the library opens.
    """
    kept = f"libsatchel_{gpu}"
    for pattern in GPU_LIBRARIES:
        for path in folder.glob(pattern):
            if not gpu or not path.name.startswith(kept):
                path.unlink()
    if gpu and not list(folder.glob(f"{kept}*")):
        raise TreeError(
            f"{folder}: expected {kept}.so in the wheel, found none: build a wheel with that backend"
        )
    site = folder.parents[1]
    if found := [p.name for p in files(site) if TOOLKIT.fullmatch(p.name)]:
        raise TreeError(f"{site}: expected no CUDA toolkit, found {', '.join(found)}")


def files(folder: Path) -> Iterator[Path]:
    """All files and links below a folder, in a fixed order."""
    for base, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(base, name) for name in sorted(names))


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in files(folder) if not path.is_symlink())
