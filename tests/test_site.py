"""The documentation site: its navigation is that of docs/README.md, `make docs` builds it without a warning,
and it takes nothing from other hosts.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
from api_page import exported
from doc_blocks import PAGES, ROOT

import satchel
from satchel.runtime.option import options_of

SITE = ROOT / "packaging" / "site"
FOREIGN = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)")
COPIED = ("docs", "packaging", "mkdocs.yml")  # what another build of the site has copies of


def hooks() -> ModuleType:
    """The site's hooks; skips where the packages of the extra are missing."""
    pytest.importorskip("mkdocs", reason="the site's packages are not installed: make .venv/with-docs")
    spec = importlib.util.spec_from_file_location("site_hooks", SITE / "hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def navigation() -> dict[str, list[str]]:
    """The pages of each section of mkdocs.yml."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if section := re.fullmatch(r"  - (.+):", line):
            pages = found.setdefault(section[1], [])
        elif page := re.fullmatch(r"      - (?:.+: )?(\S+\.md)", line):
            pages.append(page[1])
        else:
            pytest.fail(f"mkdocs.yml: not understood: {line}")
    return found


def contents(outside: dict[str, str]) -> dict[str, list[str]]:
    """The pages that each section of docs/README.md links to, in order, once."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for section, body in re.findall(r"^\*\*(.+?)\.\*\* (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
        links = re.findall(r"\]\(([^)#]+\.md)", body)
        names = [outside.get(link.removeprefix("../"), link) for link in links]
        found[section] = list(dict.fromkeys(names))
    return found


def outside() -> dict[str, str]:
    """Pages of the site that lie outside of docs/, by file, as hooks.py lists them."""
    text = (SITE / "hooks.py").read_text(encoding="utf-8")
    return dict(re.findall(r'^    "([\w/]+\.md)": "([\w-]+\.md)",$', text, re.MULTILINE))


def test_the_contents_are_the_navigation() -> None:
    there = navigation()
    there["Start"].remove("README.md")  # the contents themselves
    assert contents(outside()) == there


def test_every_page_is_in_the_navigation() -> None:
    named = [page for pages in navigation().values() for page in pages]
    files = [page.relative_to(ROOT).as_posix() for page in PAGES]
    pages = {outside().get(file, file.removeprefix("docs/")) for file in files}
    assert len(named) == len(set(named)) and set(named) == pages


@pytest.mark.parametrize(
    ("text", "source", "name", "site"),
    [
        ("[a](../README.md#use)", "docs/gpu.md", "gpu.md", "[a](readme.md#use)"),
        ("[a](docs/gpu.md)", "README.md", "readme.md", "[a](gpu.md)"),
        ("[a](../../SECURITY.md)", "docs/handbook/memory.md", "handbook/memory.md", "[a](../security.md)"),
        ("![a](docs/images/chat.svg)", "README.md", "readme.md", "![a](images/chat.svg)"),
        ("[the list](tests/NIGHTLY.md) is long", "CONTRIBUTING.md", "contributing.md", "the list is long"),
        ("[a](#use), [b](https://c.d/e)", "docs/gpu.md", "gpu.md", "[a](#use), [b](https://c.d/e)"),
        ("[a](nowhere.md)", "docs/gpu.md", "gpu.md", "[a](nowhere.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(text: str, source: str, name: str, site: str) -> None:
    linked = hooks().linked(text, source, name)
    if "nowhere" in text:
        assert linked == text  # and MkDocs warns
    else:
        assert linked == site


def test_a_formula_becomes_mathml() -> None:
    html = (
        '<p>so <span class="arithmatex">\\(a &lt; b_1\\)</span> and <div class="arithmatex">\\[c\\]</div></p>'
    )
    drawn = hooks().on_page_content(html, None, None, None)
    assert drawn.count("<math") == 2 and 'display="block"' in drawn and "arithmatex" not in drawn
    assert "<msub>" in drawn and "amp;lt" not in drawn


def build(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict` of a checkout, as `make docs` does. With --quiet it would count no warnings."""
    pytest.importorskip("mkdocs", reason="the site's packages are not installed: make .venv/with-docs")
    pytest.importorskip("mkdocstrings", reason="the site's packages are not installed: make .venv/with-docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr, done.stderr
    return target


def pages_of(site: Path) -> Iterator[tuple[str, str]]:
    for page in sorted(site.rglob("*.html")):
        yield page.relative_to(site).as_posix(), page.read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_site_is_whole(site: Path) -> None:
    """Every page is there, nothing is left of the Markdown, and nothing comes from another host."""
    names = {page.removesuffix(".md") for pages in navigation().values() for page in pages}
    files = {re.sub(r"(^|/)README$", r"\1index", name) + ".html" for name in names}
    found = dict(pages_of(site))
    assert files <= set(found)
    assert {name: FOREIGN.findall(text) for name, text in found.items() if FOREIGN.findall(text)} == {}
    for name, text in found.items():
        shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        left = re.findall(r"arithmatex|```|\|---|\x02|klzzwxh|:::", shown)
        assert (name, left) == (name, [])
    assert found["handbook/attention.html"].count("<math") > 40
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
    assert (site / "assets" / "icon.svg").read_bytes() == (ROOT / "server/page/static/icon.svg").read_bytes()


@pytest.mark.nightly
def test_the_reference_has_every_name_and_option(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    ids = set(re.findall(r'id="(satchel\.[\w.]+)"', text))
    assert {f"satchel.{name}" for name, _ in exported()} <= ids
    assert {"satchel.Model.chat", "satchel.AsyncModel.chat", "satchel.Reply.read"} <= ids
    plain = " ".join(unescape(re.sub(r"<[^>]+>", "", text)).split())
    for kind in (satchel.Options, satchel.GenerateOptions, satchel.Sampling):
        own = {name: option for name, option in options_of(kind).items() if not option.inside}
        lacking = [name for name in own if f"satchel.{kind.__name__}.{name}" not in ids]
        assert lacking == []
        said = [o.doc.replace("`", "").rstrip(".") for o in own.values() if "*" not in o.doc]
        assert [one for one in said if " ".join(one.split()) not in plain] == []
    first = (inspect.getdoc(satchel.Model.load) or "").partition(".")[0]
    assert first and first in plain


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("added", "told"),
    [("[a](nowhere.md)", "nowhere.md"), ("[a](gpu.md#no-such-heading)", "no-such-heading")],
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, added: str, told: str) -> None:
    for source in ROOT.iterdir():
        target = tmp_path / source.name
        if source.name not in COPIED:
            target.symlink_to(source)  # pages link to files anywhere
        elif source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
    with (tmp_path / "docs" / "faq.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{added}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0 and told in done.stderr
    assert done.stderr.count("WARNING") == 1  # all else leads somewhere


@pytest.mark.nightly
def test_versions_stand_beside_each_other(tmp_path: Path) -> None:
    """packaging/site/publish, as a release runs it: a folder for each version, and a menu of them."""
    pytest.importorskip("mike", reason="the site's packages are not installed: make .venv/with-docs")
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    copy, published = tmp_path / "copy", tmp_path / "published"
    for words in (["clone", "--quiet", "--shared", str(ROOT), str(copy)], ["init", "--bare", str(published)]):
        subprocess.run(["git", *words], check=True, capture_output=True)
    here = Path(sys.executable).parent  # the program calls mike and mkdocs by name
    environment = os.environ | {"PATH": os.pathsep.join([str(here), os.environ.get("PATH", "")])}
    project = copy / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    for version in ("7.1.0", "7.2.0", "7.3.0rc1"):
        project.write_text(re.sub(r'(?m)^version = ".*"', f'version = "{version}"', text), encoding="utf-8")
        command = [copy / "packaging" / "site" / "publish", published]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def file(name: str) -> str:
        show = ["git", "-C", str(published), "show", f"gh-pages:{name}"]
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout

    found = {row["version"]: row["aliases"] for row in json.loads(file("versions.json"))}
    assert found == {"7.3.0rc1": [], "7.2.0": ["latest"], "7.1.0": []}
    assert re.search(r'"provider": ?"mike"', file("7.2.0/index.html"))
    assert "latest/" in file("index.html")  # which leads there
