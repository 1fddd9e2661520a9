"""Steps of a release that a workflow and a person both run: `python packaging/release.py STEP`.

    check [TAG]       the tag, pyproject.toml and CHANGELOG.md name one version, which has a date
    notes             the version's section of CHANGELOG.md, for the release page
    sums FOLDER       writes SHA256SUMS of the folder's files, as `sha256sum --check` reads it
    fill FOLDER OUT   fills packaging/templates/ with the version and the hashes of the folder's files
    version, tools    prints the version; the packages that releases are made with, for `pip install -r`

pyproject.toml is the one place of the version: the package, `satchel --version`, the wheels, the package of
Debian and the images take it from there. A tag is `v` and that version.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import wheels

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "packaging" / "templates"
SUMS = "SHA256SUMS"
TOOLS = ("cmake>=3.20", "ninja>=1.11", "twine>=6")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")  # PEP 440, in the form that PyPI keeps as it is
HEADING = re.compile(r"^## (\S+?),? +(.+)$", re.M)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class ReleaseError(Exception):
    """What stands in the way of a release; the text has all that was found."""


def version(root: Path = ROOT) -> str:
    """The version in pyproject.toml."""
    return wheels.named(root)[1]


def tools(root: Path = ROOT) -> list[str]:
    """What releases are made with: the build's requirements, and the extras of packaging/."""
    with (root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    extras = project["project"]["optional-dependencies"]
    found = [*project["build-system"]["requires"], *TOOLS]
    return [*found, *(need for name in ("packaging", "release") for need in extras.get(name, ()))]


def sections(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """CHANGELOG.md's versions, the newest first: (version, date or `unreleased`, text)."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [(m[1], m[2].strip(), text[m.end() : end].strip()) for m, end in zip(found, ends, strict=True)]


def check(tag: str, root: Path = ROOT) -> str:
    """The version of a release. ReleaseError where the tag and the files do not agree."""
    wanted, wrong = version(root), []
    if not VERSION.fullmatch(wanted):
        wrong.append(f"pyproject.toml: expected a version such as 1.2.3 or 1.2.3rc1, got {wanted!r}")
    if tag != f"v{wanted}":
        wrong.append(
            f"tag: expected v{wanted}, by pyproject.toml, got {tag!r}: tag that, or change pyproject.toml"
        )
    newest = next(iter(sections(root)), None)
    if newest is None:
        wrong.append(f"CHANGELOG.md: expected a heading `## {wanted}, DATE`, got none")
    else:
        name, date, text = newest
        if name != wanted:
            wrong.append(f"CHANGELOG.md: expected {wanted} as its first version, got {name}")
        if not DATE.fullmatch(date):
            wrong.append(f"CHANGELOG.md: {name}: expected a date such as 2026-01-31, got {date!r}")
        if not text:
            wrong.append(f"CHANGELOG.md: {name}: expected what has changed, got nothing")
    if wrong:
        raise ReleaseError("\n".join(wrong))
    return wanted


def sums(folder: Path) -> Path:
    """Writes SHA256SUMS of the folder's files, and returns its path."""
    lines = [f"{digest(path)}  {path.name}\n" for path in released(folder)]
    if not lines:
        raise ReleaseError(f"{folder}: expected files to release, got none: build the wheels first")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    return folder / SUMS


def released(folder: Path) -> Iterator[Path]:
    """The files of a release, by name; not the sums, nor signatures of files."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != SUMS and not path.name.endswith((".sigstore.json", ".sigstore")):
            yield path


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def values(folder: Path, root: Path = ROOT, home: str = "") -> dict[str, str]:
    """What templates may name: the version, its date, and the name and the hash of each file that a package
    manager downloads.
    """
    date = sections(root)[0][1]
    found = {"VERSION": version(root), "DATE": date if DATE.fullmatch(date) else "1970-01-01"}
    if home:
        found["HOME"] = home.rstrip("/")
    for key, pattern in FILES.items():
        fitting = [p for p in released(folder) if re.fullmatch(pattern, p.name)]
        if len(fitting) > 1:
            raise ReleaseError(f"{folder}: expected one file like {pattern}, got {[p.name for p in fitting]}")
        for path in fitting:
            found |= {f"{key}_FILE": path.name, f"{key}_SHA256": digest(path)}
    return found


# The files that templates name, by the beginning of their names in the templates.
FILES = {
    "SDIST": r"satchel-[^-]+\.tar\.gz",
    "MODEL": r"satchel_model_40m-[^-]+-py3-none-any\.whl",
    "LINUX_X86_64": r"satchel-[^-]+-py3-none-manylinux\S*_x86_64\.whl",
    "LINUX_AARCH64": r"satchel-[^-]+-py3-none-manylinux\S*_aarch64\.whl",
    "MACOS_ARM64": r"satchel-[^-]+-py3-none-macosx\S*_arm64\.whl",
    "MACOS_X86_64": r"satchel-[^-]+-py3-none-macosx\S*_x86_64\.whl",
    "WINDOWS_X64": r"satchel-[^-]+-windows-x64\.zip",
    "APPIMAGE": r"satchel-[^-]+-x86_64\.AppImage",
}


def fill(
    folder: Path, out: Path, root: Path = ROOT, templates: Path = TEMPLATES, home: str = ""
) -> list[Path]:
    """Fills the templates of every package manager whose values are all known, and returns the paths. One
    that names a file which the folder lacks is left out as a whole, with a note.
    """
    known, made = values(folder, root, home), []
    for manager in sorted(p for p in templates.iterdir() if p.is_dir()):
        texts = {path: path.read_text(encoding="utf-8") for path in sorted(manager.glob("*.in"))}
        if missing := sorted(set().union(*map(needs, texts.values())) - known.keys()):
            print(f"{manager.name}: left out, {folder} has nothing for {', '.join(missing)}", file=sys.stderr)
            continue
        for path, text in texts.items():
            target = out / path.relative_to(templates).with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(filled(text, known), encoding="utf-8")
            made.append(target)
    return made


def needs(text: str) -> set[str]:
    """The names in a template."""
    return set(re.findall(r"@@([A-Z0-9_]+)@@", text))


def filled(text: str, known: Mapping[str, str]) -> str:
    """A template with its names replaced: `@@NAME@@`, because its language uses `$` and braces itself."""
    return re.sub(r"@@([A-Z0-9_]+)@@", lambda match: known[match[1]], text)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("check").add_argument("tag", nargs="?", default=os.environ.get("GITHUB_REF_NAME", ""))
    for step in ("notes", "version", "tools"):
        steps.add_parser(step)
    steps.add_parser("sums").add_argument("folder", type=Path)
    filling = steps.add_parser("fill")
    filling.add_argument("folder", type=Path)
    filling.add_argument("out", type=Path)
    filling.add_argument("--home", default="", help="the address of the project, for manifests that name it")
    given = parser.parse_args(words)
    try:
        if given.step == "check":
            print(f"satchel {check(given.tag)}")
        elif given.step == "notes":
            print(sections()[0][2])
        elif given.step == "version":
            print(version())
        elif given.step == "tools":
            print(*tools(), sep="\n")
        elif given.step == "sums":
            print(sums(given.folder))
        else:
            print(*fill(given.folder, given.out, home=given.home), sep="\n")
    except ReleaseError as error:
        print("\n".join(f"release: error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
