"""The package for Debian.

    python packaging/deb.py --wheel W [--wheel MODEL] [--python 3.13] [-o FOLDER]
    python packaging/deb.py try PACKAGE [--root ROOT]   installs it in a bare Debian root, asks, purges it

It holds what an image holds (tree.py): a virtual environment in /opt/satchel/venv over the system's
Python, made of wheels, so that installing needs no network and no compiler. Beside it are /usr/bin/satchel,
the systemd unit, which nothing starts by itself, a configuration in /etc/satchel, and a manual page.

Compiled packages fit one minor version of Python, which the package depends on: 3.13 is Debian 13's. The same
wheels give the same bytes: files belong to root and have the time of SOURCE_DATE_EPOCH or 0.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import debian_root
import tree
import trial

HERE = Path(__file__).resolve().parent
PYTHON = "3.13"  # Debian 13
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIBRARIES = "libc6 (>= 2.36), libgcc-s1, libstdc++6, ca-certificates"
CONTROL = """\
Package: satchel
Version: {version}
Architecture: {architecture}
Maintainer: Satchel's maintainers <maintainers@localhost>
Installed-Size: {kilobytes}
Depends: python3 (>= {python}~), python3 (<< {next_python}~), {libraries}
Section: misc
Priority: optional
Description: runs language models from GGUF files
 Satchel answers in a terminal, behind the APIs of OpenAI, Anthropic and
 Ollama, or inside a program. A small model comes with it; others are
 pulled or opened as files. `systemctl enable --now satchel` starts the
 server, which listens on 127.0.0.1:8080.
"""
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    # Compiled modules are not in the package: Python makes them faster than a mirror sends them.
    {venv}/bin/python3 -m compileall -q {venv}/lib || true
    [ ! -d /run/systemd/system ] || systemctl --system daemon-reload || true
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now satchel.service || true
fi
find {venv} -depth -type d -name __pycache__ -exec rm -rf {{}} +
"""
POSTRM = """\
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl --system daemon-reload || true
# Models that were pulled stay in /var/lib/private/satchel, purged or not: they may be hours of a line's time.
[ "$1" != purge ] || rm -rf /var/cache/private/satchel /var/cache/satchel
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: Satchel's contributors
License: Expat
{licence}
Files: *.gguf
Copyright: Satchel's contributors, and the sources that SOURCES.md beside the model names
License: CC-BY-SA-4.0
 https://creativecommons.org/licenses/by-sa/4.0/

Files: opt/satchel/venv/lib/python*/site-packages/*
Copyright: their authors
License: various
 Each package's licence lies in its .dist-info folder there.
"""


def build(
    wheels: Sequence[Path],
    output: Path,
    python: str = PYTHON,
    machine: str = "x86_64",
    packages: str | None = None,
) -> Path:
    """Makes the package, and returns its path. packages: as in tree.environment."""
    if shutil.which("dpkg-deb") is None:
        raise tree.TreeError("expected dpkg-deb on PATH, found none: apt-get install dpkg")
    version = next((wheel.name.split("-")[1] for wheel in wheels if wheel.name.startswith("satchel-")), "")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        root.mkdir(mode=0o755)
        site = tree.environment(root, wheels, python, "", packages, machine)
        place(root, site, version)
        control(root, version, python, ARCHITECTURES[machine])
        for path in [root, *root.rglob("*")]:
            if not path.is_symlink():  # a umask has no say
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        output.mkdir(parents=True, exist_ok=True)
        target = output / f"satchel_{debian(version)}_{ARCHITECTURES[machine]}.deb"
        environment = {"SOURCE_DATE_EPOCH": "0", **os.environ}
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(target)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise tree.TreeError(f"dpkg-deb failed ({done.returncode}): {done.stderr.strip()}")
    return target


def debian(version: str) -> str:
    """A version of Python's in Debian's order: 1.0.0rc1 comes before 1.0.0."""
    return re.sub(r"(?<=\d)(a|b|rc)(\d+)$", r"~\1\2", version)


def place(root: Path, site: Path, version: str) -> None:
    """Everything beside the environment."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/satchel").symlink_to(f"/{tree.VENV.as_posix()}/bin/satchel")
    for name, folder in (
        ("satchel.service", "usr/lib/systemd/system"),
        ("config.toml", "etc/satchel"),
        ("gpu.conf", "usr/share/doc/satchel/examples"),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / name, root / folder / name)
    papers = root / "usr/share/doc/satchel"
    licence = (HERE.parent / "LICENSE").read_text(encoding="utf-8")
    indented = "".join(f" {line or '.'}\n" for line in licence.strip().splitlines())
    (papers / "copyright").write_text(COPYRIGHT.format(licence=indented), encoding="utf-8")
    packed(papers / "changelog.gz", (HERE.parent / "CHANGELOG.md").read_bytes())
    manual = root / "usr/share/man/man1/satchel.1.gz"
    manual.parent.mkdir(parents=True)
    packed(manual, man_page(site / "satchel/cli/commands", version).encode())


def packed(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def control(root: Path, version: str, python: str, architecture: str) -> None:
    """The folder that tells dpkg what the package is and does."""
    folder = root / "DEBIAN"
    listed = [path for path in tree.files(root) if not path.is_symlink()]
    lines = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in listed)
    sums, size = "".join(lines), sum(path.stat().st_size for path in listed)
    folder.mkdir()
    major, minor = python.split(".")
    text = CONTROL.format(
        version=debian(version),
        architecture=architecture,
        kilobytes=size // 1024 + 1,
        python=python,
        libraries=LIBRARIES,
        next_python=f"{major}.{int(minor) + 1}",
    )
    (folder / "control").write_text(text, encoding="utf-8")
    (folder / "conffiles").write_text("/etc/satchel/config.toml\n", encoding="utf-8")
    (folder / "md5sums").write_text(sums, encoding="utf-8")
    for name, script in (("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)):
        (folder / name).write_text(script.format(venv=f"/{tree.VENV.as_posix()}"), encoding="utf-8")
        (folder / name).chmod(0o755)


def man_page(commands: Path, version: str) -> str:
    """The manual page: what it is, and each command's line. Options are in `satchel COMMAND --help`."""
    date = formatdate(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), usegmt=True)[5:16]
    rows = [f".TP\n.B {roff(name)}\n{roff(text)}" for name, text in summaries(commands)]
    lines = [
        f'.TH SATCHEL 1 "{date}" "satchel {version}" "User Commands"',
        ".SH NAME\nsatchel \\- run language models from GGUF files",
        ".SH SYNOPSIS\n.B satchel\n.I COMMAND\n[OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION\nAnswers in a terminal or behind an API. Without a model, the bundled one answers.",
        ".SH COMMANDS",
        *rows,
        ".SH OPTIONS\n.TP\n.B \\-\\-help\nPrint the common options, also after a command.",
        ".TP\n.B \\-\\-help\\-all\nPrint all of them.",
        ".TP\n.B \\-\\-version [\\-\\-json]\nPrint the version; with \\-\\-json also kernels and devices.",
        ".SH FILES\n.TP\n.I /etc/satchel/config.toml\nThe server's configuration, for satchel.service.",
    ]
    return "\n".join(lines) + "\n"


def summaries(commands: Path) -> Iterator[tuple[str, str]]:
    """Each command and the first line of its docstring, read from its source."""
    for path in sorted(commands.glob("[a-z]*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == path.stem:
                yield path.stem.replace("_", "-"), (ast.get_docstring(node) or "").partition("\n")[0]


def roff(text: str) -> str:
    """Text for roff: hyphens are minus signs, and no line begins with a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


# --- trying it


def make_bare_root(folder: Path) -> None:
    """A Debian root with the packages that ours depends on, and dpkg."""
    names = "python3,libstdc++6,libgcc-s1,ca-certificates"
    command = ["mmdebstrap", "--quiet", "--variant=apt", "--aptopt=Acquire::Check-Valid-Until false"]
    command += [f"--include={names}", debian_root.SUITE, str(folder)]
    if mirror := debian_root.own_mirror():
        command.append(mirror)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise tree.TreeError(f"mmdebstrap failed ({done.returncode}): {done.stderr.strip()[-2000:]}")


def attempt(package: Path, root: Path) -> str:
    """Installs the package in a root, asks the model as an ordinary user, purges it, and returns the answer.
    TreeError where a file stays behind.
    """
    before = listing(root)
    shutil.copyfile(package, root / "satchel.deb")
    inside(root, "dpkg", "--install", "/satchel.deb")
    (root / "satchel.deb").unlink()
    variables = {"PATH": "/usr/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
    question = ["satchel", "run", "--temp", "0", "-n", "20", "Who are you?"]
    answer = trial.printed(root, question, variables, user=1000).strip()
    inside(root, "dpkg", "--purge", "satchel")
    if left := sorted(listing(root) - before):
        raise tree.TreeError(f"{root}: expected nothing after dpkg --purge, found {', '.join(left[:5])}")
    return answer


def inside(root: Path, *words: str) -> None:
    """Runs a program in the root, as root."""
    variables = {"PATH": "/usr/sbin:/usr/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    command = ["chroot", str(root), *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise tree.TreeError(f"{' '.join(words)}: failed ({done.returncode}): {done.stderr.strip()}")


def listing(root: Path) -> set[str]:
    """The paths below a root, without dpkg's own books and logs."""
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {path for path in found if not path.startswith(("var/lib/dpkg/", "var/log/", "proc/", "dev/"))}


def main(words: list[str]) -> int:
    if words[:1] == ["try"]:
        return tried(words[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, action="append", required=True)
    parser.add_argument("--python", default=PYTHON)
    parser.add_argument("-o", "--output", type=Path, default=tree.ROOT / "dist")
    given = parser.parse_args(words)
    try:
        made = build(given.wheel, given.output, given.python)
    except tree.TreeError as error:
        print(f"deb: error: {error}", file=sys.stderr)
        return 1
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB")
    return 0


def tried(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="deb.py try")
    parser.add_argument("package", type=Path)
    parser.add_argument("--root", type=Path, help="a bare root that is there; None: one is made")
    given = parser.parse_args(words)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            root = given.root or Path(scratch, "root")
            if given.root is None:
                Path(scratch).chmod(0o755)
                make_bare_root(root)
            print(attempt(given.package, root))
    except (tree.TreeError, RuntimeError) as error:
        print(f"deb: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
