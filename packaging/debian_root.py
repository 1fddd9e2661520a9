"""A minimal Debian root with Python, on which the server's image stands.

mmdebstrap unpacks the packages and configures none, so that it has no shell, no apt and no perl; then goes
what Python does not need. Control files of the packages stay in var/lib/dpkg/status.d, where scanners of such
images look, and their copyright files in usr/share/doc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tree

USER = 10001  # a number, so that a runtime sees that it is not root
PACKAGES = ("base-files", "python3", "libstdc++6", "ca-certificates")
SUITE = "stable"
# What no server needs of Debian's packages. The copyright files stay, as their licences ask for.
NOT_NEEDED = """
    usr/share/man usr/share/locale usr/share/info usr/share/lintian usr/share/perl5 usr/share/debconf
    usr/share/python3 usr/share/dict usr/share/bug usr/share/base-files usr/share/applications
    usr/share/pixmaps usr/share/bash-completion usr/share/binfmts usr/share/doc-base usr/lib/*/gconv
    usr/lib/*/perl* usr/lib/dpkg usr/lib/python3.*/idlelib usr/lib/python3.*/pydoc_data
    usr/lib/python3.*/lib2to3 usr/lib/python3.*/test usr/lib/python3.*/ensurepip usr/sbin/* var/cache
    var/lib/apt var/lib/dpkg/[a-rt-z]* var/log var/backups etc/apt etc/cron* etc/dpkg etc/logrotate.d
    etc/ca-certificates etc/kernel etc/hostname etc/resolv.conf boot media mnt srv home
    usr/lib/*/libdb-* usr/lib/python3.*/lib-dynload/_dbm* usr/lib/*/engines-* usr/lib/python3.*/unittest
    usr/share/gcc usr/share/gdb usr/share/polkit-1 usr/lib/python3.*/turtle*
    usr/lib/*/libsqlite3.so* usr/lib/python3.*/sqlite3 usr/lib/python3.*/lib-dynload/_sqlite3*
"""
PROGRAMS = r"python3(\.\d+)?"  # the programs of usr/bin that stay
# Compiles what a server imports, and no other module: the rest would be 40 MB. Unchecked hashes: the time of
# a file has no say. A module that lacks something here, such as numba, is left as it is.
COMPILE = """
import contextlib, importlib, pkgutil, py_compile, sys
def imported(name):
    with contextlib.suppress(ImportError):
        module = importlib.import_module(name)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            imported(name + "." + found.name)
for name in sys.argv[1:]:
    imported(name)
how = py_compile.PycInvalidationMode.UNCHECKED_HASH
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
for file in sorted(file for file in files if file.endswith(".py")):
    py_compile.compile(file, doraise=True, invalidation_mode=how)
print(len(files))
"""
COMPILED = ("encodings", "satchel.errors", "satchel.quant.formats", "satchel.formats", "satchel.runtime")
COMPILED += ("satchel.store", "satchel.server", "satchel.cli.serving", "satchel.cli.commands.serve")


def make(folder: Path, suite: str = SUITE, mirror: str = "") -> None:
    """A root with Python and what it needs."""
    if shutil.which("mmdebstrap") is None:
        raise tree.TreeError("expected mmdebstrap on PATH, found none: apt-get install mmdebstrap")
    # The hook keeps each package's control file where scanners of distroless images look for it.
    keep = (
        'mkdir -p "$1/var/lib/dpkg/status.d"; for deb in "$1"/var/cache/apt/archives/*.deb; do '
        'dpkg-deb -f "$deb" >"$1/var/lib/dpkg/status.d/$(dpkg-deb -f "$deb" Package)"; done'
    )
    command = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(PACKAGES)}"]
    command += ["--aptopt=Acquire::Check-Valid-Until false", f"--extract-hook={keep}", suite, str(folder)]
    if mirror or (mirror := own_mirror()):
        command.append(mirror)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise tree.TreeError(f"mmdebstrap failed ({done.returncode}): {done.stderr.strip()[-2000:]}")
    trim(folder)


def own_mirror() -> str:
    """The mirror of this machine's own packages; "" for mmdebstrap's default."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return next((line for line in told.splitlines() if line.rstrip("/").endswith("/debian")), "")


def trim(root: Path) -> None:
    """Leaves Python, its libraries and the licences."""
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = b"".join(path.read_bytes().rstrip() + b"\n" for path in certificates)
    for pattern in NOT_NEEDED.split():
        for path in sorted(root.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in sorted((root / "usr/bin").iterdir()):
        if not re.fullmatch(PROGRAMS, path.name):
            path.unlink()
    for path in tree.files(root / "usr/share/doc"):
        if path.name != "copyright":
            path.unlink()
    shutil.rmtree(root / "usr/share/ca-certificates", ignore_errors=True)
    for folder in ("dev", "proc", "sys", "tmp", "run", "etc/ssl/certs"):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/ssl/certs/ca-certificates.crt").write_bytes(bundle)
    users = f"root:x:0:0:root:/:/nonexistent\nsatchel:x:{USER}:{USER}::/nonexistent:/nonexistent\n"
    (root / "etc/passwd").write_text(users, encoding="utf-8")
    (root / "etc/group").write_text(f"root:x:0:\nsatchel:x:{USER}:\n", encoding="utf-8")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n", encoding="utf-8")
    (root / "models").mkdir(exist_ok=True)


def compile_python(root: Path, venv: str) -> None:
    """Compiles the modules that a server imports, by the root's own Python: an image's files cannot be
    written to, so each start would compile them again.
    """
    command = ["chroot", str(root), f"/{venv}/bin/python3", "-I", "-B", "-c", COMPILE, *COMPILED]
    environment = {"PATH": "/usr/sbin:/usr/bin", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise tree.TreeError(f"{root}: modules cannot be compiled: {(done.stdout + done.stderr)[-2000:]}")
