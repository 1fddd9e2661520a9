"""Bills of materials of the wheels, in CycloneDX 1.6 JSON, for `.dist-info/sboms/` (PEP 770).

    info |= sbom.of_program([sbom.Tool("zig", "0.17.1")])   # of the wheel of satchel
    info |= sbom.of_model(version, epoch)                   # of the wheel of the bundled model

Both give the file by its name below the `.dist-info` folder. The same commit gives the same bytes: lists are
sorted, the serial number is a digest of the content, and the time is the one that the caller gives. The
model's names no commit, because its wheel stays the same from release to release.

A program's bill lists every committed file that it is made of, with its SHA-256; the compilers as components
that are not shipped; and the packages that pip installs beside it. Nothing of others is vendored, which
`satchel:vendored` says and a test holds. The model's bill names its licence, which is not the program's.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
MODEL = "satchel-model-40m"
MODEL_LICENCE = "CC-BY-SA-4.0"
# What a wheel is made of. Tests, documents and benches are not in it.
PARTS = (
    "CMakeLists.txt",
    "pyproject.toml",
    "LICENSE",
    "cext",
    "cli",
    "errors",
    "formats",
    "quant",
    "runtime",
)
PARTS += ("server", "store")
FOLDER = "sboms"


@dataclass(frozen=True)
class Tool:
    """A program that made the libraries, such as a compiler."""

    name: str
    version: str


def of_program(compilers: Iterable[Tool], epoch: int | None = None) -> dict[str, bytes]:
    """The bill of the wheel of satchel. compilers: of its libraries and GPU images; none where nothing was
    compiled. epoch: seconds of its time; None: the commit's.
    """
    facts = project()
    main = component("satchel", facts["version"], ComponentType.APPLICATION, facts["license"])
    parts = [*map(source, tracked(PARTS)), *map(requirement, facts["dependencies"])]
    parts += [
        Component(
            name=compiler.name,
            version=compiler.version,
            type=ComponentType.APPLICATION,
            scope=ComponentScope.EXCLUDED,
            bom_ref=f"compiler:{compiler.name}-{compiler.version}",
            description="compiled the libraries; nothing of it needs to be installed",
        )
        for compiler in compilers
    ]
    when = commit_time() if epoch is None else epoch
    return {f"{FOLDER}/satchel.cdx.json": document(main, parts, when, {"satchel:commit": commit()})}


def of_model(version: str, epoch: int) -> dict[str, bytes]:
    """The bill of the wheel of the bundled model: its file, its sources' paper, its licence. epoch: a time
    that does not change from build to build.
    """
    main = component(MODEL, version, ComponentType.MACHINE_LEARNING_MODEL, MODEL_LICENCE)
    main.description = "share-alike, because sources of its training are; SOURCES.md names them all"
    papers = [p for p in tracked(("models",)) if p.suffix in (".gguf", ".md")]
    return {f"{FOLDER}/{MODEL.replace('-', '_')}.cdx.json": document(main, map(source, papers), epoch)}


def document(
    main: Component, parts: Iterable[Component], epoch: int, facts: Mapping[str, str] | None = None
) -> bytes:
    """The bill of a component, as JSON. facts: properties of the bill."""
    rows = sorted(parts, key=lambda part: str(part.bom_ref.value))
    bom = Bom(components=rows)
    bom.metadata.component = main
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    for name, value in {"satchel:vendored": "nothing", **(facts or {})}.items():
        bom.metadata.properties.add(Property(name=name, value=value))
    bom.register_dependency(main, rows)
    digest = hashlib.sha256()
    for row in (main, *rows):
        digest.update(f"{row.bom_ref.value} {row.version} {[h.content for h in row.hashes]}\n".encode())
    bom.serial_number = uuid5(NAMESPACE_URL, digest.hexdigest())
    return (JsonV1Dot6(bom).output_as_string(indent=1) + "\n").encode()


def component(name: str, version: str, kind: ComponentType, licence: str) -> Component:
    """The thing that a bill is about: a package of PyPI."""
    url = PackageURL(type="pypi", name=name, version=version)
    return Component(
        name=name,
        version=version,
        type=kind,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[DisjunctiveLicense(id=licence, acknowledgement=LicenseAcknowledgement.DECLARED)],
    )


def source(path: Path) -> Component:
    """A committed file and its digest."""
    name = path.relative_to(ROOT).as_posix()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Component(
        name=name,
        type=ComponentType.FILE,
        bom_ref=f"file:{name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def requirement(text: str) -> Component:
    """A package that pip installs beside the wheel; which version is not known here."""
    found = re.match(r"[A-Za-z0-9._-]+", text)
    assert found, text
    url = PackageURL(type="pypi", name=found[0].lower())
    wanted = Property(name="satchel:requires", value=text)
    return Component(
        name=found[0], type=ComponentType.LIBRARY, purl=url, bom_ref=url.to_string(), properties=[wanted]
    )


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, Any] = tomllib.load(file)["project"]
        return found


def tracked(parts: Iterable[str]) -> Iterator[Path]:
    """The committed files below these folders."""
    for name in git("ls-files", "-z", "--", *parts).split("\0"):
        if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            yield ROOT / name


def commit() -> str:
    return git("rev-parse", "HEAD").strip()


def commit_time() -> int:
    return int(git("log", "-1", "--format=%ct"))


def git(*words: str) -> str:
    """What git prints in the project's folder."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Prints the bill of materials of a wheel.")
    parser.add_argument("of", choices=("satchel", "model"))
    parser.add_argument("--compiler", metavar="NAME=VERSION", help="what compiled the libraries")
    parser.add_argument("--version", default=project()["version"], help="of the model's wheel")
    given = parser.parse_args(words)
    name, _, version = (given.compiler or "").partition("=")
    made = (
        of_model(given.version, commit_time())
        if given.of == "model"
        else of_program([Tool(name, version)] if name else [])
    )
    for content in made.values():
        sys.stdout.buffer.write(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
