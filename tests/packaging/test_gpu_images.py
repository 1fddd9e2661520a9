"""packaging/gpu_images.py: which images are made of which sources, and which ones CMake takes."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CEXT, SCRIPT = ROOT / "cext", ROOT / "packaging" / "gpu_images.py"
IMAGES: dict[str, Any] = runpy.run_path(str(SCRIPT))
PACK: dict[str, Any] = runpy.run_path(str(CEXT / "gpu" / "pack.py"))
KERNELS = [*(CEXT / "cuda").glob("*.cu*"), *(CEXT / "kernels").glob("*.k.h")]


def test_every_source_is_listed_with_the_capability_that_it_is_written_for() -> None:
    sources = IMAGES["cuda_sources"]()
    assert sorted(one.name for one in sources) == sorted(p.stem for p in (CEXT / "cuda").glob("*.cu"))
    assert sources[0] == IMAGES["Source"]("portable", 75, range(0), (), ("--fmad=false",))
    made = {one.name: IMAGES["wanted"](one) for one in sources}
    assert made["portable"] == ["75", "80", "90a", "100", "120"]  # that of 80 runs on 8.6 and 8.9
    assert made["fp8"] == ["89", "90a", "100", "120"]
    assert made["gemv"] == ["80", "90a", "100", "120"]
    assert made["columns_warp"] == ["80", "100", "120"]  # 9.0 has columns
    assert made["columns"] == ["90a"]
    assert made["gemv_7"] == ["75"]  # later ones have gemv
    assert made["experts"] == made["portable"]
    assert made["expert_scaled"] == ["89", "120a", "121a"]  # instructions of these cards alone
    every = {tuple(v) for k, v in made.items() if k not in ("fp8", "expert_scaled")}
    assert every == {tuple(made[k]) for k in ("portable", "gemv", "gemv_7", "columns_warp", "columns")}


def test_kernels_need_no_header_of_a_toolkit_and_keep_their_names() -> None:
    ours = {p.name for p in (CEXT / "cuda" / "include").iterdir()}
    for path in KERNELS:
        text = path.read_text()
        assert set(re.findall(r"^#include <(.*)>", text, re.M)) <= ours, path.name
        for line in re.findall(r"^.*\b__global__\b.*$", text, re.M):
            assert 'extern "C"' in line or "asm" in line, f"{path.name}: {line}"


def test_the_list_of_portable_kernels_is_cmakes(tmp_path: Path) -> None:
    built = sorted((ROOT / "build").glob("py3-*/cext/include/kernels.h"))
    if not built:
        pytest.skip("the headers that the build makes are not in build/: make test")
    assert (IMAGES["generate"](tmp_path) / "kernels.h").read_text() == built[-1].read_text()


def folder_of(folder: Path, sources: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "cuda.images").write_bytes(PACK["pack"](12000, [("portable", 75, "sm_75", b"code")]))
    (folder / "cuda.json").write_text(json.dumps({"sources": sources}))
    return folder


def test_cmake_gets_a_folder_of_the_present_sources_only(tmp_path: Path) -> None:
    good = folder_of(tmp_path / "good", IMAGES["digest"]("cuda"))
    assert IMAGES["cmake_options"](good, ["cuda"]) == [f"SATCHEL_CUDA_IMAGES={good}"]
    old = folder_of(tmp_path / "old", "0123456789abcdef")
    for folder, words in ((old, "are of the sources 0123456789abcdef"), (tmp_path, "it has no cuda.images")):
        done = subprocess.run(
            [sys.executable, SCRIPT, "--check", folder, "cuda"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and words in done.stderr
        assert f"make them by `python packaging/gpu_images.py {folder} cuda`" in done.stderr
    assert subprocess.run([sys.executable, SCRIPT, "--check", good, "cuda"], check=False).returncode == 0


def test_amds_code_objects_are_one_bundle_beside_a_text(tmp_path: Path) -> None:
    part = IMAGES["Part"]
    parts = [part("portable", 0, arch, "clang", "key", ()) for arch in ("gfx90a", "gfx942", "source")]
    objects, text = IMAGES["images_of"]("hip", parts, [b"one", b"two", b"text"])
    assert objects[:3] == ("portable", 0, "gfx90a gfx942") and objects[3].startswith(
        b"__CLANG_OFFLOAD_BUNDLE__"
    )
    assert text == ("portable", 0, "source", b"text\0")
    assert IMAGES["images_of"]("hip", parts[2:], [b"text"]) == [text], "an archive for hipRTC alone"


def test_an_archive_for_some_architectures_names_those_that_there_are() -> None:
    part = IMAGES["Part"]
    parts = [part("portable", 0, arch, "NVRTC", "key", ()) for arch in ("sm_80", "sm_90a", "compute_75")]
    assert IMAGES["chosen"](parts, []) == parts
    assert IMAGES["chosen"](parts, ["compute_75", "sm_90a"]) == parts[1:]
    with pytest.raises(
        IMAGES["ImageError"], match="--only sm_91: expected some of compute_75, sm_80, sm_90a"
    ):
        IMAGES["chosen"](parts, ["sm_91"])


def parts_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *commands: str) -> list[Any]:
    """Parts that Python programs write, for `make` to compile; `install` says that there is no registry."""
    words = [(sys.executable, "-c", code, "{out}") for code in commands]
    parts = [
        IMAGES["Part"](f"source{n}", 80, "sm_80", "NVRTC 12.9.86", f"key{n}", command)
        for n, command in enumerate(words)
    ]

    def install(compiler: str, folder: Path) -> None:
        raise IMAGES["ImageError"](f"{compiler} cannot be had here")

    scope = IMAGES["make"].__globals__
    monkeypatch.setitem(scope, "PARTS", {"cuda": lambda folder: parts})
    monkeypatch.setitem(scope, "install", install)
    return parts


def test_parts_of_another_machine_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(tmp_path, monkeypatch, "raise SystemExit('run')", "raise SystemExit('run')")
    with pytest.raises(IMAGES["ImageError"], match=r"NVRTC 12\.9\.86 cannot be had here"):
        IMAGES["make"]("cuda", tmp_path, 1, lambda line: None)
    for part, code in zip(parts, (b"one", b"two"), strict=True):
        part.file(tmp_path).write_bytes(code)
    IMAGES["make"]("cuda", tmp_path, 1, lambda line: None)
    rows = [("source0", "sm_80", b"one"), ("source1", "sm_80", b"two")]
    assert list(PACK["entries"]((tmp_path / "cuda.images").read_bytes())) == rows


def test_what_includes_a_changed_file_is_compiled_again_and_nothing_else(tmp_path: Path) -> None:
    files = {"a.cu": '#include "near.h"\n  # include <far.h>\n', "b.cu": '#include "none.h"\n', "near.h": ""}
    files |= {"far/far.h": '#include "deep.h"\n#include "far.h"\n', "far/deep.h": "", "far/near.h": "other"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def keys(version: str = "1") -> list[str]:
        return [IMAGES["key_of"](tmp_path / name, [tmp_path / "far"], version) for name in ("a.cu", "b.cu")]

    read = IMAGES["read_by"](tmp_path / "a.cu", [tmp_path / "far"])
    assert [p.relative_to(tmp_path).as_posix() for p in read] == ["a.cu", "near.h", "far/far.h", "far/deep.h"]
    (a, b), others = keys(), keys("2")
    assert len({a, b, *others}) == 4, "another compiler gives other images"
    (tmp_path / "far" / "near.h").write_text("changed, but the one beside a.cu is found first")
    assert keys() == [a, b]
    (tmp_path / "far" / "deep.h").write_text("changed")
    assert keys()[0] != a and keys()[1] == b


def test_an_image_of_other_sources_gives_way_to_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = parts_of(tmp_path, monkeypatch, "import sys; open(sys.argv[1], 'w').write('code')")
    monkeypatch.setitem(IMAGES["make"].__globals__, "install", lambda compiler, folder: None)
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in ("source0.sm_80.old", "source0.sm_90a.old", "source01.sm_80.old"):
        (folder / name).write_text("old")
    IMAGES["make"]("cuda", tmp_path, 1, lambda line: None)
    assert {p.name for p in folder.iterdir()} == {
        part.file(tmp_path).name,
        "source0.sm_90a.old",
        "source01.sm_80.old",
    }


def test_an_image_that_fails_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = "import sys; sys.exit('line 7: wrong')", "import sys; open(sys.argv[1], 'w').write('code')"
    parts = parts_of(tmp_path, monkeypatch, bad, good, bad)
    monkeypatch.setitem(IMAGES["make"].__globals__, "install", lambda compiler, folder: None)
    with pytest.raises(IMAGES["ImageError"]) as error:
        IMAGES["make"]("cuda", tmp_path, 1, lambda line: None)
    said = "source{} for sm_80: NVRTC 12.9.86 gives no image:\nline 7: wrong"
    assert str(error.value).splitlines() == [*said.format(0).splitlines(), *said.format(2).splitlines()]
    assert parts[1].file(tmp_path).read_text() == "code" and not (tmp_path / "cuda.images").exists()


def test_names_and_compilers_of_an_archive(tmp_path: Path) -> None:
    names = IMAGES["names"]("cuda")
    assert {arch for name, arch in names if name == "portable"} == {
        "sm_75",
        "sm_80",
        "sm_90a",
        "sm_100",
        "sm_120",
        "compute_75",
    }
    assert len(names) == 118 and {("attention_split", a) for a in ("sm_80", "sm_90a")} <= names
    assert IMAGES["names"]("hip") == {
        ("portable", "gfx906 gfx90a gfx942 gfx1030 gfx1100 gfx1201"),
        ("portable", "source"),
    }
    said = ["NVRTC 12.9.86", "NVRTC 12.0.76", "NVRTC 12.9.86", "Debian clang version 19.1.7 (3~deb12u1)"]
    (tmp_path / "cuda.json").write_text(json.dumps({"images": [{"compiler": one} for one in said]}))
    assert IMAGES["compilers"](tmp_path, "cuda") == [
        ("Debian clang", "19.1.7"),
        ("NVRTC", "12.0.76"),
        ("NVRTC", "12.9.86"),
    ]


@pytest.mark.nightly
def test_two_runs_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small source, by NVRTC from PyPI."""
    make = IMAGES["make"]
    small = [s for s in IMAGES["cuda_sources"]() if s.name == "small"]
    monkeypatch.setitem(make.__globals__, "cuda_sources", lambda: small)
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            make("cuda", tmp_path / name, 1, lambda line: None)
    except IMAGES["ImageError"] as error:
        pytest.skip(f"cuda: {error}")
    one, two = ((tmp_path / name / "cuda.images").read_bytes() for name in ("one", "two"))
    assert one == two
    found = list(PACK["entries"](one))
    assert [(name, arch) for name, arch, _ in found] == [
        ("small", f"sm_{a}") for a in IMAGES["wanted"](*small)
    ]
    assert all(code.startswith(b"\x7fELF") and b".text.rms_norm_rows" in code for _, _, code in found)
