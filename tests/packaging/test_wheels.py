"""packaging/wheels.py and packaging/check.py: names, papers, equal bytes; what a damaged wheel is refused
for.
"""

from __future__ import annotations

import platform
import re
import runpy
import shutil
import struct
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import check  # noqa: E402
import gpu_images  # noqa: E402
import wheels  # noqa: E402

Files = dict[str, bytes]
NAME, VERSION = wheels.named(ROOT)
MODEL, MODEL_VERSION = wheels.named(ROOT / "models")
TARGET = wheels.TARGETS["manylinux-x86_64"]
PACK: dict[str, Any] = runpy.run_path(str(ROOT / "cext" / "gpu" / "pack.py"))
METADATA = f"Metadata-Version: 2.4\nName: satchel\nVersion: {VERSION}\n\nRequires-Dist: not this\n".encode()


def contents(target: wheels.Target = TARGET, gpus: Sequence[str] = ()) -> Files:
    """The files of a wheel, with stand-ins for its libraries. gpus: those with images."""
    found = {"satchel/__init__.py": b"1\n", "satchel/cext/_hal.py": b"2\n"}
    found["satchel/cext/satchel_search.so"] = b"\x7fELF"
    for backend in target.backends:
        found[f"satchel/cext/libsatchel_{backend}.so"] = b"\x7fELF"
    for vendor in gpus:
        found[f"satchel/cext/libsatchel_{vendor}.so"] = b"\x7fELF" + archive(vendor)
    listed = " ".join(target.sets).encode()
    found["satchel/cext/libsatchel_cpu.so"] += b"\0sets of this library: " + listed + b"\0"
    return found


def archive(vendor: str, lacking: Sequence[str] = ()) -> bytes:
    """An archive with an image of every name and architecture but these, each of a few bytes."""
    rows = sorted((name, 75, arch, image(arch)) for name, arch in gpu_images.names(vendor))
    packed: bytes = PACK["pack"](12000, [row for row in rows if row[2] not in lacking])
    return packed


def image(arch: str) -> bytes:
    """As much of an image as says what it is for."""
    if found := re.fullmatch(r"compute_(\d+)", arch):
        return f".version 8.0\n.target sm_{found[1]}\n".encode()
    if found := re.fullmatch(r"sm_(\d+)(a?)", arch):
        number, new = int(found[1]), int(found[1]) >= 100
        flags = number << 8 | (0x8 if found[2] else 2) if new else number | (0x800 if found[2] else 0)
        head = b"\x7fELF\x02\x01\x01" + bytes([0x41 if new else 0x33, 8 if new else 7])
        return struct.pack("<18sH28xI12x", head, check.CUDA_ELF, flags)
    return " ".join(f"hipv4-amdgcn-amd-amdhsa--{one}" for one in arch.split()).encode()


def papers() -> Files:
    return {"METADATA": wheels.requiring(METADATA, f"{MODEL}==1.*"), "licenses/LICENSE": b"MIT\n"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a wheel; by default one that has no fault that can be seen without LIEF."""
    monkeypatch.setattr(check, "library", lambda backend, content, tag: iter(()))

    def write(files: Files | None = None, tag: str = TARGET.tag, told: Files | None = None) -> Path:
        found = contents() if files is None else files
        return wheels.write(tmp_path, NAME, VERSION, tag, found, papers() if told is None else told)

    return write


def findings(path: Path) -> list[str]:
    return list(check.inside(check.opened(path)))


def changed(path: Path, edit: Callable[[Files], None]) -> Path:
    """The wheel with other entries, and the RECORD of before."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    edit(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


# --- what wheels.py writes


def test_a_wheel_has_no_finding(made: Callable[..., Path]) -> None:
    assert findings(made()) == []


def test_equal_files_give_equal_bytes(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = made().read_bytes()
    assert made(dict(reversed(contents().items()))).read_bytes() == first
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert made().read_bytes() != first
    with zipfile.ZipFile(made()) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert made().read_bytes() == first, "a zip file's time begins in 1980"


def test_entries_are_those_of_any_machine(made: Callable[..., Path]) -> None:
    with zipfile.ZipFile(made()) as archive:
        entries = archive.infolist()
    assert {(e.create_system, e.external_attr >> 16) for e in entries} == {(3, 0o100644)}
    names = [entry.filename for entry in entries]
    papers = [name.startswith(f"satchel-{VERSION}.dist-info/") for name in names]
    assert papers == sorted(papers), "the papers stand last"
    assert "".join(names).isascii()


@pytest.mark.parametrize("name", wheels.TARGETS)
def test_tag_and_papers_agree(name: str, made: Callable[..., Path]) -> None:
    target = wheels.TARGETS[name]
    wheel = check.opened(made(contents(target), target.tag))
    assert wheel.target is target and list(check.papers(wheel)) == []
    assert wheel.path.name == f"satchel-{VERSION}-py3-none-{target.tag}.whl"


def test_every_set_of_cmake_is_in_a_target() -> None:
    text = (ROOT / "cext" / "cpu" / "CMakeLists.txt").read_text(encoding="utf-8")
    defined = set(re.findall(r"^ +define\((\w+)", text, re.M))
    # Those of WebAssembly are in no wheel: packaging/wasm.py compiles them.
    assert {name for target in wheels.TARGETS.values() for name in target.sets} == defined - {
        "simd128",
        "relaxed",
    }


def test_a_requirement_is_put_among_the_headers() -> None:
    added = wheels.requiring(METADATA, "one==1.*")
    assert added == METADATA.replace(b"\n\nRequires", b"\nRequires-Dist: one==1.*\n\nRequires", 1)


def test_the_model_has_a_version_of_its_own() -> None:
    table = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text(encoding="utf-8"))
    assert MODEL == "satchel-model-40m" and table["project"]["version"] == MODEL_VERSION
    assert set(table["project"]["license-files"]) == {"SOURCES.md"}, "what its licence wants passed on"


def test_every_command_is_asked_of_installed_wheels() -> None:
    unasked = runpy.run_path(str(ROOT / ".ci" / "answers.py"))["unasked"]
    assert unasked() == set(), "a command without a question in .ci/answers.py"


def test_an_unknown_target_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        wheels.main(["amiga"])
    assert "amiga: expected model or one of manylinux-x86_64, " in capfd.readouterr().err


def test_what_fails_is_said_with_its_output(tmp_path: Path) -> None:
    code = "import sys; print('why'); sys.exit(3)"
    with pytest.raises(SystemExit, match=r"why\nwheels: this failed \(3\): "):
        wheels.run([sys.executable, "-c", code], tmp_path)


def test_the_toolchain_names_the_oldest_system(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="the compiler of wheels: pip install '.[packaging]'")
    folder = tmp_path / "a folder"
    folder.mkdir()
    text = wheels.toolchain(wheels.TARGETS["macos-arm64"], ROOT, folder).read_text(encoding="utf-8")
    assert 'set(CMAKE_SYSTEM_NAME "Darwin")' in text
    assert "-target aarch64-macos.11.0" in (folder / "cc").read_text(encoding="utf-8")


def test_a_build_folder_forgets_the_images_of_the_last_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CMake keeps definitions, so a wheel without images would get those of the wheel before."""
    commands: list[list[str]] = []
    monkeypatch.setattr(wheels, "run", lambda command, folder: commands.append(command))
    monkeypatch.setattr(wheels, "toolchain", lambda target, tree, folder: folder / "toolchain.cmake")
    monkeypatch.setattr(gpu_images, "check", lambda folder, vendor: None)
    windows, images = wheels.TARGETS["windows-x86_64"], tmp_path / "images"
    wheels.configure(windows, wheels.Build(ROOT, gpu=images), tmp_path / "b")
    wheels.configure(windows, wheels.Build(ROOT), tmp_path / "b")
    cuda, hip = (
        [
            [w.partition("=")[2] for w in command if w.startswith(f"-DSATCHEL_{vendor}_IMAGES=")][-1]
            for command in commands
        ]
        for vendor in ("CUDA", "HIP")
    )
    assert cuda == [str(images), ""] and hip == ["", ""], "there is no library of AMD's for Windows"


def test_images_of_other_sources_are_refused_before_anything_is_built(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        wheels.main(["--gpu", str(tmp_path), "-o", str(tmp_path / "dist"), "manylinux-x86_64"])
    assert f"{tmp_path}: it has no cuda.images with its cuda.json: make them by" in capfd.readouterr().err
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    ("targets", "asked"),
    [
        (["windows-x86_64"], ["cuda"]),
        (["manylinux-x86_64", "model"], ["cuda", "hip"]),
        (["musllinux-x86_64"], []),
        ([], ["cuda", "hip"]),
    ],
)
def test_images_are_wanted_of_vendors_that_the_targets_have(
    targets: list[str], asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(gpu_images, "check", lambda folder, vendor: found.append(vendor))
    monkeypatch.setattr(wheels, "copied", lambda folder: folder)
    monkeypatch.setattr(wheels, "Build", lambda *given: sys.exit(7))  # nothing is built here
    with pytest.raises(SystemExit, match="7"):
        wheels.main(["--gpu", str(tmp_path), "-o", str(tmp_path / "dist"), *targets])
    assert found == asked


# --- what check.py refuses


def damages() -> Iterator[tuple[str, Callable[[Files], None], str]]:
    """(name, a damage to a wheel's entries, a pattern of the finding)"""
    record, info = f"satchel-{VERSION}.dist-info/RECORD", f"satchel-{VERSION}.dist-info/METADATA"
    init, cpu = "satchel/__init__.py", "satchel/cext/libsatchel_cpu.so"
    search = "satchel/cext/satchel_search.so"
    yield "other content", lambda f: f.update({init: b"3\n"}), rf"{init}: RECORD says sha256=.*; it is "
    yield "another file", lambda f: f.update({"satchel/x.py": b""}), r"satchel/x\.py: not in RECORD"
    yield "a file less", lambda f: f.pop(init) and None, rf"{init}: in RECORD alone"
    yield "no record", lambda f: f.pop(record) and None, rf"{init}: not in RECORD"
    yield "twice", lambda f: f.update({record: f[record] * 2}), "RECORD lists a file twice"
    yield "elsewhere", lambda f: f.update({"other/x.py": b""}), r"other/x\.py: expected below satchel/"
    yield "out", lambda f: f.update({"satchel/../../x": b""}), r"satchel/\.\./\.\./x: leads out"
    yield "absolute", lambda f: f.update({"/etc/x": b""}), "/etc/x: leads out"
    yield "a model", lambda f: f.update({"satchel/models/a.gguf": b""}), r"a\.gguf: does not belong"
    yield "a source", lambda f: f.update({"satchel/cext/cuda/a.cu": b""}), r"a\.cu: does not belong"
    yield "no sets", lambda f: f.update({cpu: b"\x7fELF"}), "kernel sets none; expected scalar avx2 "
    yield (
        "a set less",
        lambda f: f.update({cpu: b"\0sets of this library: scalar avx2\0"}),
        "kernel sets scalar avx2; expected scalar avx2 avxvnni",
    )
    yield "no library", lambda f: f.pop(cpu) and None, r"libraries of \['null', 'search'\]; expected "
    yield "no searches", lambda f: f.pop(search) and None, r"libraries of \['cpu', 'null'\]; expected "
    path = b"\0/somebody/cext/cpu/pool.c\0"
    yield "a path", lambda f: f.update({cpu: f[cpu] + path}), r"machine that built it: /somebody/"
    yield "another name", lambda f: f.update({info: b"Name: other\n\n"}), "METADATA is that of other None"
    yield "no model", lambda f: f.update({info: METADATA}), f"METADATA does not require {MODEL}"
    other = b"Tag: py3-none-any\nRoot-Is-Purelib: true\n\n"
    how = f"satchel-{VERSION}.dist-info/WHEEL"
    yield "another tag", lambda f: f.update({how: other}), r"WHEEL has the tags \['py3-none-any'\]; the name "


DAMAGES = {name: (edit, pattern) for name, edit, pattern in damages()}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_wheel_is_refused(name: str, made: Callable[..., Path]) -> None:
    edit, pattern = DAMAGES[name]
    found = findings(changed(made(), edit))
    assert any(re.search(pattern, finding) for finding in found), found


def test_a_wheel_is_not_too_large(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check.MOST, "satchel", 100)
    assert findings(made()) == [f"{made().stat().st_size:,} bytes; a wheel of satchel has 100 at most"]


def test_a_wheel_with_gpu_images_may_be_larger_and_has_them_all(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check.MOST, "satchel", 100)
    whole = made(contents(gpus=TARGET.vendors))
    assert findings(whole) == [] and [*check.lacking(check.opened(whole))] == []
    assert check.row(check.opened(whole), 0).endswith("amx cuda hip  no findings")
    cuda = "satchel/cext/libsatchel_cuda.so"
    of_80 = sorted(name for name, arch in gpu_images.names("cuda") if arch == "sm_80")
    for content, expected in (
        (archive("cuda", ["sm_80"]), [f"{cuda}: no image {one} for sm_80" for one in of_80]),
        (archive("cuda")[:-1], [f"{cuda}: its images are damaged: "]),
        (b"none", [f"{cuda}: has no images"]),
    ):
        found = findings(made({**contents(), cuda: b"\x7fELF" + content}))
        assert len(found) == len(expected), found
        assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found
    wanting = check.opened(made())
    assert [*check.lacking(wanting)] == [
        f"no library of {one}: run packaging/wheels.py --gpu FOLDER" for one in ("cuda", "hip")
    ]
    musl = wheels.TARGETS["musllinux-x86_64"]
    wrong = findings(made(contents(musl, ["cuda"]), musl.tag))
    assert len(wrong) == 1 and wrong[0].startswith(
        "libraries of ['cpu', 'cuda', 'null', 'search']; expected "
    )


def swapped(edits: dict[str, bytes]) -> bytes:
    """An archive of CUDA in which the images `portable` of these architectures are others."""
    rows = sorted((name, 75, arch, image(arch)) for name, arch in gpu_images.names("cuda"))
    rows = [(n, k, a, edits.get(a, b) if n == "portable" else b) for n, k, a, b in rows]
    packed: bytes = PACK["pack"](12000, rows)
    return packed


@pytest.mark.parametrize(
    ("arch", "other", "said"),
    [
        ("sm_80", image("sm_75"), "sm_75"),
        ("sm_90a", image("sm_90"), "sm_90"),
        ("sm_100", image("sm_120"), "sm_120"),
        ("sm_120", image("sm_120a"), "sm_120a"),
        ("sm_75", b"\x7fELF" + bytes(60), "neither machine code nor PTX"),
        ("compute_75", b".version 8.8\n.target sm_75\n", "compute_75 as PTX 8.8"),
        ("compute_75", b".target sm_75\n", "neither machine code nor PTX"),
        ("compute_75", image("compute_80"), "compute_80"),
    ],
)
def test_an_image_is_for_the_architecture_that_it_is_listed_under(
    arch: str, other: bytes, said: str, made: Callable[..., Path]
) -> None:
    cuda = "satchel/cext/libsatchel_cuda.so"
    found = findings(made({**contents(gpus=["hip"]), cuda: b"\x7fELF" + swapped({arch: other})}))
    assert found == [f"{cuda}: the image portable for {arch} is {said}"]


def test_a_bundle_without_a_code_object_is_found(made: Callable[..., Path]) -> None:
    hip = "satchel/cext/libsatchel_hip.so"
    rows = sorted((name, 0, arch, image(arch)) for name, arch in gpu_images.names("hip"))
    short = [(n, k, a, b.replace(b"--gfx942", b"--gfx941")) for n, k, a, b in rows]
    found = findings(made({**contents(gpus=["cuda"]), hip: b"\x7fELF" + PACK["pack"](0, short)}))
    assert found == [f"{hip}: the image portable has no code object for gfx942"]


def test_the_sizes_of_images_are_told_by_architecture(made: Callable[..., Path]) -> None:
    lines = [line.split() for line in check.image_sizes(check.opened(made(contents(gpus=["cuda", "hip"]))))]
    counts = {words[1]: int(words[2]) for words in lines if words[0] == "cuda"}
    names = gpu_images.names("cuda")
    assert counts.pop("all") == len(names)
    assert counts == {arch: sum(a == arch for _, a in names) for _, arch in names}
    assert sum(words[0] == "hip" for words in lines) == 3
    assert [*check.image_sizes(check.opened(made()))] == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("satchel-1-cp311-cp311-linux_x86_64.whl", "its name says cp311-cp311; expected py3-none"),
        ("satchel.whl", "a wheel's name is NAME-VERSION-PYTHON-ABI-PLATFORM"),
    ],
)
def test_a_name_is_refused(name: str, why: str, made: Callable[..., Path], tmp_path: Path) -> None:
    path = made().rename(tmp_path / name)
    with pytest.raises(check.Refused, match=why):
        check.opened(path)


def test_no_archive_and_equal_names_are_refused(made: Callable[..., Path]) -> None:
    path = made()
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("satchel/__init__.py", b"other")
    with pytest.raises(check.Refused, match=r"entries of one name: satchel/__init__\.py"):
        check.opened(path)
    path.write_bytes(b"PK")
    with pytest.raises(check.Refused, match="not read: File is not a zip file"):
        check.opened(path)


def test_wheels_of_two_systems_have_the_same_python(made: Callable[..., Path], tmp_path: Path) -> None:
    other = wheels.TARGETS["musllinux-x86_64"].tag
    same, more = check.opened(made()), check.opened(made(tag=other))
    assert list(check.alike([same, more])) == []
    differs = check.opened(made({**contents(), "satchel/__init__.py": b"3\n"}, other))
    (finding,) = check.alike([same, differs])
    assert finding == f"{differs.path.name}: satchel/__init__.py differs from that of {same.path.name}"


def test_another_build_has_the_same_bytes(made: Callable[..., Path], tmp_path: Path) -> None:
    path, again = made(), tmp_path / "again"
    again.mkdir()
    assert [*check.same(path, again)] == [f"{again} has no such wheel to compare with"]
    shutil.copy(path, again)
    assert [*check.same(path, again)] == []
    (again / path.name).write_bytes(b"")
    assert len([*check.same(path, again)]) == 1


def test_a_library_of_this_machine_is_judged_by_the_tag() -> None:
    pytest.importorskip("lief", reason="reads libraries: pip install '.[packaging]'")
    from satchel.runtime.device.libraries import library_files

    path = next((path for path in library_files() if path.suffix == ".so" and "null" in path.stem), None)
    if path is None:
        pytest.skip("no backend's library was built here, or this is no Linux")
    content, processor = path.read_bytes(), check.PROCESSORS[platform.machine()][0]
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[processor]
    assert [*check.library("null", content, f"manylinux_2_99_{processor}")] == []
    assert "compiled for" in next(check.library("null", content, f"manylinux_2_99_{other}"))
    assert any("GLIBC" in line for line in check.library("null", content, f"manylinux_2_1_{processor}"))
    assert "a library of linux" in next(check.library("null", content, "macosx_11_0_arm64"))
    assert [*check.library("null", b"", "win_amd64")] == ["neither ELF nor Mach-O nor PE"]


@pytest.mark.nightly
def test_a_system_is_built_twice_with_equal_bytes(tmp_path: Path) -> None:
    for tool in ("auditwheel", "lief", "twine", "ziglang"):
        pytest.importorskip(tool, reason="makes and inspects wheels: pip install '.[packaging]'")
    for build in ("one", "and two"):
        places = ["-o", str(tmp_path / build), "--work", str(tmp_path / f"work {build}")]
        assert wheels.main([*places, "windows-arm64"]) == 0
    (wheel,) = (tmp_path / "one").glob("*.whl")
    assert check.main(["--same", str(tmp_path / "and two"), str(wheel)]) == 0


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TOOLS", {"no_such_module": "no-such-package"})
    with pytest.raises(
        SystemExit, match=r"no-such-package: not installed; run pip install '\.\[packaging\]'"
    ):
        check.main([])
    monkeypatch.setattr(check, "TOOLS", {})
    monkeypatch.setattr(check, "ROOT", ROOT / "tests")
    with pytest.raises(SystemExit, match=r"no wheel; run python packaging/wheels\.py"):
        check.main([])
