"""packaging/deb.py: what the package for Debian holds, says and runs."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest
from small_wheel import VERSION, write_wheel

import deb  # isort: skip
import tree  # isort: skip

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    folder = tmp_path_factory.mktemp("deb")
    return deb.build([write_wheel(folder)], folder / "out", packages="")


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    folder = package.parent / "unpacked"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(folder)], check=True)
    return folder


def test_its_papers(package: Path, unpacked: Path) -> None:
    assert package.name == f"satchel_{VERSION}_amd64.deb"
    lines = dict(
        line.split(": ", 1)
        for line in (unpacked / "DEBIAN/control").read_text().splitlines()
        if not line.startswith(" ")
    )
    assert (lines["Package"], lines["Version"], lines["Architecture"]) == ("satchel", VERSION, "amd64")
    assert "python3 (>= 3.13~), python3 (<< 3.14~)" in lines["Depends"]
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/satchel/config.toml\n"
    copyright = (unpacked / "usr/share/doc/satchel/copyright").read_text()
    assert "CC-BY-SA-4.0" in copyright and "Permission is hereby granted" in copyright


def test_its_sums_are_those_of_its_files(unpacked: Path) -> None:
    done = subprocess.run(["md5sum", "--check", "--quiet", "DEBIAN/md5sums"], cwd=unpacked, check=False)
    assert done.returncode == 0
    named = {line.split("  ")[1] for line in (unpacked / "DEBIAN/md5sums").read_text().splitlines()}
    there = {str(p.relative_to(unpacked)) for p in tree.files(unpacked) if not p.is_symlink()}
    assert named == {path for path in there if not path.startswith("DEBIAN/")}


def test_the_unit_starts_what_it_installs(unpacked: Path) -> None:
    unit = (unpacked / "usr/lib/systemd/system/satchel.service").read_text()
    assert unit == (ROOT / "packaging" / "satchel.service").read_text()
    (start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    program, config = start.removeprefix("ExecStart=").split()[0], start.split()[-1]
    assert (unpacked / program.lstrip("/")).stat().st_mode & 0o111
    assert (unpacked / config.lstrip("/")).is_file()
    assert (unpacked / "usr/bin/satchel").readlink() == Path(program)


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_its_scripts_are_shell(script: str, unpacked: Path) -> None:
    path = unpacked / "DEBIAN" / script
    assert path.stat().st_mode & 0o111 and "{" not in path.read_text().replace("{} +", "")
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0


def test_the_manual_lists_the_commands(unpacked: Path) -> None:
    page = gzip.decompress((unpacked / "usr/share/man/man1/satchel.1.gz").read_bytes()).decode()
    assert page.startswith('.TH SATCHEL 1 "01 Jan 1970" "satchel 1.2.3"')
    assert ".TP\n.B run\nAnswer one prompt.\n" in page
    if shutil.which("groff") is not None:
        done = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, text=True, capture_output=True)
        assert done.stderr == ""


def test_the_same_wheel_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    again = deb.build([write_wheel(tmp_path)], tmp_path, packages="")
    assert again.read_bytes() == package.read_bytes()


@pytest.mark.parametrize(
    ("python", "debian"), [("1.2.3", "1.2.3"), ("1.2.3rc1", "1.2.3~rc1"), ("1.0.0b2", "1.0.0~b2")]
)
def test_versions_keep_their_order(python: str, debian: str) -> None:
    assert deb.debian(python) == debian
