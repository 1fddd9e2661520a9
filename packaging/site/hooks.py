"""What the documentation site does beyond MkDocs: pages outside of docs/, links to files, and formulas.

A page's Markdown is the one that is read in the repository: its links are relative to its own file. Here
each link to a page of the site becomes one to that page, and a link to any other file of the repository,
which the site does not have, becomes its text. A link to what does not exist stays, and MkDocs warns.
"""

from __future__ import annotations

import os
import posixpath
import re
from html import unescape
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages of the site, with the page's name there.
OUTSIDE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "models/README.md": "bundled-model.md",
}
ICON = "server/page/static/icon.svg"
FENCED = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```\n(?=\$ )", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A site of several versions, which `mike deploy VERSION` builds, has a menu of them."""
    if os.environ.get("MIKE_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of docs/, and the icon that the product's page has."""
    for source, name in {**OUTSIDE, ICON: "assets/icon.svg"}.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Sessions get their prompts coloured, links lead to pages of the site."""
    name = page.file.src_uri
    source = next((s for s, there in OUTSIDE.items() if there == name), f"docs/{name}")
    parts, end = [], 0
    for block in FENCED.finditer(markdown):
        parts += [linked(markdown[end : block.start()], source, name), block[0]]
        end = block.end()
    parts.append(linked(markdown[end:], source, name))
    return SESSION.sub("```console\n", "".join(parts))


def linked(text: str, source: str, name: str) -> str:
    """The text of a page with its links as the site has them. source: its file, name: the page's there."""

    def replaced(link: re.Match[str]) -> str:
        picture, shown, target, anchor = link[1], link[2], link[3], link[4] or ""
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if file in OUTSIDE:
            there = OUTSIDE[file]
        elif file.startswith("docs/"):
            there = file.removeprefix("docs/")
        elif (ROOT / file).exists():
            return shown
        else:
            return link[0]
        start = posixpath.dirname(name) or "."
        return f"{picture}[{shown}]({posixpath.relpath(there, start)}{anchor})"

    return LINK.sub(replaced, text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which browsers draw by themselves; wide ones and tables scroll in their own box."""

    def drawn(formula: re.Match[str]) -> str:
        display = "block" if formula[2] == "[" else "inline"
        return str(convert(unescape(formula[3]), display=display))

    return FORMULA.sub(drawn, html)
