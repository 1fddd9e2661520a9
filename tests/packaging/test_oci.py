"""packaging/oci.py: the layout of an image, its layers, the same bytes again, and what may not be in it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from small_wheel import VERSION, write_root, write_wheel

ROOT = Path(__file__).resolve().parents[2]
import debian_root  # noqa: E402
import oci  # noqa: E402
import tree  # noqa: E402
import trial  # noqa: E402

SITE = "opt/satchel/venv/lib/python3.13/site-packages"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of a small root and a small wheel."""
    return made(tmp_path, "image")


def made(folder: Path, name: str, gpu: str = "", more: dict[str, str] | None = None) -> Path:
    place = folder / name
    place.mkdir()
    root = write_root(place / "root")
    oci.build(root, [write_wheel(place, more)], place / "image", gpu, packages="", bytecode=False)
    return place / "image"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_layout_is_one_of_oci(image: Path) -> None:
    assert json.loads((image / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((image / "index.json").read_bytes())
    (entry,) = index["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == VERSION
    settings, found = oci.read(image)  # checks every digest
    assert [one["annotations"]["satchel.layer"] for one, _ in found] == [
        "debian",
        "packages",
        "satchel",
        "model",
    ]
    assert settings["architecture"] == "amd64" and settings["config"]["User"] == "10001:10001"
    assert settings["config"]["Entrypoint"][:2] == ["satchel", "serve"]
    assert len(settings["history"]) == len(settings["rootfs"]["diff_ids"]) == 4
    assert len(list((image / "blobs" / "sha256").iterdir())) == 4 + 2


def test_unpacked_it_is_the_root_with_the_environment(image: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    oci.unpack(image, folder)
    assert (folder / SITE / "satchel/cext/libsatchel_cpu.so").read_text() == "kernels"
    assert (folder / "opt/satchel/venv/bin/python3").readlink() == Path("/usr/bin/python3")
    script = folder / "opt/satchel/venv/bin/satchel"
    assert script.read_text().startswith("#!/opt/satchel/venv/bin/python3 -P\n")
    assert script.stat().st_mode & 0o111 and stat.S_IMODE((folder / "tmp").stat().st_mode) == 0o1777
    assert (folder / "usr/bin/python3").resolve() == (folder / "usr/bin/python3.13").resolve()


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = made(tmp_path, "a"), made(tmp_path, "b")
    assert contents(first) == contents(second)
    for name, folder in (("one", first), ("two", second)):
        oci.archive(folder, tmp_path / name, 0)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_layer_that_was_changed_is_refused(image: Path) -> None:
    largest = max((image / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"!")
    with pytest.raises(tree.TreeError, match=r"expected \d+ bytes of that digest"):
        oci.read(image)


def test_a_gpu_variant_has_its_library_alone(tmp_path: Path) -> None:
    more = {f"satchel/cext/libsatchel_{name}.so": name for name in ("cuda", "hip", "sycl")}
    for gpu, kept in (("", {"cpu"}), ("cuda", {"cpu", "cuda"})):
        image = made(tmp_path, gpu or "none", gpu, more)
        folder = tmp_path / f"{gpu}unpacked"
        folder.mkdir()
        settings = oci.unpack(image, folder)
        found = {p.stem.removeprefix("libsatchel_") for p in (folder / SITE / "satchel/cext").glob("*.so")}
        assert found == kept
        assert ("NVIDIA_VISIBLE_DEVICES=all" in settings["config"]["Env"]) == bool(gpu)


@pytest.mark.parametrize(
    ("gpu", "more", "programs", "error"),
    [
        ("cuda", {}, (), "expected libsatchel_cuda.so in the wheel, found none"),
        ("", {"nvidia/lib/libnvrtc.so.12": ""}, (), "expected no CUDA toolkit, found libnvrtc.so.12"),
        ("", {"nvidia/lib/libcublasLt.so.12": ""}, (), "expected no CUDA toolkit"),
        (
            "",
            {},
            ("x86_64-linux-gnu-gcc-14",),
            "expected no compiler in an image, found x86_64-linux-gnu-gcc-14",
        ),
        ("", {"satchel-1.2.3.data/scripts/x": ""}, (), "expected no .data folder"),
    ],
)
def test_what_may_not_be_in_it(
    gpu: str, more: dict[str, str], programs: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    root = write_root(tmp_path / "root", *programs)
    with pytest.raises(tree.TreeError, match=error):
        oci.build(root, [write_wheel(tmp_path, more)], tmp_path / "image", gpu, packages="", bytecode=False)


def test_a_wheel_is_needed(tmp_path: Path) -> None:
    with pytest.raises(tree.TreeError, match="expected a wheel of satchel"):
        tree.environment(tmp_path, [], "3.13", packages="")
    with pytest.raises(tree.TreeError, match="expected one Python 3"):
        tree.python_of(tmp_path)


def package(site: Path, name: str, *needs: str) -> None:
    """An installed package with a module and its metadata."""
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {n}" for n in needs)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text("")
    (info / "RECORD").write_text(
        f"{name}/__init__.py,,\n{name}-1.dist-info/METADATA,,\n{name}-1.dist-info/RECORD,,\n"
    )


def test_what_nobody_needs_goes(tmp_path: Path) -> None:
    package(tmp_path, "satchel", "numpy", "numba", 'web; extra == "server"', 'traces; extra == "telemetry"')
    package(tmp_path, "numba", "llvm", "numpy")
    package(tmp_path, "web", 'old; python_version < "3.12"', "shared")
    for name in ("numpy", "llvm", "traces", "old", "shared"):
        package(tmp_path, name)
    kept = tree.needed(tmp_path, "3.13")
    assert kept == {"satchel", "numpy", "web", "shared"}
    assert sorted(tree.remove_others(tmp_path, kept)) == ["llvm", "numba", "old", "traces"]
    assert {path.name for path in tmp_path.iterdir() if not path.name.endswith(".dist-info")} == kept


def test_a_root_keeps_python_and_licences(tmp_path: Path) -> None:
    root = write_root(tmp_path, "perl", "dpkg")
    for name in (
        "usr/share/doc/x/copyright",
        "usr/share/doc/x/NEWS",
        "usr/share/man/x",
        "usr/sbin/y",
        "var/cache/z",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "usr/share/ca-certificates").mkdir()
    (root / "usr/share/ca-certificates/a.crt").write_text("ONE")
    (root / "etc/hostname").write_text("this-machine")
    debian_root.trim(root)
    left = {str(p.relative_to(root)) for p in tree.files(root)}
    assert left == {
        *("usr/bin/python3", "usr/bin/python3.13", "usr/lib/python3.13/os.py", "usr/share/doc/x/copyright"),
        *("etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/ssl/certs/ca-certificates.crt"),
    }
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_text() == "ONE\n"


@pytest.mark.nightly
@pytest.mark.model
def test_images_and_the_package_of_debian_answer(tmp_path: Path) -> None:
    """All of packaging/packages.sh with a wheel of this checkout."""
    if why := trial.able():
        pytest.skip(why)
    for program in ("mmdebstrap", "dpkg-deb", "unzip", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    pytest.importorskip("uv", reason="uv is not installed")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    how = ["-C", f"build-dir={tmp_path / 'build'}", "-w", str(tmp_path / "wheels"), str(ROOT)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SATCHEL_SETS": "native"}
    subprocess.run([*pip, *how], env=environment, check=True)
    command = [str(ROOT / "packaging" / "packages.sh"), str(tmp_path / "wheels"), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "mmdebstrap failed" in done.stderr:
        pytest.skip(f"no mirror of Debian can be reached: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("I'm Satchel") == 2
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".tar", ".deb"}
