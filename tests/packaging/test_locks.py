"""packaging/*.lock: exact versions, hashes, and the requirements of pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

pytest.importorskip("packaging")

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import lock  # noqa: E402

LOCKS = ("requirements.lock", "build.lock")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def entries(name: str) -> list[tuple[Requirement, int]]:
    """Each requirement of a lock, and its number of hashes."""
    text = (ROOT / "packaging" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(Requirement(line.partition(" --hash")[0]), len(HASH.findall(line))) for line in lines]


def here(name: str) -> dict[str, Requirement]:
    """The requirements of a lock for this platform and Python version, by name."""
    kept = [one for one, _ in entries(name) if one.marker is None or one.marker.evaluate()]
    assert len({canonicalize_name(one.name) for one in kept}) == len(kept), "a package occurs twice"
    return {canonicalize_name(one.name): one for one in kept}


def version(one: Requirement) -> str:
    return str(one.specifier).removeprefix("==")


@pytest.mark.parametrize("name", LOCKS)
def test_each_line_is_exact_and_hashed_and_names_no_host(name: str) -> None:
    for one, hashes in entries(name):
        assert hashes and re.fullmatch(r"==[^*,]+", str(one.specifier)) and not one.url, str(one)
    text = (ROOT / "packaging" / name).read_text(encoding="utf-8")
    assert "//" not in text and "index" not in text and "--find-links" not in text


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_pyproject_wants(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = here(name)
    for text in lock.wanted(project)[name]:
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate():
            pinned = found.get(canonicalize_name(need.name))
            again = "run python packaging/lock.py"
            assert pinned is not None, f"{text} is not in {name}: {again}"
            fits = need.specifier.contains(version(pinned), prereleases=True)
            assert fits, f"{text}, locked {pinned}: {again}"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_closed(name: str) -> None:
    """The requirements of each locked package that is installed here are locked too."""
    found, looked = here(name), 0
    for one in found.values():
        try:
            installed = distribution(one.name)
        except PackageNotFoundError:
            continue
        if installed.version != version(one):
            continue
        looked += 1
        for text in installed.requires or ():
            need = Requirement(text)
            extras = one.extras or {""}
            wanted = need.marker is None or any(
                need.marker.evaluate({**default_environment(), "extra": extra}) for extra in extras
            )
            assert not wanted or canonicalize_name(need.name) in found, f"{one.name} needs {text}"
    if not looked:
        pytest.skip("no locked package is installed in its locked version")


def test_the_image_fetches_nothing_without_a_hash_and_compiles_nothing() -> None:
    text = (ROOT / "packaging" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    rules = [line for line in text.splitlines() if not line.startswith("#")]
    fetching = [
        line for rule in rules for line in rule.split("&&") if re.search(r"\bpip (install|wheel)\b", line)
    ]
    assert len(fetching) == 2
    assert all("--require-hashes" in line or "--no-index" in line for line in fetching), fetching
    assert not re.search(r"\b(apt-get|gcc|make|pip wheel)\b", "\n".join(rules))
    assert re.search(r"^USER 10001:10001$", text, re.M)
