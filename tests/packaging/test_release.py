"""packaging/release.py: one version everywhere, sums, filled manifests; and the workflow of these steps."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import release  # noqa: E402

HOME = "https://forge.example/satchel"
FILES = (
    "satchel-1.2.3.tar.gz",
    "satchel-1.2.3-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "satchel-1.2.3-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
    "satchel-1.2.3-py3-none-macosx_11_0_arm64.whl",
    "satchel-1.2.3-py3-none-macosx_10_15_x86_64.whl",
    "satchel-1.2.3-py3-none-musllinux_1_2_x86_64.whl",
    "satchel_model_40m-1.2.3-py3-none-any.whl",
    "satchel-1.2.3-windows-x64.zip",
)


def project(
    folder: Path, version: str = "1.2.3", heading: str = "## 1.2.3, 2026-12-01", text: str = "- New"
) -> Path:
    (folder / "pyproject.toml").write_text(f'[project]\nname = "satchel"\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(
        f"# Changelog\n\n{heading}\n\n{text}\n\n## 1.2.2, 2026-11-01\n\n- Old\n"
    )
    return folder


def test_a_release_that_agrees(tmp_path: Path) -> None:
    assert release.check("v1.2.3", project(tmp_path)) == "1.2.3"
    assert release.sections(tmp_path)[0] == ("1.2.3", "2026-12-01", "- New")
    assert [name for name, _, _ in release.sections(tmp_path)] == ["1.2.3", "1.2.2"]


@pytest.mark.parametrize(
    ("tag", "changes", "errors"),
    [
        ("v1.2.4", {}, ["tag: expected v1.2.3, by pyproject.toml, got 'v1.2.4'"]),
        ("1.2.3", {}, ["tag: expected v1.2.3"]),
        (
            "v1.2.3",
            {"heading": "## 1.2.3, unreleased"},
            ["1.2.3: expected a date such as 2026-01-31, got 'unreleased'"],
        ),
        ("v1.2.3", {"heading": "## 1.2.2, 2026-12-01"}, ["expected 1.2.3 as its first version, got 1.2.2"]),
        ("v1.2.3", {"text": ""}, ["1.2.3: expected what has changed, got nothing"]),
        ("v1.2", {"version": "1.2"}, ["expected a version such as 1.2.3", "as its first version"]),
    ],
)
def test_what_does_not_agree_is_all_told(
    tag: str, changes: dict[str, str], errors: list[str], tmp_path: Path
) -> None:
    with pytest.raises(release.ReleaseError) as caught:
        release.check(tag, project(tmp_path, **changes))
    assert len(str(caught.value).splitlines()) == len(errors)
    assert all(error in str(caught.value) for error in errors)


def test_this_project_has_a_version_and_its_changes() -> None:
    name, _, text = release.sections()[0]
    assert name == release.version() and release.VERSION.fullmatch(name) and text


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder of a release's files."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(name)
    return folder


def test_sums_are_those_that_sha256sum_checks(dist: Path) -> None:
    (dist / "satchel-1.2.3.tar.gz.sigstore.json").write_text("{}")
    lines = release.sums(dist).read_text().splitlines()
    assert lines == [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}" for name in sorted(FILES)]
    if shutil.which("sha256sum"):
        done = subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", release.SUMS], cwd=dist, check=False
        )
        assert done.returncode == 0
    with pytest.raises(release.ReleaseError, match="expected files to release, got none"):
        release.sums(dist.parent)


@pytest.fixture
def filled(dist: Path, tmp_path: Path) -> Path:
    release.fill(dist, tmp_path / "out", project(tmp_path), home=HOME)
    return tmp_path / "out"


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_every_template_is_filled_and_says_that_nobody_installed_it(filled: Path) -> None:
    made = {path.relative_to(filled).as_posix() for path in filled.rglob("*") if path.is_file()}
    templates = release.TEMPLATES
    assert made == {p.relative_to(templates).with_suffix("").as_posix() for p in templates.rglob("*.in")}
    for path in filled.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert "@@" not in text and re.search(r"nobody\s(#\s)?has\s(installed|built)", text), path.name
        for name in re.findall(r"releases/download/v1\.2\.3/([^\"\s]+)", text):
            assert name in FILES and hashlib.sha256(name.encode()).hexdigest() in text


def test_a_package_manager_without_its_file_is_left_out(
    dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dist / "satchel-1.2.3-windows-x64.zip").unlink()
    made = release.fill(dist, tmp_path / "out", project(tmp_path), home=HOME)
    assert {path.parent.name for path in made} == {"appimage", "flatpak", "homebrew"}
    assert "winget: left out, " in capsys.readouterr().err
    (dist / "satchel-1.2.4-py3-none-macosx_11_0_arm64.whl").write_text("")
    with pytest.raises(release.ReleaseError, match="expected one file like"):
        release.fill(dist, tmp_path / "more", tmp_path)


def test_homebrews_formula_is_ruby(filled: Path) -> None:
    path = filled / "homebrew" / "satchel.rb"
    text = path.read_text(encoding="utf-8")
    opening = re.findall(r"^\s*(?:class|def|on_\w+ do|resource .* do|service do|test do)\b", text, re.M)
    assert len(opening) == len(re.findall(r"^\s*end$", text, re.M)) and "class Satchel < Formula" in text
    for field in ("desc", "homepage", "url", "sha256", "license", "version"):
        assert re.search(rf"^ +{field} \S", text, re.M), field
    if shutil.which("ruby"):
        assert subprocess.run(["ruby", "-c", str(path)], capture_output=True, check=False).returncode == 0


# The fields that winget's schemas of version 1.9.0 require, and the patterns of those that we fill.
WINGET = {
    "version": {"DefaultLocale"},
    "installer": {"Installers"},
    "defaultLocale": {"PackageLocale", "Publisher", "PackageName", "License", "ShortDescription"},
}


def test_wingets_manifests_have_the_fields_of_its_schemas(filled: Path) -> None:
    found = {one["ManifestType"]: one for one in map(loaded, (filled / "winget").glob("*.yaml"))}
    assert found.keys() == WINGET.keys()
    for kind, one in found.items():
        assert one.keys() >= WINGET[kind] | {"PackageIdentifier", "PackageVersion", "ManifestVersion"}
        assert one["PackageIdentifier"] == "Satchel.Satchel" and one["PackageVersion"] == "1.2.3"
        assert re.fullmatch(r"\d+\.\d+\.\d+", str(one["ManifestVersion"]))
    (installer,) = found["installer"]["Installers"]
    assert installer["Architecture"] == "x64" and re.fullmatch(r"[0-9a-f]{64}", installer["InstallerSha256"])
    assert installer["InstallerUrl"].startswith("https://")
    (nested,) = found["installer"]["NestedInstallerFiles"]
    assert nested["RelativeFilePath"].endswith(".exe") and not nested["RelativeFilePath"].startswith("\\")
    assert 3 <= len(found["defaultLocale"]["ShortDescription"]) <= 256


def test_flatpaks_manifest(filled: Path) -> None:
    found = loaded(filled / "flatpak" / "io.satchel.Window.yml")
    assert found.keys() >= {"app-id", "runtime", "runtime-version", "sdk", "command", "modules"}
    assert "--share=network" not in found["finish-args"]
    requirements, own = found["modules"]
    assert requirements.endswith(".yml") and own["buildsystem"] == "simple"
    for source in own["sources"]:
        assert source["type"] == "file" and (
            re.fullmatch(r"[0-9a-f]{64}", source.get("sha256", "")) or "path" in source
        )
    assert any(found["command"] in command for command in own["build-commands"])


def test_appimages_recipe(filled: Path) -> None:
    found = loaded(filled / "appimage" / "AppImageBuilder.yml")
    assert found["version"] == 1 and found["AppImage"]["arch"] == "x86_64"
    assert found["AppDir"]["app_info"].keys() == {"id", "name", "icon", "version", "exec", "exec_args"}
    for line in found["script"]:
        assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0, line
    assert (ROOT / "examples" / "window.py").is_file() and (ROOT / "server/page/static/icon.svg").is_file()


# --- the workflows

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
JOBS = loaded(WORKFLOW)["jobs"]
EVERY = sorted(WORKFLOW.parent.glob("*.yml"))
MAY_WRITE = {"publish": {"id-token"}, "page": {"contents", "id-token"}, "site": {"contents"}}


def steps(jobs: dict[str, Any] = JOBS) -> list[tuple[str, dict[str, Any]]]:
    return [(name, step) for name, job in jobs.items() for step in job["steps"]]


def test_images_are_compiled_by_night_and_where_what_they_are_made_of_changes() -> None:
    found = loaded(WORKFLOW.with_name("images.yml"))
    when, sources = found[True], ["cuda", "hip", "kernels", "include", "quant"]  # as gpu_images.digest has
    assert when["schedule"] == [{"cron": "17 3 * * *"}]
    for event in ("push", "pull_request"):
        paths = when[event]["paths"]
        assert paths == [f"cext/{one}/**" for one in sources] + [
            "cext/gpu/pack.py",
            "packaging/gpu_images.py",
        ]
        assert all((ROOT / path.removesuffix("/**")).exists() for path in paths)
    made = "python3 packaging/gpu_images.py build/gpu-images"
    assert any(step.get("run", "").startswith(made) for _, step in steps(found["jobs"]))
    assert {scope for job in found["jobs"].values() for scope in job["permissions"].items()} == {
        ("contents", "read")
    }


def test_a_tag_starts_it_and_nothing_else() -> None:
    found = loaded(WORKFLOW)
    assert found[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+*"]}}  # YAML reads `on` as true
    assert found["permissions"] == {}


def test_each_job_may_do_what_it_needs_alone() -> None:
    for name, job in JOBS.items():
        writing = {scope for scope, may in job["permissions"].items() if may == "write"}
        assert writing == MAY_WRITE.get(name, set()), name
        assert set(job["permissions"].values()) <= {"read", "write"}
    assert "secrets." not in WORKFLOW.read_text(encoding="utf-8")
    assert JOBS["publish"]["environment"] == "pypi"


def test_nothing_is_published_before_all_is_tried() -> None:
    def before(name: str) -> set[str]:
        needs = JOBS[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*map(before, direct))

    assert before("publish") == {"check", "test", "wheels", "packages"}
    assert before("page") == before("site") == before("publish") | {"publish"}
    assert not any("models" in before(name) for name in JOBS)


@pytest.mark.parametrize("workflow", EVERY, ids=lambda path: path.name)
def test_actions_are_pinned_and_keep_no_credentials(workflow: Path) -> None:
    for name, step in steps(loaded(workflow)["jobs"]):
        if uses := step.get("uses"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", uses), f"{name}: {uses}"
            if uses.startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    lines = [line for line in workflow.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert all(re.search(r"# v\d+\.\d+\.\d+$", line) for line in lines)


@pytest.mark.parametrize("workflow", EVERY, ids=lambda path: path.name)
def test_its_programs_are_there_and_its_shell_is_shell(workflow: Path) -> None:
    for name, step in steps(loaded(workflow)["jobs"]):
        if command := step.get("run"):
            plain = re.sub(r"\$\{\{.*?\}\}", "x", command)
            assert subprocess.run(["bash", "-n", "-c", plain], check=False).returncode == 0, name
            for program in re.findall(r"(?<![\w/])(?:packaging|\.ci)/[\w./]+", command):
                there = (ROOT / program).is_file()
                # Made by the same release's branch of wheels.
                assert there or program in ("packaging/wheels.py", "packaging/check.py"), program
    done = subprocess.run(["bash", "-n", str(ROOT / "packaging" / "packages.sh")], check=False)
    assert done.returncode == 0


def test_what_is_published_has_attestations_signatures_and_sums() -> None:
    (publish,) = [step for _, step in steps() if "pypi-publish" in step.get("uses", "")]
    assert publish["with"]["attestations"] is True
    text = "\n".join(step.get("run", "") for name, step in steps() if name == "page")
    order = [
        text.index(what)
        for what in ("release.py fill", "release.py sums", "sigstore sign", "gh release create")
    ]
    assert order == sorted(order)
